"""`serve.ask: [elicit]`: the client of a call is asked by a form whether it may be made (H10)."""

import json
import signal
from typing import Any

import anyio
import pytest
from e2e_project import Project
from served_hub import META, LineClient, Message, ServedHub, SocketClient, text_of

FORMS: Message = {"elicitation": {}}
WRITE: Message = {
    "name": "fs__file_write",
    "arguments": {"path": "a.txt", "content": "hello\u202e\x1b[2J"},
}
NO_RULE = "[aish] tool call denied: no rule approves fs__file_write"


def asking(project: Project, serve: str = "{ask: [elicit]}") -> None:
    project.pipeline(
        f"""
        mcp:
          servers: {{fs: {{pack: fs, root: .}}}}
          auto_approve: [fs__file_read]
        serve: {serve}
        """
    )


def asked(hub: LineClient, call: Message = WRITE) -> tuple[int, Message]:
    """Begin a call; its id, and the form that the client gets."""
    number = hub.request("tools/call", call)
    return number, hub.notification("elicitation/create")


def respond(hub: LineClient, request: Message, action: str, **content: Any) -> None:
    result = {"action": action, **({"content": content} if content else {})}
    hub.send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def stateless(hub: LineClient, call: Message = WRITE, **more: Any) -> Message:
    meta = {f"{META}clientCapabilities": FORMS}
    return hub.ask("tools/call", {**call, "_meta": meta, **more}, modern=True)


def retry(required: Message, action: str, **content: Any) -> Message:
    assert required["resultType"] == "input_required", required
    (key,) = required["inputRequests"]
    answer = {"action": action, **({"content": content} if content else {})}
    return {"requestState": required["requestState"], "inputResponses": {key: answer}}


def test_the_client_is_asked_by_a_form_that_shows_all_of_the_call(project: Project) -> None:
    asking(project)
    target = project.folder / "a.txt"
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=FORMS)
        hub.tools()
        number, form = asked(hub)
        assert not target.exists()
        respond(hub, form, "accept", approve=True)
        made = hub.answer(number)["result"]
        written = target.read_text("utf-8")
        target.unlink()
        denied = []
        for action, content in (
            ("decline", {}),
            ("cancel", {}),
            ("accept", {}),
            ("accept", {"approve": False}),
            ("accept", {"approve": "true"}),
            ("accept", {"approve": 1}),
            ("decline", {"approve": True}),
        ):
            number, again = asked(hub)
            respond(hub, again, action, **content)
            denied.append(text_of(hub.answer(number)["result"]))
        hub.end_input()
        assert hub.finish() == 0
        records = hub.audit

    message = form["params"]["message"]
    assert message.split("\n") == [
        "[aish] a tool call needs an answer",
        "server: fs",
        "tool: file_write",
        "why: no rule approves fs__file_write",
        "arguments, all 4 lines:",
        "  │ {",
        '  │   "path": "a.txt",',
        '  │   "content": "hello\\u202e\\u001b[2J"',
        "  │ }",
    ]
    assert form["params"]["requestedSchema"]["required"] == ["approve"]
    assert made["isError"] is False
    assert written == WRITE["arguments"]["content"]
    no = "[aish] tool call denied by the user"
    nobody = "[aish] tool call denied: the client has cancelled the form, and nobody has answered"
    assert denied == [no, nobody, *[no] * 5]
    assert not target.exists()
    answers = [one for one in records if one["event"] == "answered"]
    assert [(one["answer"], one["by"], one["way"]) for one in answers] == [
        ("approve", "stdio", "elicit"),
        ("deny", "stdio", "elicit"),
        ("withdrawn", "stdio", "elicit"),
        *[("deny", "stdio", "elicit")] * 5,
    ]
    rules = [one["rule"] for one in records if one["event"] == "decided"]
    assert rules == ["stdio (elicit)", "stdio (elicit)", "nobody to ask", *["stdio (elicit)"] * 5]


def test_a_stateless_client_approves_with_its_next_request_and_once(project: Project) -> None:
    asking(project)
    target = project.folder / "a.txt"
    with ServedHub(project, "p.yaml") as hub:
        required = stateless(hub)["result"]
        assert not target.exists()
        yes = retry(required, "accept", approve=True)
        other = {**WRITE, "arguments": {**WRITE["arguments"], "path": "b.txt"}}
        elsewhere = stateless(hub, other, **yes)
        made = stateless(hub, **yes)["result"]
        target.unlink()
        repeated = stateless(hub, **yes)
        fresh = stateless(hub)["result"]
        no = stateless(hub, **retry(fresh, "decline"))["result"]

    (request,) = required["inputRequests"].values()
    assert request["params"]["message"].startswith("[aish] a tool call needs an answer\nserver: fs")
    assert made["isError"] is False
    assert elsewhere["error"]["code"] == repeated["error"]["code"] == -32602
    assert fresh["resultType"] == "input_required"
    assert text_of(no) == "[aish] tool call denied by the user"
    assert not target.exists()
    assert not (project.folder / "b.txt").exists()


