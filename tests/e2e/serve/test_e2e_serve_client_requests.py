"""What servers ask the client whose call they handle, through `aish serve` (H8)."""

import json
import os
import signal
import sys
from typing import Any

import anyio
import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply
from samples import sampled
from served_http import HttpHub
from served_hub import META, PATIENCE, LineClient, Message, ServedHub, SocketClient, text_of

FORM: Message = {
    "message": "Who are you?",
    "requestedSchema": {
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1}},
        "required": ["name"],
    },
}
SAMPLE: Message = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "2 + 2?"}}],
    "maxTokens": 10,
}
ANSWER: Message = {
    "role": "assistant",
    "content": {"type": "text", "text": "4"},
    "model": "m",
    "stopReason": "endTurn",
}
ALL: Message = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
EVERY_KIND = "serve: {forward: [elicitation, sampling, roots]}"
ACCEPTED: Message = {"action": "accept", "content": {"name": "Ada"}}


def asking(project: Project, *, era: str = "legacy", rest: str = EVERY_KIND) -> None:
    """A file with a server whose tool `ask_client` asks the client what it is told to ask."""
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--era", era)}}}}}
          auto_approve: ["s__*"]
        {rest}
        """
    )


def asked(hub: LineClient, method: str, params: Message | None = None) -> int:
    """Begin a call that asks the client; its id."""
    arguments = {"method": method, "params": params or {}}
    return hub.request("tools/call", {"name": "s__ask_client", "arguments": arguments})


def respond(hub: LineClient, request: Message, **answer: Any) -> None:
    hub.send({"jsonrpc": "2.0", "id": request["id"], **answer})


def modern(
    hub: LineClient,
    method: str,
    params: Message | None = None,
    capabilities: Message | None = None,
    **more: Any,
) -> Message:
    """The answer to the same call of a stateless client."""
    arguments = {"method": method, "params": params or {}}
    meta = {f"{META}clientCapabilities": ALL if capabilities is None else capabilities}
    sent = {"name": "s__ask_client", "arguments": arguments, "_meta": meta, **more}
    return hub.ask("tools/call", sent, modern=True)


def again(required: Message, **answers: Any) -> Message:
    """What a client sends after an `input_required`: one answer for each request."""
    assert required["resultType"] == "input_required"
    (key,) = required["inputRequests"]
    return {"requestState": required["requestState"], "inputResponses": {key: answers}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_client_of_the_handshake_era_gets_what_servers_ask_on_the_way_of_its_call(
    project: Project, era: str
) -> None:
    asking(project, era=era)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        meta = {"own": 1, f"{META}own": 2, "aish/server": "another", "aish/own": 3}
        call = asked(hub, "elicitation/create", {**FORM, "_meta": meta})
        form = hub.notification("elicitation/create")
        respond(hub, form, result=ACCEPTED)
        filled = hub.answer(call)["result"]
        call = asked(hub, "sampling/createMessage", {**SAMPLE, "includeContext": "thisServer"})
        sampling = hub.notification("sampling/createMessage")
        respond(hub, sampling, result=ANSWER)
        sampled = hub.answer(call)["result"]
        call = asked(hub, "roots/list")
        roots = hub.notification("roots/list")
        respond(hub, roots, result={"roots": [{"uri": "file:///w"}]})
        listed = hub.answer(call)["result"]
        url = {"mode": "url", "message": "Sign in", "url": "https://example.org/in?a=b"}
        call = asked(hub, "elicitation/create", url)
        page = hub.notification("elicitation/create")
        respond(hub, page, result={"action": "accept"})
        opened = hub.answer(call)["result"]

    assert form["params"] == {
        "message": "s: Who are you?",
        "requestedSchema": FORM["requestedSchema"],
        "_meta": {"own": 1, "aish/server": "s"},
    }
    assert json.loads(text_of(filled)) == ACCEPTED
    assert sampling["params"] == {**SAMPLE, "_meta": {"aish/server": "s"}}
    assert json.loads(text_of(sampled)) == ANSWER
    assert json.loads(text_of(listed)) == {"roots": [{"uri": "file:///w"}]}
    assert page["params"].pop("elicitationId")
    assert page["params"] == {**url, "message": "s: Sign in", "_meta": {"aish/server": "s"}}
    assert json.loads(text_of(opened)) == {"action": "accept"}
    assert len({one["id"] for one in (form, sampling, roots, page)}) == 4


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_stateless_client_gets_the_same_as_input_that_is_required(
    project: Project, era: str
) -> None:
    asking(project, era=era)
    with ServedHub(project, "p.yaml") as hub:
        method = "elicitation/create"
        required = modern(hub, method, FORM)["result"]
        done = modern(hub, method, FORM, **again(required, **ACCEPTED))["result"]
        method = "sampling/createMessage"
        sampling = modern(hub, method, SAMPLE)["result"]
        sampled = modern(hub, method, SAMPLE, **again(sampling, **ANSWER))["result"]
        hub.end_input()
        assert hub.finish() == 0
        kinds = [one["kind"] for one in hub.audit if one["event"] == "finished"]

    (request,) = required["inputRequests"].values()
    assert request == {
        "method": "elicitation/create",
        "params": {**FORM, "message": "s: Who are you?", "_meta": {"aish/server": "s"}},
    }
    assert required["_meta"][f"{META}serverInfo"]["name"] == "p"
    assert "content" not in required
    assert done["resultType"] == "complete"
    assert json.loads(text_of(done)) == ACCEPTED
    assert json.loads(text_of(sampled)) == ANSWER
    held = ["ok", "ok"]
    assert kinds == (held if era == "legacy" else ["input_required", "ok"] * 2)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_client_that_did_not_declare_it_is_not_asked(project: Project, era: str) -> None:
    asking(project, era=era)
    url = {"mode": "url", "message": "Sign in", "url": "https://example.org/"}
    tools = {**SAMPLE, "tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
    cases: list[tuple[Message, str, Message]] = [
        ({}, "elicitation/create", FORM),
        ({"elicitation": {}}, "elicitation/create", url),
        ({"elicitation": {"url": {}}}, "elicitation/create", FORM),
        ({"sampling": {}}, "sampling/createMessage", tools),
        ({"elicitation": {}}, "sampling/createMessage", SAMPLE),
    ]
    for capabilities, method, params in cases:
        with ServedHub(project, "p.yaml") as hub:
            hub.begin(capabilities=capabilities)
            told = hub.answer(asked(hub, method, params))["result"]
            stateless = modern(hub, method, params, capabilities)["result"]
        for found in (told, stateless):
            if method == "elicitation/create":
                assert json.loads(text_of(found)) == {"action": "decline"}
            else:
                assert "sampling is denied by the configuration" in text_of(found)
        assert not [one for one in hub.seen if "method" in one]


def test_what_the_file_does_not_forward_is_refused(project: Project) -> None:
    asking(project, rest="")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        sampled = hub.answer(asked(hub, "sampling/createMessage", SAMPLE))["result"]
        roots = hub.answer(asked(hub, "roots/list"))["result"]
        call = asked(hub, "elicitation/create", FORM)
        respond(hub, hub.notification("elicitation/create"), result=ACCEPTED)
        assert json.loads(text_of(hub.answer(call)["result"])) == ACCEPTED
    asking(project, rest="serve: {forward: []}")
    with ServedHub(project, "p.yaml") as closed:
        closed.begin(capabilities=ALL)
        declined = closed.answer(asked(closed, "elicitation/create", FORM))["result"]

    assert "sampling is denied by the configuration" in text_of(sampled)
    assert json.loads(text_of(roots)) == {"roots": []}
    assert json.loads(text_of(declined)) == {"action": "decline"}


def test_a_reload_that_changes_what_is_forwarded_connects_to_servers_anew(
    project: Project,
) -> None:
    asking(project, rest="serve: {forward: []}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        declined = hub.answer(asked(hub, "elicitation/create", FORM))["result"]
        asking(project)
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is ", 1)
        call = asked(hub, "elicitation/create", FORM)
        respond(hub, hub.notification("elicitation/create"), result=ACCEPTED)
        accepted = hub.answer(call)["result"]
        reloaded = [one for one in hub.audit if one["event"] == "reloaded"]

    assert json.loads(text_of(declined)) == {"action": "decline"}
    assert json.loads(text_of(accepted)) == ACCEPTED
    assert [one["changed"] for one in reloaded] == [["s"]]


def test_the_state_of_a_request_is_good_for_it_alone_and_once(project: Project) -> None:
    asking(project)
    method = "elicitation/create"
    other = {**FORM, "message": "Another?"}
    with ServedHub(project, "p.yaml") as hub:
        required = modern(hub, method, FORM)["result"]
        retry = again(required, **ACCEPTED)
        state = retry["requestState"]
        data, _, digest = state.partition(".")
        wrong = [
            f"{data}.{'0' * 64}",
            f"{data[:-4]}AAAA.{digest}",
            f"{data}.{digest}x",
            data,
            "",
            "\ud800.x",
            7,
            {},
        ]
        altered = [modern(hub, method, FORM, **{**retry, "requestState": one}) for one in wrong]
        elsewhere = modern(hub, method, other, **retry)
        bare = modern(hub, method, FORM, inputResponses=retry["inputResponses"])["result"]
        done = modern(hub, method, FORM, **retry)["result"]
        repeated = modern(hub, method, FORM, **retry)

    for one in (*altered, elsewhere, repeated):
        assert one["error"]["code"] == -32602, one
    assert "does not belong to this request" in elsewhere["error"]["message"]
    assert bare["resultType"] == "input_required"
    assert json.loads(text_of(done)) == ACCEPTED


def test_answers_that_are_missing_are_asked_for_again_and_wrong_ones_refused(
    project: Project,
) -> None:
    asking(project)
    method = "elicitation/create"
    with ServedHub(project, "p.yaml") as hub:
        first = modern(hub, method, FORM)["result"]
        state = first["requestState"]
        second = modern(hub, method, FORM, requestState=state, inputResponses={"odd": {}})["result"]
        stale = modern(hub, method, FORM, **again(first, **ACCEPTED))
        wrong = modern(hub, method, FORM, **again(second, action="perhaps"))
        done = modern(hub, method, FORM, **again(second, **ACCEPTED))["result"]

    assert second["inputRequests"] == first["inputRequests"]
    assert "was used already" in stale["error"]["message"]
    assert "is not valid" in wrong["error"]["message"]
    assert json.loads(text_of(done)) == ACCEPTED


def test_only_the_first_answer_of_the_client_counts_and_none_that_is_no_answer(
    project: Project,
) -> None:
    asking(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        call = asked(hub, "elicitation/create", FORM)
        form = hub.notification("elicitation/create")
        respond(hub, {"id": str(form["id"])}, result={"action": "accept", "content": {"a": "b"}})
        respond(hub, {"id": form["id"] + 1}, result={"action": "accept", "content": {"a": "b"}})
        respond(hub, {"id": None}, result={"action": "accept", "content": {"a": "b"}})
        respond(hub, form, result={"action": "decline"})
        respond(hub, form, result=ACCEPTED)
        declined = hub.answer(call)["result"]
        call = asked(hub, "elicitation/create", FORM)
        respond(hub, hub.notification("elicitation/create"), result={"action": "perhaps"})
        odd = hub.answer(call)["result"]
        call = asked(hub, "sampling/createMessage", SAMPLE)
        refusal = {"code": -1, "message": "not this time"}
        respond(hub, hub.notification("sampling/createMessage"), error=refusal)
        refused = hub.answer(call)["result"]

    assert json.loads(text_of(declined)) == {"action": "decline"}
    assert "`elicitation/create` is not valid" in json.loads(text_of(odd))["message"]
    assert json.loads(text_of(refused)) == refusal


def test_a_form_reaches_the_client_with_nothing_but_what_the_protocol_knows(
    project: Project,
) -> None:
    asking(project)
    deep: Any = "x"
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    hostile: list[Any] = [
        None,
        [],
        "object",
        {"type": "array"},
        {"type": "object", "properties": {"a": {"$ref": "https://evil.example/x"}}},
        {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}},
        {"type": "object", "properties": {"a": deep}},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(1000)}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": []},
    ]
    pages = ["javascript:alert(1)", "file:///etc/passwd", "https://", "https://a b/", "//a", 5]
    choices = {"type": "string", "oneOf": [{"const": "a", "title": "A", "$ref": "#"}]}
    rich = {
        "type": "object",
        "$ref": "https://evil.example/x",
        "$defs": {"a": deep},
        "properties": {
            "a": {"type": "string", "$ref": "#", "default": deep, "x-own": 1, "format": "email"},
            "b": choices,
            "c": {"type": "array", "items": {"type": "string", "enum": ["x"], "not": deep}},
        },
        "allOf": [deep],
    }
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        declined = []
        for schema in hostile:
            params = {"message": "?", "requestedSchema": schema}
            declined.append(hub.answer(asked(hub, "elicitation/create", params))["result"])
        for url in pages:
            params = {"mode": "url", "message": "?", "url": url}
            declined.append(hub.answer(asked(hub, "elicitation/create", params))["result"])
        for odd in ({"mode": "voice"}, {"message": 7}, {"mode": ["form"]}):
            params = {**FORM, **odd}
            declined.append(hub.answer(asked(hub, "elicitation/create", params))["result"])
        asked(hub, "elicitation/create", {**FORM, "requestedSchema": rich})
        form = hub.notification("elicitation/create")

    assert [json.loads(text_of(one)) for one in declined] == [{"action": "decline"}] * 19
    assert form["params"]["requestedSchema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "email"},
            "b": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
            "c": {"type": "array", "items": {"type": "string", "enum": ["x"]}},
        },
    }


def test_a_call_that_is_cancelled_takes_back_what_was_asked_for_it(project: Project) -> None:
    asking(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        call = asked(hub, "elicitation/create", FORM)
        form = hub.notification("elicitation/create")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        hub.send({**cancel, "params": {"requestId": call}})
        taken_back = hub.notification("notifications/cancelled")
        respond(hub, form, result=ACCEPTED)
        hub.ask("ping")

    assert taken_back["params"]["requestId"] == form["id"]
    assert all(one.get("id") != call for one in hub.seen)


def test_a_server_takes_back_what_it_asked_and_hears_of_progress(project: Project) -> None:
    asking(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        arguments = {"method": "elicitation/create", "params": FORM, "take_back": True}
        call = hub.request("tools/call", {"name": "s__ask_client", "arguments": arguments})
        form = hub.notification("elicitation/create")
        assert text_of(hub.answer(call)["result"]) == "taken back"
        hub.ask("ping")
        (taken_back,) = (one for one in hub.seen if one.get("method") == "notifications/cancelled")
        respond(hub, form, result=ACCEPTED)
        call = asked(hub, "sampling/createMessage", {**SAMPLE, "_meta": {"progressToken": "t"}})
        sampling = hub.notification("sampling/createMessage")
        token = sampling["params"]["_meta"]["progressToken"]
        for progress in (1, 0, True, "2", 2):
            told = {"progressToken": token, "progress": progress, "total": 2, "message": "on it"}
            hub.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
        respond(hub, sampling, result=ANSWER)
        heard = json.loads(text_of(hub.answer(call)["result"]))

    assert taken_back["params"]["requestId"] == form["id"]
    assert token == sampling["id"]
    assert heard == [
        {"progressToken": "t", "progress": number, "total": 2, "message": "on it"}
        for number in (1, 2)
    ]


@pytest.mark.requirement("H8")
def test_a_stateless_client_gets_the_result_of_a_call_whose_question_was_taken_back(
    project: Project,
) -> None:
    asking(project)
    arguments = {"method": "elicitation/create", "params": FORM, "take_back": "later"}
    meta = {f"{META}clientCapabilities": ALL}
    call = {"name": "s__ask_client", "arguments": arguments, "_meta": meta}
    with ServedHub(project, "p.yaml") as hub:
        required = hub.ask("tools/call", call, modern=True)["result"]
        assert text_of(hub.call("s__take_back", modern=True)) == "done"
        retry = {**call, **again(required, **ACCEPTED)}
        later = hub.ask("tools/call", retry, modern=True)["result"]

    assert text_of(later) == "taken back"


def test_the_time_of_a_call_stands_still_while_its_client_is_asked(project: Project) -> None:
    project.pipeline(
        f"""
        mcp:
          servers:
            s:
              command: {stdio("--asks", "--era", "legacy")}
              timeout: {{call: 37.5s}}
          auto_approve: ["s__*"]
        """
    )
    project.times_out(37.5, "late")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        call = asked(hub, "elicitation/create", FORM)
        form = hub.notification("elicitation/create")
        # As long as these calls, which end by their time: more than that of the one above.
        for _ in range(2):
            project.write("late", "")
            late = hub.call("s__sleep", {"ms": 60_000})
        respond(hub, form, result=ACCEPTED)
        done = hub.answer(call)["result"]

    assert "no answer within 37.5 s" in text_of(late)
    assert json.loads(text_of(done)) == ACCEPTED


def test_of_several_clients_none_gets_what_may_belong_to_another(project: Project) -> None:
    asking(project)
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as other:
            hub.begin(capabilities=ALL)
            other.begin(capabilities=ALL)
            hub.tools()
            slow = {"name": "s__sleep", "arguments": {"ms": 60_000}}
            running = other.request("tools/call", slow)
            other.ask("ping")
            declined = hub.answer(asked(hub, "elicitation/create", FORM))["result"]
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            other.send({**cancel, "params": {"requestId": running}})
            other.call("s__echo", {"text": "it is cancelled"})
            call = asked(hub, "elicitation/create", FORM)
            form = hub.notification("elicitation/create")
            # The same id is an answer only in the session that was asked.
            respond(other, form, result={"action": "accept", "content": {"name": "Eve"}})
            assert other.ask("ping")["result"] == {}
            respond(hub, form, result=ACCEPTED)
            accepted = hub.answer(call)["result"]
            unseen = [one for one in other.seen if one.get("method") == "elicitation/create"]

    assert json.loads(text_of(declined)) == {"action": "decline"}
    assert json.loads(text_of(accepted)) == ACCEPTED
    assert unseen == []


def test_the_state_of_another_client_is_refused(project: Project) -> None:
    asking(project)
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as other:
            required = modern(hub, "elicitation/create", FORM)["result"]
            retry = again(required, **ACCEPTED)
            foreign = modern(other, "elicitation/create", FORM, **retry)
            own = modern(hub, "elicitation/create", FORM, **retry)["result"]

    assert foreign["error"]["code"] == -32602
    assert json.loads(text_of(own)) == ACCEPTED


def test_a_held_call_of_a_client_that_is_gone_is_cancelled_at_its_server(project: Project) -> None:
    note = project.folder / "cancelled"
    os.mkfifo(note)
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio("--asks", "--era", "legacy", "--note-cancelled", str(note))}}}
          auto_approve: ["s__*"]
        """
    )
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as other:
            required = modern(other, "elicitation/create", FORM)["result"]
            assert required["resultType"] == "input_required"
        told = note.read_text()  # waits until the server hears of it
        hub.end_input()
        assert hub.finish() == 0
        kinds = [one["kind"] for one in hub.audit if one["event"] == "finished"]

    assert len(told.splitlines()) == 1
    assert kinds == ["cancelled"]


