"""Every path of the control API, older ones too: scope, shape, answers, errors (A3, A4)."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from control_shapes import ASKED, COMMAND, ERROR, OK, ONE_VALUE, QUESTION, READS, RESPONDED, check
from model_endpoint import Gate, ModelEndpoint, Reply, text_reply, tool_reply
from served_runs import SCOPES, ServedRun, served_run

from aish.features.control import asks

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery"
ASKING = """
    secrets: [NOTE_KEY]
    mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}
    on_ask: wait
    on_denied: continue
    limits: {turns: 9}
    steps:
      - {id: write, prompt: Write it with correct-horse-battery}
      - {id: last, call: repo__file_read, needs: [write], with: {path: p.yaml}}
    """
READ = tool_reply([("c1", "repo__file_read", json.dumps({"path": "notes.txt"}))])
WRITE = tool_reply([("c2", "repo__file_write", json.dumps({"path": "x", "content": SECRET}))])
SLEEPING = "run: [sleep, '60']\nmcp: {auto_approve: [shell__run]}"
IN_ORDER = "read-answer-write"


def code_of(response: httpx.Response) -> tuple[int, str]:
    check(response.json(), ERROR)
    return response.status_code, response.json()["error"]["code"]


def gated(gate: Gate, reply: Reply) -> Reply:
    return reply.but(parts=(gate, *reply.parts))


@asynccontextmanager
async def asking_run(folder: Path, *replies: Reply, **options: Any) -> AsyncGenerator[ServedRun]:
    """A run whose model has read a file, and waits to write one."""
    (folder / "notes.txt").write_text(f"key: {SECRET}\n")
    with ModelEndpoint([READ, WRITE, *replies]) as end:
        environ = {"NOTE_KEY": SECRET}
        async with served_run(folder, ASKING, uses=end, environ=environ, **options) as run:
            await run.until("approval.asked")
            yield run


async def test_every_path_has_its_shape_and_no_secret(tmp_path: Path) -> None:
    gate = Gate()
    async with asking_run(tmp_path, gated(gate, text_reply(f"done with {SECRET}"))) as run:
        said = []
        for path, shape in READS.items():
            found = await run.asked("GET", path)
            assert found.status_code == 200, (path, found.text)
            check(found.json(), shape)
            said.append(found.text)
        (question,) = (await run.get("approvals"))["pending"]
        said.append((await run.asked("GET", f"approvals/{question['id']}")).text)
        check(json.loads(said[-1]), QUESTION)
        given = {"answer": "deny", "note": SECRET}
        answered = await run.post(f"approvals/{question['id']}", given)
        check(answered.json(), QUESTION)
        # A key that is a secret too.
        event = {"command": "event", "name": "n", "data": {SECRET: [SECRET]}}
        check((await run.post("commands", event)).json(), COMMAND)
        check((await run.put("limits.turns", 8, 9)).json(), ONE_VALUE)
        async with anyio.create_task_group() as tasks:

            async def ask(path: str, shape: Any) -> None:
                asked = await run.post(path, {"text": f"is {SECRET} right?"})
                check(asked.json(), shape)
                assert asked.json()["response"] == {"it is": "<secret:NOTE_KEY>"}

            for number, (path, shape) in enumerate({"ask": ASKED, "/api/ask": ANSWERED}.items()):
                tasks.start_soon(ask, path, shape)
                asked = await run.until("ask_received", number + 1)
                body = {"request_id": asked[-1]["request_id"], "response": {"it is": SECRET}}
                where = f"{path}/respond"
                check((await run.post(where, body)).json(), OK if number else RESPONDED)
        assert asked[-1]["text"] == "is <secret:NOTE_KEY> right?"
        said += [(await run.asked("GET", path)).text for path in READS]
        gate.open()
        await run.ended()
        said += [(run.folder / "events.jsonl").read_text()]

    assert SECRET not in "".join(said)
    assert "<secret:NOTE_KEY>" in "".join(said)


ANSWERED = {
    "type": "object",
    "properties": {"status": {"const": "ok"}, "response": {}},
    "required": ["status", "response"],
    "additionalProperties": False,
}


async def test_every_path_needs_its_scope(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        await run.until("tool.started")
        before = len(run.told)
        wanted = [("GET", path, None, "read") for path in READS] + CHANGING
        for method, path, body, needed in wanted:
            for scope in SCOPES:
                if scope != needed:
                    refused = await run.asked(method, path, body, (scope,))
                    assert code_of(refused) == (403, "forbidden"), (path, scope)
            refused = await run.asked(method, path, body, ())
            assert code_of(refused) == (401, "unauthorized"), path
            found = await run.asked(method, path, body, (needed,))
            assert found.status_code in {200, 404, 409, 422}, (path, found.text)
        alive = await run.asked("GET", "/status", None, ())

        check(alive.json(), OK)
        # Nothing was done, and all that was refused is told.
        kinds = {one["type"] for one in map(_plain, run.told[before:])}
        assert kinds == {"control.called"}
        assert (await run.get("status"))["state"] == "running"


def _plain(stamped: Any) -> dict[str, Any]:
    from aish.core.events import to_object

    return to_object(stamped)


CHANGING: list[tuple[str, str, Any, str]] = [
    ("PUT", "/api/v1/values/concurrency", {}, "write"),
    ("POST", "/api/v1/commands", {}, "write"),
    ("POST", "/api/v1/ask", {}, "write"),
    ("POST", "/api/v1/ask/respond", {}, "answer"),
    ("POST", f"/api/v1/approvals/{'0' * 32}", {}, "answer"),
    ("POST", "/api/project", {}, "write"),
    ("POST", "/api/session", {}, "write"),
    ("POST", "/api/gui", {}, "write"),
    ("POST", "/api/ask/respond", {}, "answer"),
]


async def test_the_session_tells_who_said_what(tmp_path: Path) -> None:
    # It may be over before it is asked.
    async with asking_run(tmp_path, text_reply("all is done"), lingers=True) as run:
        (question,) = (await run.get("approvals"))["pending"]
        await run.post(f"approvals/{question['id']}", {"answer": "deny", "note": "not now"})
        await run.until("turn.finished", 3)
        entries = (await run.get("session"))["entries"]

    assert [(one["role"], one["step"]) for one in entries] == [
        ("user", "write"),
        ("assistant", "write"),
        ("tool", "write"),
        ("assistant", "write"),
        ("tool", "write"),
        ("assistant", "write"),
    ]
    user, first, read, second, denied, last = entries
    assert user["text"] == "Write it with <secret:NOTE_KEY>"
    assert [call["name"] for call in first["calls"]] == ["repo__file_read"]
    assert (read["tool"], "key: <secret:NOTE_KEY>" in read["text"]) == ("repo__file_read", True)
    assert json.loads(second["calls"][0]["arguments"])["content"] == "<secret:NOTE_KEY>"
    assert "not now" in denied["text"]
    assert (last["text"], last["calls"], last["characters"]) == ("all is done", [], 11)


async def test_the_figures_count_calls_and_answers(tmp_path: Path) -> None:
    async with asking_run(tmp_path, text_reply("done"), lingers=True) as run:
        (question,) = (await run.get("approvals"))["pending"]
        await run.post(f"approvals/{question['id']}", {"answer": "deny"})
        await run.until("turn.finished", 3)
        found = await run.get("performance")

    tool = found["tools"]["repo__file_read"]
    model = found["models"]["m"]
    assert tool["calls"] >= 1
    assert (found["tools"]["repo__file_write"]["errors"], tool["errors"]) == (1, 0)
    assert model["answers"] == 3
    assert model["input_tokens"] == 21
    assert model["first_token_ms"]["max"] <= model["duration_ms"]["max"]
    assert found["rss_mb"] > 1
    assert found["uptime_seconds"] > 0


async def test_older_status_paths_follow_the_run(tmp_path: Path) -> None:
    gate = Gate()
    stream = text_reply("so far", pieces=["so ", "far"])
    begin, more, *rest = stream.parts
    piece = stream.but(parts=(begin, more, gate, *rest))
    with ModelEndpoint([READ, piece]) as end:
        (tmp_path / "notes.txt").write_text("a note")
        async with served_run(tmp_path, ASKING, uses=end, environ={"NOTE_KEY": SECRET}) as run:
            await run.until("text.delta")
            thinking = await run.get("/api/gui/mma_status")
            diagnostics = await run.get("/api/gui/diagnostics")
            gate.open()
            await run.ended()

    assert diagnostics == {"thinking": True, "live": False, "prior": False}
    assert thinking["mma_streams"]["write"].startswith("so")
    assert (thinking["ai_status"], thinking["mma_status"]) == ("thinking", "running")
    assert (thinking["active_tier"], thinking["active_track"]) == ("prompt", "p")
    assert thinking["active_tickets"] == ["write"]
    assert [(one["id"], one["status"]) for one in thinking["tracks"]] == [
        ("write", "running"),
        ("last", "pending"),
    ]
    assert not thinking["pending_approval"]


@pytest.mark.requirement("A4")
async def test_older_status_paths_tell_of_an_open_question_and_of_a_tool(tmp_path: Path) -> None:
    async with asking_run(tmp_path) as run:
        asking = await run.get("/api/gui/mma_status")
    assert (asking["pending_tool_approval"], asking["pending_approval"]) == (True, True)
    assert (asking["mma_status"], asking["ai_status"]) == ("waiting", "waiting for an answer")

    async with served_run(tmp_path, SLEEPING, lingers=True) as run:
        await run.until("tool.started")
        diagnostics = await run.get("/api/gui/diagnostics")
        assert (await run.get("/api/gui/mma_status"))["ai_status"] == "running a tool"
        await run.post("commands", {"command": "cancel"})
        await run.ended()
        over = await run.get("/api/gui/mma_status")
        after = await run.get("/api/gui/diagnostics")

    assert diagnostics == {"thinking": False, "live": True, "prior": False}
    assert after == {"thinking": False, "live": False, "prior": False}
    assert (over["mma_status"], over["ai_status"]) == ("finished", "error: interrupted")
    assert (over["active_tier"], over["active_tickets"]) == (None, [])


async def test_older_events_come_once_to_each_token(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        await run.until("tool.started")
        all_of = (await run.get("events"))["events"]
        first = (await run.get("/api/events"))["events"]
        assert first == all_of
        assert (await run.get("/api/events"))["events"] == []
        await run.post("commands", {"command": "event", "name": "later"})
        other = await run.asked("GET", "/api/events", None, ("read",))
        second = (await run.get("/api/events"))["events"]

    assert [one["type"] for one in second] == ["control.event", "control.called"]
    assert other.json()["events"] == [*all_of, *second]


async def test_the_project_is_read_and_all_or_nothing_of_it_is_set(tmp_path: Path) -> None:
    text = f"limits: {{turns: 9, time: 10m}}\n{SLEEPING}"
    async with served_run(tmp_path, text) as run:
        project = (await run.get("/api/project"))["project"]
        same = await run.post("/api/project", {"project": project})
        assert (same.status_code, same.json()) == (200, {"status": "updated"})
        assert run.events("value.set") == []

        limits = {**project["limits"], "turns": 5, "time": 1200}
        done = await run.post(
            "/api/project", {"project": {**project, "limits": limits, "concurrency": 3}}
        )
        assert done.status_code == 200, done.text
        assert [(one["path"], one["value"], one["was"]) for one in run.events("value.set")] == [
            ("limits.turns", 5, 9),
            ("limits.time", 1200.0, 600.0),
            ("concurrency", 3, 8),
        ]
        changed = (await run.get("/api/project"))["project"]
        assert changed == {**project, "limits": limits, "concurrency": 3}

        for wanted, code in REFUSED_PROJECTS:
            refused = await run.post("/api/project", wanted)
            assert code_of(refused) == (422, code), (wanted, refused.text)
        assert (await run.get("/api/project"))["project"] == changed
        assert len(run.events("value.set")) == 3


REFUSED_PROJECTS: list[tuple[Any, str]] = [
    ({}, "invalid_body"),
    ([], "invalid_body"),
    ({"project": []}, "invalid_body"),
    ({"project": {}, "limits": {}}, "invalid_body"),
    ({"project": {"limits": {"turns": 4}, "on_ask": "wait"}}, "invalid_body"),
    ({"project": {"limits": {"turns": 4}, "mcp": {"auto_approve": ["*"]}}}, "invalid_body"),
    ({"project": {"mcp": {"deny": []}}}, "invalid_body"),
    ({"project": {"limits": []}}, "invalid_body"),
    ({"project": {"limits": {"turns": 4, "tokens": "many"}}}, "invalid_value"),
    ({"project": {"limits": {"turns": 4, "time": "soon"}}}, "invalid_value"),
    ({"project": {"concurrency": 2, "limits": {"turns": 0}}}, "invalid_value"),
]


async def test_older_actions_set_values_and_push_events(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        for body in (
            {"action": "set_value", "item": "limits.turns", "value": 4},
            {"action": "push_event", "item": "user_note", "value": {"a": 1}},
        ):
            done = await run.post("/api/gui", body)
            assert (done.status_code, done.json()) == (200, {"status": "queued"}), done.text
        for body, code in REFUSED_ACTIONS:
            assert code_of(await run.post("/api/gui", body)) == (422, code), body
        value = await run.get("/api/gui/value/limits.turns")
        by_query = await run.get("/api/gui/value?item=limits.turns")
        everything = await run.get("/api/gui/value")
        missing = await run.asked("GET", "/api/gui/value/ai_input")
        (pushed,) = run.events("control.event")

    assert value == by_query == {"value": 4}
    assert everything["value"]["limits.turns"] == 4
    assert code_of(missing) == (404, "unknown_value")
    assert (pushed["name"], pushed["data"], pushed["by"]) == ("user_note", {"a": 1}, IN_ORDER)


REFUSED_ACTIONS: list[tuple[Any, str]] = [
    ({}, "invalid_body"),
    ("click", "invalid_body"),
    ({"action": "click", "item": "btn_approve"}, "invalid_body"),
    ({"action": "click", "item": "btn_reset_session"}, "wrong_subject"),
    ({"action": "set_value", "item": "mcp.auto_approve", "value": ["*"]}, "invalid_body"),
    ({"action": "set_value", "item": "limits.turns", "value": "4"}, "invalid_value"),
    ({"action": "push_event", "item": "two words"}, "invalid_body"),
    ({"action": "select_tab", "item": "tab"}, "invalid_body"),
    ({"action": "set_value", "item": "limits.turns", "value": 4, "was": 9}, "invalid_body"),
    ({"action": "set_value", "item": 1}, "invalid_body"),
]


async def test_the_conversation_of_a_run_is_not_replaced(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        entries = [{"role": "user", "text": "hello"}]
        for body in ({"session": {"entries": entries}}, {"entries": entries}):
            assert code_of(await run.post("/api/session", body)) == (409, "wrong_subject")
        for bad in NO_CONVERSATIONS:
            assert code_of(await run.post("/api/session", bad)) == (422, "invalid_body"), bad


NO_CONVERSATIONS: list[Any] = [
    {},
    [],
    {"session": {}},
    {"entries": ["x"]},
    {"entries": [{"role": "user"}]},
    {"entries": [{"role": 1, "text": ""}]},
]


async def test_of_several_responses_the_first_one_counts(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def ask() -> None:
            body = {"title": "Go?", "text": "to production", "data": [1, None], "timeout": 600}
            answers.append(await run.post("ask", body))

        tasks.start_soon(ask)
        (asked,) = await run.until("ask_received")
        body = {"request_id": asked["request_id"], "response": "yes"}
        assert (await run.asked("POST", "ask/respond", body, ("answer",))).status_code == 200
        assert code_of(await run.post("ask/respond", body)) == (409, "decided")
        assert code_of(await run.post("/api/ask/respond", body)) == (404, "decided")
        await run.until("control.called", 3)
        unknown = {"request_id": "0" * 32, "response": None}
        assert code_of(await run.post("ask/respond", unknown)) == (404, "unknown_question")
        assert code_of(await run.post("/api/ask/respond", unknown)) == (404, "unknown_question")
        assert (asked["title"], asked["text"], asked["data"]) == ("Go?", "to production", [1, None])
        assert asked["by"] == IN_ORDER
        for bad in BAD_RESPONSES:
            assert code_of(await run.post("ask/respond", bad)) == (422, "invalid_body"), bad
        (ended,) = [one for one in run.journal if one["type"] == "ask_ended"]

    assert answers[0].json() == {"request_id": asked["request_id"], "response": "yes"}
    assert (ended["end"], ended["response"], ended["by"]) == ("answered", "yes", "answer")


@pytest.mark.parametrize("path", ["ask", "/api/ask"])
async def test_a_person_answers_the_question_of_a_program_like_one_about_a_call(
    tmp_path: Path, path: str
) -> None:
    async with served_run(tmp_path, SLEEPING) as run, anyio.create_task_group() as tasks:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await run.post(path, {"title": "Go?", "text": "to production"}))

        tasks.start_soon(ask)
        await run.until("ask_received")
        (question,) = (await run.get("approvals"))["pending"]
        status, older = await run.get("status"), await run.get("/api/gui/mma_status")
        shown = await run.get(f"approvals/{question['id']}/call")
        where = f"approvals/{question['id']}"
        digest = question["digest"]
        other = await run.post(where, {"answer": "approve", "digest": "0" * 64})
        always = await run.post(where, {"answer": "always", "digest": digest})
        given = {"answer": "deny", "digest": digest, "note": "on Monday", "way": "page"}
        answered = await run.post(where, given)
        again = await run.post(where, given)
        (ended,) = await run.until("ask_ended")
        left = await run.get("approvals")

    check(question, QUESTION)
    assert (status["state"], status["pending"]) == ("waiting", [question["id"]])
    assert (older["pending_tool_approval"], older["pending_approval"]) == (True, True)
    assert shown["facts"] == [["why", f"{IN_ORDER} asks"]]
    assert code_of(other) == (422, "other_digest")
    assert code_of(always) == (422, "not_offered")
    check(answered.json(), QUESTION)
    assert (answered.json()["state"], answered.json()["answer"]["note"]) == ("denied", "on Monday")
    assert code_of(again) == (409, "decided")
    assert (ended["by"], ended["way"]) == (IN_ORDER, "page")
    assert answers[0].json()["response"] == {"approved": False, "note": "on Monday"}
    assert [one["state"] for one in left["decided"]] == ["denied"]


BAD_RESPONSES: list[Any] = [{}, [], {"request_id": 1, "response": 1}, {"request_id": "a"}]
BAD_QUESTIONS: list[Any] = [
    {},
    [],
    {"data": 1},
    {"text": ""},
    {"text": 1},
    {"title": "x" * 201},
    {"text": "x", "timeout": 0},
    {"text": "x", "timeout": 3601},
    {"text": "x", "timeout": True},
    {"text": "x", "timeout": "60s"},
    {"text": "x", "to": "ada"},
]


async def test_a_question_that_nobody_responds_to_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aish.features.control.older_paths.SECONDS", 0.01)
    assert asks.SECONDS == 60
    async with served_run(tmp_path, SLEEPING) as run:
        for bad in BAD_QUESTIONS:
            assert code_of(await run.post("ask", bad)) == (422, "invalid_body"), bad
        assert run.events("ask_received") == []
        late = await run.post("ask", {"text": "anybody?", "timeout": 0.01})
        older = await run.post("/api/ask", {"question": "anybody?"})
        first, second = run.events("ask_received")
        for asked, where, code in (
            (first, "ask/respond", (410, "expired")),
            (second, "/api/ask/respond", (404, "expired")),
        ):
            body = {"request_id": asked["request_id"], "response": 1}
            assert code_of(await run.post(where, body)) == code

        assert code_of(late) == code_of(older) == (504, "unanswered")
        assert second["data"] == {"question": "anybody?"}
        assert [one["end"] for one in run.events("ask_ended")] == ["expired", "expired"]


async def test_who_asks_and_goes_away_withdraws_the_question(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        with anyio.move_on_after(60):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    await run.asked("POST", "ask", {"text": "who?"}, ("write",))

                tasks.start_soon(ask)
                (asked,) = await run.until("ask_received")
                tasks.cancel_scope.cancel()
        (ended,) = await run.until("ask_ended")
        body = {"request_id": asked["request_id"], "response": 1}
        late = await run.post("ask/respond", body)

        assert (ended["end"], ended["response"], ended["by"]) == ("withdrawn", None, "")
        assert code_of(late) == (410, "withdrawn")


async def test_the_end_of_the_run_ends_a_wait_for_a_response(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run, anyio.create_task_group() as tasks:
        found: list[httpx.Response] = []

        async def ask() -> None:
            found.append(await run.post("ask", {"text": "who?"}))

        tasks.start_soon(ask)
        await run.until("ask_received")
        await to_thread.run_sync(lambda: None)
        await run.post("commands", {"command": "cancel"})

    assert code_of(found[0]) == (409, "finished")