def test_a_client_is_not_asked_that_fills_in_no_forms_or_could_not_be_shown_all_of_it(
    project: Project,
) -> None:
    long = {**WRITE, "arguments": {"path": "a.txt", "content": "x" * 4000}}
    asking(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities={"elicitation": {"url": {}}})
        pages = hub.ask("tools/call", WRITE)["result"]
        none = hub.ask("tools/call", WRITE, modern=True)["result"]
        too_long = stateless(hub, long)["result"]
        short = stateless(hub)["result"]
    asking(project, "{forward: []}")
    with ServedHub(project, "p.yaml") as unnamed:
        unnamed.begin(capabilities=FORMS)
        # Another call: about the one above there is an open question.
        other = {**WRITE, "arguments": {"path": "b.txt", "content": ""}}
        not_named = unnamed.ask("tools/call", other)["result"]
        not_asked = stateless(unnamed, other)["result"]

    for found in (pages, none, too_long, not_named, not_asked):
        assert text_of(found).startswith(NO_RULE)
    assert short["resultType"] == "input_required"
    assert not (project.folder / "a.txt").exists()


def test_a_call_that_is_not_answered_in_time_stays_a_question_and_its_form_is_taken_back(
    project: Project,
) -> None:
    asking(project, "{ask: [elicit], hold: 200ms}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=FORMS)
        hub.tools()
        # A stateless client does not wait meanwhile, so its call is held for longer.
        other = {**WRITE, "arguments": {"path": "b.txt", "content": "b"}}
        required = stateless(hub, other)["result"]
        number, form = asked(hub)
        waiting = text_of(hub.answer(number)["result"])
        (taken_back,) = (one for one in hub.seen if one.get("method") == "notifications/cancelled")
        # Too late: that form is gone, whatever is answered to it.
        respond(hub, form, "accept", approve=True)
        # The next answer need not be given in so short a time.
        asking(project)
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is reloaded")
        number, again = asked(hub)
        respond(hub, again, "accept", approve=True)
        made = hub.answer(number)["result"]
        later = stateless(hub, other, **retry(required, "accept", approve=True))["result"]

    assert later["isError"] is False
    assert waiting.startswith("[aish] waiting for approval ")
    assert taken_back["params"]["requestId"] == form["id"]
    assert made["isError"] is False


def test_another_client_can_neither_see_nor_answer_the_form(project: Project) -> None:
    asking(project)
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as other:
            hub.begin(capabilities=FORMS)
            other.begin(capabilities=FORMS)
            hub.tools()
            number, form = asked(hub)
            respond(other, form, "accept", approve=True)
            required = stateless(other)["result"]
            foreign = stateless(hub, **retry(required, "accept", approve=True))
            assert not (project.folder / "a.txt").exists()
            respond(hub, form, "decline")
            denied = hub.answer(number)["result"]
            unseen = [one for one in other.seen if one.get("method") == "elicitation/create"]

    assert foreign["error"]["code"] == -32602
    assert text_of(denied) == "[aish] tool call denied by the user"
    assert unseen == []
    assert not (project.folder / "a.txt").exists()


@pytest.mark.slow(reason="starts the client of the SDK")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_approves_a_call(project: Project, mode: str) -> None:
    import sys

    from mcp import Client, StdioServerParameters, types
    from mcp.client.stdio import stdio_client

    asking(project)

    async def approve(_: Any, params: Any) -> Any:  # ruff: ignore[unused-async] - as the SDK has it
        assert "tool: file_write" in params.message
        return types.ElicitResult(action="accept", content={"approve": True})

    async def use() -> Any:
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "aish", "serve", "p.yaml"], cwd=project.folder
        )
        callbacks: dict[str, Any] = {"elicitation_callback": approve}
        async with Client(stdio_client(parameters), mode=mode, **callbacks) as client:
            return await client.call_tool(WRITE["name"], WRITE["arguments"])

    made = anyio.run(use)

    assert made.is_error is False
    assert json.loads(json.dumps(WRITE["arguments"]["content"])) == (
        project.folder / "a.txt"
    ).read_text("utf-8")