async def answered_by_the_sdk(transport: Any, mode: str) -> tuple[list[str], list[Any]]:
    """What the SDK's client was asked by a server, and what the server got for it."""
    from mcp import Client, types

    messages: list[str] = []

    async def fill_in(_: Any, params: Any) -> Any:  # ruff: ignore[unused-async] - as the SDK has it
        messages.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(_: Any, params: Any) -> Any:  # ruff: ignore[unused-async] - as the SDK has it
        messages.append(params.messages[0].content.text)
        return types.CreateMessageResult.model_validate(ANSWER)

    async def roots(_: Any) -> Any:  # ruff: ignore[unused-async] - as the SDK has it
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///w"}]})

    callbacks: dict[str, Any] = {
        "elicitation_callback": fill_in,
        "sampling_callback": sample,
        "list_roots_callback": roots,
    }
    found = []
    async with Client(transport, mode=mode, **callbacks) as client:
        for method, params in (
            ("elicitation/create", FORM),
            ("sampling/createMessage", SAMPLE),
            ("roots/list", {}),
        ):
            arguments = {"method": method, "params": params}
            result = await client.call_tool("s__ask_client", arguments)
            found.append(json.loads(text_of(result.model_dump())))
    return messages, found


@pytest.mark.slow(reason="starts the client of the SDK")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    "mode",
    sampled(["auto", "legacy"], often={0}, reason="cases of the same kind"),
)
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_the_sdks_client_answers_servers_of_both_eras(
    project: Project, way: str, mode: str, era: str
) -> None:
    import httpx2
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    asking(project, era=era)

    async def over_http(url: str, token: str) -> tuple[list[str], list[Any]]:
        bearer = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=bearer, timeout=PATIENCE) as http:
            return await answered_by_the_sdk(streamable_http_client(url, http_client=http), mode)

    if way == "stdio":
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "aish", "serve", "p.yaml"], cwd=project.folder
        )
        messages, found = anyio.run(answered_by_the_sdk, stdio_client(parameters), mode)
    else:
        with HttpHub(project, "p.yaml") as hub:
            messages, found = anyio.run(over_http, hub.url, hub.token)
    filled, sampled, listed = found

    assert messages == ["s: Who are you?", "2 + 2?"]
    assert filled == ACCEPTED
    assert sampled["content"] == ANSWER["content"]
    assert listed["roots"][0]["uri"] == "file:///w"


