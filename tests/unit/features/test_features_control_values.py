"""Values of a live run are read and set over its socket, and hold from then on (A3)."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread
from model_endpoint import Gate, ModelEndpoint, Reply, hanging_reply, text_reply
from served_runs import SCOPES, served_run

from aish.engine.plan.options import RunOptions

pytestmark = pytest.mark.anyio

TWO = """
    steps:
      - {id: one, prompt: the first}
      - {id: two, needs: [one], prompt: the second}
    """
PRICED = {"price": {"input": 1, "output": 1}}
WAITING = "run: ['sleep', '60']"


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def gated(gate: Gate, text: str) -> Reply:
    """An answer that comes once the gate is open."""
    reply = text_reply(text)
    return reply.but(parts=(gate, *reply.parts))


async def test_all_values_are_listed_with_their_types(tmp_path: Path) -> None:
    text = "limits: {time: 1h, turns: 7, cost_usd: 2.5}\nprompt: say hello"
    with ModelEndpoint([hanging_reply(Gate())]) as end:
        async with served_run(tmp_path, text, uses=end, model=PRICED) as run:
            listed = await run.get("values")
            one = await run.get("values/limits.turns")

    assert listed == {
        "values": {
            "concurrency": {"value": 8, "type": "integer"},
            "limits.time": {"value": 3600.0, "type": "number"},
            "limits.cost_usd": {"value": 2.5, "type": "number"},
            "limits.tokens": {"value": None, "type": "integer"},
            "limits.tool_calls": {"value": None, "type": "integer"},
            "limits.turns": {"value": 7, "type": "integer"},
        }
    }
    assert one == {"path": "limits.turns", "value": 7, "type": "integer"}


@pytest.mark.parametrize(
    ("limit", "before", "after", "ends", "asked"),
    [
        ("turns", 1, 2, "ok", 2),
        ("turns", None, 1, "budget", 1),
        ("tokens", 150, None, "ok", 2),
        ("tokens", None, 50, "budget", 1),
        ("cost_usd", 0.00015, 0.5, "ok", 2),
        ("cost_usd", 5.0, 0.00005, "budget", 1),
    ],
)
async def test_a_limit_holds_from_the_next_request_on(
    tmp_path: Path, limit: str, before: Any, after: Any, ends: str, asked: int
) -> None:
    gate, given = Gate(), {} if before is None else {limit: before}
    text = f"limits: {json.dumps(given)}\n" + TWO.replace("\n    ", "\n")
    with ModelEndpoint([gated(gate, "one"), text_reply("two")]) as end:
        async with served_run(tmp_path, text, uses=end, model=PRICED) as run:
            await to_thread.run_sync(gate.wait_arrived)
            response = await run.put(f"limits.{limit}", after, before)
            gate.open()
            ended = await run.ended()

            assert response.status_code == 200, response.text
            assert response.json()["value"] == after
            assert (ended.name, len(end.asked)) == (ends, asked)
            (told,) = [one for one in run.journal if one["type"] == "value.set"]
            assert {key: told[key] for key in ("path", "value", "was", "by")} == {
                "path": f"limits.{limit}",
                "value": after,
                "was": before,
                "by": "read-answer-write",
            }


async def test_a_limit_of_calls_is_raised_before_they_are_made(tmp_path: Path) -> None:
    text = """
        limits: {tool_calls: 0}
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: ["repo__*"]}
        steps:
          - {id: one, prompt: the first}
          - {id: two, needs: [one], call: repo__dir_list, with: {path: .}}
        """
    gate = Gate()
    with ModelEndpoint([gated(gate, "one")]) as end:
        async with served_run(tmp_path, text, uses=end) as run:
            assert (await run.put("limits.tool_calls", 1, 0)).status_code == 200
            gate.open()
            ended = await run.ended()

    assert ended.name == "ok", ended.reason


async def test_a_time_limit_that_is_over_ends_the_run(tmp_path: Path) -> None:
    gate = Gate()
    with ModelEndpoint([hanging_reply(gate)]) as end:
        async with served_run(tmp_path, "limits: {time: 1h}\nprompt: say hello", uses=end) as run:
            await to_thread.run_sync(gate.wait_arrived)
            assert (await run.put("limits.time", None, 3600)).json()["value"] is None
            assert (await run.put("limits.time", "2h", None)).json()["value"] == 7200
            assert (await run.put("limits.time", 0.001, 7200)).status_code == 200
            ended = await run.ended()

    assert ended.name == "budget"
    assert ended.reason == "the time limit of 0.001 s is exceeded"


async def test_concurrency_narrows_and_widens_a_step_with_items(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(8)]
    text = """
        foreach: "'abcdefgh' | list"
        concurrency: 3
        prompt: "{{ item }}"
        """
    with ModelEndpoint([gated(gate, "done") for gate in gates]) as end:
        async with served_run(tmp_path, text, uses=end) as run:
            await to_thread.run_sync(end.wait_requests, 3)
            assert (await run.put("concurrency", 1, 8)).json()["value"] == 1
            for gate in gates[:3]:
                gate.open()
            await run.until("item.finished", 3)
            await to_thread.run_sync(end.wait_requests, 4)
            gates[3].open()
            await run.until("item.finished", 4)
            await to_thread.run_sync(end.wait_requests, 5)
            # One at a time: each begins after the end of the one before.
            assert [len(run.events(f"item.{one}")) for one in ("started", "finished")] == [5, 4]

            assert (await run.put("concurrency", 8, 1)).status_code == 200
            # Its own number holds again, and no more.
            await to_thread.run_sync(end.wait_requests, 7)
            assert len(run.events("item.started")) == 7
            for gate in gates:
                gate.open()
            ended = await run.ended()

    assert ended.name == "ok"


async def test_a_run_that_began_narrow_is_widened(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(4)]
    text = """
        foreach: "'abcd' | list"
        prompt: "{{ item }}"
        """
    with ModelEndpoint([gated(gate, "done") for gate in gates]) as end:
        async with served_run(tmp_path, text, uses=end, options=RunOptions(concurrency=1)) as run:
            await to_thread.run_sync(end.wait_requests, 1)
            assert (await run.put("concurrency", 3, 1)).status_code == 200
            await to_thread.run_sync(end.wait_requests, 3)
            for gate in gates:
                gate.open()
            ended = await run.ended()

    assert ended.name == "ok"


async def test_what_is_no_change_is_refused(tmp_path: Path) -> None:
    async with served_run(tmp_path, f"limits: {{turns: 5}}\n{WAITING}\nmcp: {ALLOWED}") as run:
        for path, body, code in REFUSED:
            refused = await run.asked("PUT", f"values/{path}", body)
            assert code_of(refused) == code, (path, body, refused.text)
        for path in UNLISTED:
            assert code_of(await run.asked("GET", f"values/{path}")) == (404, "unknown_value")
            put = await run.put(path, ["*"], None)
            assert code_of(put) in {(404, "unknown_value"), (404, "not_found")}, path
        values = (await run.get("values"))["values"]

        assert values["limits.turns"]["value"] == 5
        assert run.events("value.set") == []
        assert "rule.added" not in {one["type"] for one in run.journal}


ALLOWED = "{auto_approve: [shell__run]}"
INVALID = (422, "invalid_value")
NO_TURNS: list[Any] = [0, -1, 1.5, True, "9", [9], {}, 10**13]
BODY = (422, "invalid_body")
REFUSED: list[tuple[str, Any, tuple[int, str]]] = [
    ("limits.turns", {"value": 9, "was": 4}, (409, "changed")),
    ("limits.turns", {"value": 9, "was": None}, (409, "changed")),
    ("limits.turns", {"value": 9, "was": "5"}, (409, "changed")),
    ("limits.turns", {"value": 9, "was": True}, (409, "changed")),
    ("limits.turns", {"value": 9, "was": [5]}, (409, "changed")),
    ("limits.turns", {"value": 9}, BODY),
    ("limits.turns", {"was": 5}, BODY),
    ("limits.turns", {"value": 9, "was": 5, "by": "root"}, BODY),
    ("limits.turns", [9, 5], BODY),
    *(("limits.turns", {"value": value, "was": 5}, INVALID) for value in NO_TURNS),
    *(
        ("limits.cost_usd", {"value": value, "was": None}, INVALID)
        for value in (0, -0.5, False, "1", 1e300)
    ),
    *(
        ("limits.time", {"value": value, "was": None}, INVALID)
        for value in (0, -1, "soon", "10", True, "0s")
    ),
    *(("concurrency", {"value": value, "was": 8}, INVALID) for value in (0, None, 1.5, "2")),
]
UNLISTED = [
    "mcp.auto_approve",
    "mcp.deny",
    "auto_approve",
    "rules",
    "limits",
    "limits.",
    "limits.max_tool_depth",
    "on_ask",
    "model",
    "steps.one.limits.turns",
]


@pytest.mark.parametrize(
    ("model", "limit", "said"),
    [
        ({}, "cost_usd", "needs a price"),
        ({"params": {}}, "tokens", "needs `max_tokens`"),
        ({"params": {}, "price": {"input": 0, "output": 0}}, "tokens", "needs `max_tokens`"),
    ],
)
async def test_a_limit_under_which_nothing_could_be_asked_is_refused(
    tmp_path: Path, model: Any, limit: str, said: str
) -> None:
    with ModelEndpoint([hanging_reply(Gate())]) as end:
        async with served_run(tmp_path, "prompt: say hello", uses=end, model=model) as run:
            refused = await run.put(f"limits.{limit}", 1, None)

    assert code_of(refused) == INVALID
    assert said in refused.json()["error"]["message"]


async def test_values_and_commands_need_their_scope(tmp_path: Path) -> None:
    async with served_run(tmp_path, f"{WAITING}\nmcp: {ALLOWED}") as run:
        for scope in SCOPES:
            for method, path, body, needed in PATHS:
                found = await run.asked(method, path, body, (scope,))
                if scope == needed:
                    assert found.status_code in {200, 422}, found.text
                else:
                    assert code_of(found) == (403, "forbidden"), (path, scope)
        for method, path, body, _ in PATHS:
            refused = await run.asked(method, path, body, ())
            assert code_of(refused) == (401, "unauthorized"), path
        assert run.events("value.set") == []


PATHS: list[tuple[str, str, Any, str]] = [
    ("GET", "values", None, "read"),
    ("GET", "values/concurrency", None, "read"),
    ("PUT", "values/concurrency", {}, "write"),
    ("POST", "commands", {}, "write"),
]


async def test_a_program_writes_an_event_of_its_own(tmp_path: Path) -> None:
    async with served_run(tmp_path, f"{WAITING}\nmcp: {ALLOWED}", environ={"KEY": SECRET}) as run:
        data = {"version": "1.2", "notes": ["a", None, SECRET]}
        body = {"command": "event", "name": "deployed", "data": data}
        done = await run.post("commands", body)
        bare = await run.post("commands", {"command": "event", "name": "seen:1.x"})
        told = run.events("control.event")
        listed = (await run.get("events"))["events"]

        assert (done.json(), bare.json()) == ({"command": "event"},) * 2
        assert [(one["name"], one["data"]) for one in told] == [
            ("deployed", data),
            ("seen:1.x", None),
        ]
        assert {one["by"] for one in told} == {"read-answer-write"}
        assert [one for one in listed if one["type"] == "control.event"] == told


SECRET = "correct-horse-battery"


async def test_what_is_no_command_of_a_run_is_refused(tmp_path: Path) -> None:
    async with served_run(tmp_path, f"{WAITING}\nmcp: {ALLOWED}") as run:
        for body in NO_COMMANDS:
            assert code_of(await run.post("commands", body)) == BODY, body
        for body, needed in OF_OTHERS:
            refused = await run.post("commands", body)
            assert code_of(refused) == (422, "wrong_subject")
            said = f"`{body['command']}` is for {needed}, and this is a run"
            assert refused.json()["error"]["message"] == said
        assert (await run.get("status"))["state"] == "running"


NO_COMMANDS: list[Any] = [
    {},
    [],
    "stop",
    {"command": None},
    {"command": "quit"},
    {"command": "stop", "now": True},
    {"command": "event"},
    {"command": "event", "name": ""},
    {"command": "event", "name": "a b"},
    {"command": "event", "name": "x" * 101},
    {"command": "event", "name": "ok", "by": "root"},
]
OF_OTHERS: list[tuple[Any, str]] = [
    ({"command": "say", "text": "!ls"}, "a shell"),
    ({"command": "reset"}, "a shell"),
    ({"command": "connect", "url": "http://127.0.0.1:1/mcp"}, "a shell"),
    ({"command": "reload"}, "a server"),
]


async def test_a_run_that_has_ended_is_not_changed(tmp_path: Path) -> None:
    async with served_run(tmp_path, f"{WAITING}\nmcp: {ALLOWED}", lingers=True) as run:
        assert (await run.post("commands", {"command": "cancel"})).status_code == 200
        ended = await run.ended()
        late = [
            await run.put("concurrency", 4, 8),
            await run.post("commands", {"command": "event", "name": "late"}),
            await run.post("commands", {"command": "stop"}),
        ]

        assert ended.code == 143
        assert {code_of(one) for one in late} == {(409, "finished")}
        assert (await run.get("values/concurrency"))["value"] == 8
        assert run.journal[-1]["type"] == "run.finished"