def test_over_http_only_the_session_that_was_asked_can_answer(project: Project) -> None:
    alice, bob = "alice-token-" + "a1" * 20, "bob-token-" + "b2" * 20
    project.aish.env |= {"ALICE": alice, "BOB": bob}
    asking(project, rest="serve: {clients: {alice: {token_env: ALICE}, bob: {token_env: BOB}}}")
    arguments = {"method": "elicitation/create", "params": FORM}
    call = {"name": "s__ask_client", "arguments": arguments}
    stolen = {"action": "accept", "content": {"name": "Eve"}}
    with HttpHub(project, "p.yaml") as hub:
        owner, thief, mute = hub.client(alice), hub.client(bob), hub.client(bob)
        for client in (owner, thief, mute):
            client.begin(capabilities=ALL)
        with owner.opened("tools/call", call) as events:
            form = next(one.message for one in events if one.message.get("method"))
            answer = {"jsonrpc": "2.0", "id": form["id"]}
            unheard = thief.post({**answer, "result": stolen})
            foreign = thief.post({**answer, "result": stolen}, owner.session)
            taken = owner.post({**answer, "result": ACCEPTED})
            *_, last = events
        # Who takes no stream cannot be asked.
        plain = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call}
        declined = mute.post(plain, {"Accept": "application/json"}).json()["result"]
        meta = {f"{META}clientCapabilities": ALL}
        required = owner.modern("tools/call", {**call, "_meta": meta}).json()["result"]
        retry = {**call, "_meta": meta, **again(required, **ACCEPTED)}
        other = thief.modern("tools/call", retry).json()
        done = owner.modern("tools/call", retry).json()["result"]
        twice = owner.modern("tools/call", retry).json()

    assert form["params"]["message"] == "s: Who are you?"
    assert (unheard.status_code, taken.status_code) == (202, 202)
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, -32001)
    assert json.loads(text_of(last.message["result"])) == ACCEPTED
    assert json.loads(text_of(declined)) == {"action": "decline"}
    assert other["error"]["code"] == twice["error"]["code"] == -32602
    assert json.loads(text_of(done)) == ACCEPTED


def test_what_a_pack_asks_the_model_of_the_file_answers(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    helper = model_endpoint([text_reply("You had bad luck.")])
    project.aish.env["HELPER_URL"] = helper.base_url
    project.pipeline(
        """
        models: {helper: {base_url: "${HELPER_URL}", model: small}}
        mcp:
          servers:
            box: {pack: [shell], root: ., options: {shell: {explain: helper, sandbox: "off"}}}
          auto_approve: [box__shell_run]
        serve: {forward: [elicitation, sampling, roots]}
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        failed = hub.call("box__shell_run", {"command": "echo bad luck >&2; exit 3"})

    assert failed["structuredContent"]["explanation"] == "You had bad luck."
    assert "bad luck" in helper.asked[0]["messages"][1]["content"]
    assert all(one.get("method") != "sampling/createMessage" for one in hub.seen)


def test_pages_that_have_to_be_opened_first_are_told_to_the_client_of_the_call(
    project: Project,
) -> None:
    asking(project)
    page = {"mode": "url", "elicitationId": "e1", "message": "Sign in", "url": "https://a.example/"}
    rows = [page, {**page, "url": "javascript:alert(1)"}, FORM, "odd"]
    error = {"code": -32042, "message": "sign in first", "data": {"elicitations": rows}}
    refuse = {"name": "s__refuse", "arguments": {"error": error}}
    done = {"method": "notifications/elicitation/complete", "params": {"elicitationId": "e1"}}
    told = {"name": "s__tell_client", "arguments": done}
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as other:
            hub.begin(capabilities=ALL)
            other.begin()
            refused = hub.ask("tools/call", refuse)["error"]
            plain = other.ask("tools/call", refuse)["result"]
            meta = {f"{META}clientCapabilities": ALL}
            required = hub.ask("tools/call", {**refuse, "_meta": meta}, modern=True)["result"]
            retry = {**refuse, "_meta": meta, **again(required, action="accept")}
            still = hub.ask("tools/call", retry, modern=True)["result"]
            other.ask("tools/call", told)
            heard = hub.notification("notifications/elicitation/complete")
            other.ask("ping")
            unheard = [one for one in other.seen if "method" in one]

    shown = {**page, "message": "s: Sign in", "_meta": {"aish/server": "s"}}
    assert refused["code"] == -32042
    assert refused["message"] == "s: sign in first"
    assert refused["data"] == {"elicitations": [shown]}
    assert text_of(plain) == "[aish] s: tool dispatch failed: sign in first"
    (request,) = required["inputRequests"].values()
    del shown["elicitationId"]
    assert request == {"method": "elicitation/create", "params": shown}
    assert still["resultType"] == "input_required"
    assert heard["params"] == {"elicitationId": "e1"}
    assert unheard == []


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
def test_through_two_hubs_the_client_of_the_outer_one_is_asked(
    project: Project, protocol: str
) -> None:
    asking(project)
    inner = json.dumps([sys.executable, "-m", "aish", "serve", str(project.folder / "p.yaml")])
    project.pipeline(
        f"""
        mcp:
          servers: {{hub: {{command: {inner}, protocol: "{protocol}"}}}}
          auto_approve: ["hub__*"]
        """,
        name="outer.yaml",
    )
    call = {
        "name": "hub__s__ask_client",
        "arguments": {"method": "elicitation/create", "params": FORM},
    }
    with ServedHub(project, "outer.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        running = hub.request("tools/call", call)
        form = hub.notification("elicitation/create")
        respond(hub, form, result=ACCEPTED)
        told = hub.answer(running)["result"]
        meta = {f"{META}clientCapabilities": ALL}
        required = hub.ask("tools/call", {**call, "_meta": meta}, modern=True)["result"]
        retry = {**call, "_meta": meta, **again(required, **ACCEPTED)}
        done = hub.ask("tools/call", retry, modern=True)["result"]

    assert form["params"]["message"] == "hub: s: Who are you?"
    assert form["params"]["_meta"] == {"aish/server": "hub"}
    assert json.loads(text_of(told)) == json.loads(text_of(done)) == ACCEPTED


@pytest.mark.slow(reason="records and replays a session")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_clients_answer_is_recorded_and_another_answer_is_a_failed_call_of_a_replay(
    project: Project, era: str
) -> None:
    asking(project, era=era)
    method, other = "elicitation/create", {"action": "decline"}

    def converse(hub: ServedHub, answer: Message) -> list[Message]:
        hub.begin(capabilities=ALL)
        hub.tools()
        call = asked(hub, method, FORM)
        respond(hub, hub.notification(method), result=answer)
        told = hub.answer(call)["result"]
        required = modern(hub, method, FORM)["result"]
        return [told, modern(hub, method, FORM, **again(required, **answer))["result"]]

    with ServedHub(project, "p.yaml", "--record", "hub.yaml") as hub:
        recorded = converse(hub, ACCEPTED)
        hub.end_input()
        assert hub.finish() == 0, hub.stderr
    with ServedHub(project, "p.yaml", "--replay", "hub.yaml") as hub:
        replayed = converse(hub, ACCEPTED)
        hub.end_input()
        code = hub.finish()
    with ServedHub(project, "p.yaml", "--replay", "hub.yaml") as hub:
        missed = converse(hub, other)
        hub.end_input()
        assert hub.finish() == 6

    assert replayed == recorded
    assert code == 0
    assert json.loads(text_of(recorded[0])) == ACCEPTED
    for one in missed:
        assert one["isError"] is True
        assert "no recording matches" in text_of(one)


def test_a_server_that_asks_on_and_on_is_refused_at_last(project: Project) -> None:
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--asks-on", "--era", "legacy")}}}}}
          auto_approve: ["s__*"]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin(capabilities=ALL)
        hub.tools()
        call = asked(hub, "elicitation/create", FORM)
        forms = 0
        while "method" in (message := hub.until(lambda _: True)):
            forms += 1
            respond(hub, message, result=ACCEPTED)

    assert forms == 100
    assert message["id"] == call
    assert json.loads(text_of(message["result"])) == {"action": "decline"}


def test_another_process_with_the_same_state_folder_goes_on_with_a_stateless_server(
    project: Project,
) -> None:
    method = "elicitation/create"
    asking(project, era="modern")
    with ServedHub(project, "p.yaml") as one, ServedHub(project, "p.yaml") as other:
        required = modern(one, method, FORM)["result"]
        done = modern(other, method, FORM, **again(required, **ACCEPTED))["result"]
    asking(project, era="legacy")
    with ServedHub(project, "p.yaml") as one, ServedHub(project, "p.yaml") as other:
        # This server waits for the answer in the call that the first process has open.
        required = modern(one, method, FORM)["result"]
        gone = modern(other, method, FORM, **again(required, **ACCEPTED))["error"]
        still = modern(one, method, FORM, **again(required, **ACCEPTED))["result"]

    assert json.loads(text_of(done)) == json.loads(text_of(still)) == ACCEPTED
    assert gone["code"] == -32602
    assert "call again without `requestState`" in gone["message"]
