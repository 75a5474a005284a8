import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_emulators import (
    Legacy,
    LuaServer,
    McpEndpoint,
    Modern,
    accepted,
    error,
    events,
    result,
)
from mcp_recorded_scenes import RecordedScene
from mcp_scenes import Scene, command, http, play, registry, stdio
from model_endpoint import CUT, RESET, Gate, Recorded, Reply, json_reply
from samples import each_case
from waits import MovedClock, forward_after, waits_of


def connect(handler: Callable[[Recorded], Reply], **fields: Any) -> tuple[Any, Any, Any]:
    """The server's info, the notices and the endpoint, after one connection and one call."""
    with McpEndpoint(handler) as end:

        async def scene() -> tuple[Any, Any, Any]:
            async with registry(http(end.url, **fields)) as s:
                (info,) = s.registry.servers
                if info.state == "ready":
                    assert await s.text("web__add", a=1, b=2) == "3"
                return info, s.notices, end

        found: tuple[Any, Any, Any] = play(scene)
        return found


def test_a_stateless_server_is_found_and_told_everything_with_each_request() -> None:
    info, notices, end = connect(Modern())
    assert info.state == "ready"
    assert notices.said == []
    assert end.methods == ["server/discover", "tools/list", "tools/call"]
    for request in end.requests:
        meta = request.json["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "aish"
        assert "elicitation" in meta["io.modelcontextprotocol/clientCapabilities"]
        assert request.headers["mcp-protocol-version"] == "2026-07-28"
        assert request.headers["mcp-method"] == request.json["method"]
    assert end.requests[-1].headers["mcp-name"] == "add"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_server_of_the_handshake_era_is_found_without_a_word(version: str) -> None:
    info, notices, end = connect(Legacy(version=version))
    assert (info.state, notices.said) == ("ready", [])
    assert end.methods == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ]
    assert end.requests[-1].headers["mcp-protocol-version"] == version
    assert "mcp-protocol-version" not in end.requests[1].headers
    assert "_meta" not in end.requests[3].json.get("params", {})


@each_case(
    "refusal",
    [
        lambda r: error(r, -32601, "Method not found"),
        lambda r: error(r, -32602, "Invalid request parameters", status=400),
        lambda _: json_reply(400, {"error": "Bad Request: no session"}),
        lambda _: json_reply(500, {"oops": 1}),
        lambda _: Reply(status=404, framing="length"),
        lambda _: accepted(),
        lambda _: events(),
        lambda _: events(b"data: {", CUT),
        lambda _: Reply((b"<html>hello",)),
        lambda _: Reply((RESET,)),
        lambda r: result(r, {}),
        lambda r: result(r, {"supportedVersions": "2026-07-28"}),
        lambda r: error(r, -32022, "Unsupported", status=400, data={"supported": ["2025-11-25"]}),
    ],
)
def test_every_answer_of_an_old_server_to_the_probe_leads_to_the_handshake(refusal: Any) -> None:
    info, notices, end = connect(Legacy(server__discover=refusal))
    assert (info.state, notices.said) == ("ready", [])
    assert "initialize" in end.methods


def test_a_server_over_http_that_leaves_the_probe_unanswered_is_asked_to_initialize() -> None:
    """The case `http-discover-unanswered`."""
    clock, asked = MovedClock(), Gate()

    def silent(_: Recorded) -> Reply:
        clock.run_out(4.0)
        return Reply(before_head=asked)

    with McpEndpoint(Legacy(server__discover=silent)) as end:

        async def scene() -> str:
            async with registry(http(end.url, connect=8.0)) as s:
                return await s.text("web__add", a=1, b=2)

        run = partial(anyio.run, backend_options={"loop_factory": clock.loop})
        assert play(scene, run=run) == "3"
    assert end.methods[:2] == ["server/discover", "initialize"]


def test_a_refused_revision_is_replaced_by_one_the_server_names() -> None:
    refused: list[int] = []

    def once(request: Recorded) -> Any:
        if refused:
            return Modern().usual(request)
        refused.append(1)
        return error(request, -32022, "no", status=400, data={"supported": ["2026-07-28"]})

    info, notices, end = connect(Modern(server__discover=once))
    assert (info.state, notices.said) == ("ready", [])
    assert end.methods[:2] == ["server/discover", "server/discover"]


def test_a_revision_from_the_future_is_spoken_with_a_notice() -> None:
    about = {"supportedVersions": ["2027-01-01"], "capabilities": {}}
    three = {"content": [{"type": "text", "text": "3"}]}
    future = Modern(server__discover=lambda _: about, tools__call=lambda _: three)
    info, notices, end = connect(future)
    assert info.state == "ready"
    assert notices.said == [
        (
            "web",
            "protocol_mismatch",
            "protocol version mismatch (sent 2026-07-28, got 2027-01-01); proceeding",
        )
    ]
    assert end.requests[-1].headers["mcp-protocol-version"] == "2027-01-01"


def test_credentials_that_are_refused_end_the_probe_at_once() -> None:
    info, _, end = connect(lambda _: json_reply(401, {"error": "unauthorized"}))
    advice = "`auth_env` names the variable that has its token, and `oauth` gets one"
    assert info.error == f'HTTP 401: {{"error": "unauthorized"}}; {advice}'
    assert end.methods == ["server/discover"]


def test_a_pinned_revision_is_asked_for_directly() -> None:
    _, notices, end = connect(Legacy(version="2025-06-18"), protocol="2025-06-18")
    assert end.methods[0] == "initialize"
    assert end.requests[0].json["params"]["protocolVersion"] == "2025-06-18"
    assert notices.said == []


def test_a_pinned_revision_that_is_not_got_draws_the_notice() -> None:
    info, notices, _ = connect(Legacy(version="2025-03-26"), protocol="2025-11-25")
    assert info.state == "ready"
    assert notices.texts("protocol_mismatch") == [
        "protocol version mismatch (sent 2025-11-25, got 2025-03-26); proceeding"
    ]


def test_a_pinned_stateless_revision_falls_back_with_the_notice() -> None:
    info, notices, _ = connect(Legacy(), protocol="2026-07-28")
    assert info.state == "ready"
    assert notices.texts("protocol_mismatch") == [
        "protocol version mismatch (sent 2026-07-28, got 2025-11-25); proceeding"
    ]


def test_an_unknown_revision_of_the_handshake_era_draws_the_notice() -> None:
    info, notices, end = connect(Legacy(version="1999-01-01"), protocol="legacy")
    assert info.state == "ready"
    assert notices.texts("protocol_mismatch") == [
        "protocol version mismatch (sent 2025-11-25, got 1999-01-01); proceeding"
    ]
    assert end.requests[-1].headers["mcp-protocol-version"] == "1999-01-01"
    assert "mcp-method" not in end.requests[-1].headers


def test_a_server_that_names_the_revisions_it_has_gets_one_of_them() -> None:
    def picky(request: Recorded) -> Any:
        if request.json["params"]["protocolVersion"] != "2024-11-05":
            return error(request, -32602, "no", data={"supported": ["2024-11-05"]})
        return Legacy(version="2024-11-05").usual(request)

    info, _, _ = connect(Legacy(initialize=picky), protocol="legacy")
    assert info.state == "ready"


def test_a_server_without_a_word_for_notifications_is_fine() -> None:
    info, _, _ = connect(Legacy(notifications__initialized=lambda _: json_reply(500, {})))
    assert info.state == "ready"


def test_the_lua_server_is_used_without_a_complaint() -> None:
    with LuaServer("tok") as lua:

        async def scene() -> None:
            async with registry(http(lua.url, "lua", token="tok")) as s:
                assert s.names == ["lua__status", "lua__set_light"]
                assert await s.text("lua__status") == "all is well"
                assert s.notices.said == []

        play(scene)
        assert [verb for verb, _, _ in lua.requests] == ["POST"] * 5


def test_the_probe_is_bounded_by_the_servers_own_time_out() -> None:
    gate = Gate()
    with McpEndpoint(lambda _: Reply(status=202, framing="length", before_head=gate)) as end:

        async def scene() -> str | None:
            async with registry(http(end.url, connect=0.3)) as s:
                return s.registry.failure("web")

        assert play(scene) == "no answer within 0.3 s"


@pytest.mark.requirement("M1")
@pytest.mark.parametrize("era", ["both", "legacy", "modern"])
def test_both_eras_are_found_over_stdio(era: str) -> None:
    async def scene() -> None:
        async with registry(stdio("--era", era)) as s:
            assert await s.text("kid__add", a=1, b=2) == "3"
            assert s.notices.said == []

    play(scene)


SILENT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "server/discover":
        open("probed", "w").write("x")
        {what}
    if message["method"] == "initialize":
        result = {{"protocolVersion": "2025-06-18", "capabilities": {{}}}}
    elif message["method"] == "tools/list":
        result = {{"tools": [{{"name": "t"}}]}}
    if "id" in message:
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


@pytest.mark.parametrize("what", ["continue", "raise SystemExit('expected initialize')"])
def test_a_child_that_ignores_the_probe_or_dies_of_it_still_gets_its_handshake(
    what: str, tmp_path: Path
) -> None:
    script = tmp_path / "silent.py"
    script.write_text(SILENT.format(what=what))
    kid = command(sys.executable, str(script), connect=LONG, cwd=tmp_path)

    async def scene() -> None:
        async with registry(kid) as s:
            assert s.registry.failure("kid") is None
            assert s.names == ["kid__t"]

    play_probed(scene, tmp_path)


LONG = 60.0
"""Half of it is for the probe: that is reached only where the clock is put forward."""


def play_probed(scene: Callable[[], Awaitable[None]], folder: Path) -> None:
    """Play a scene in which the time of the probe is over once the child has got it."""
    probed = forward_after(folder / "probed", LONG / 2)

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probed)
            await scene()

    play(both, seconds=2 * LONG, run=waits_of)


# A server that is slow to answer has both questions before it answers them, in this order.
SLOW = """
import json, sys
asked = {{}}
def answer(number, **body):
    print(json.dumps({{"jsonrpc": "2.0", "id": number, **body}}), flush=True)
AGREES = {{"supportedVersions": ["2026-07-28"], "capabilities": {{}}}}
GREETED = {{"protocolVersion": "2025-06-18", "capabilities": {{}}}}
REFUSED = {{"code": -32600, "message": "the initialize handshake is not accepted"}}
UNKNOWN = {{"code": -32601, "message": "Method not found"}}
for line in sys.stdin:
    message = json.loads(line)
    asked[message["method"]] = message.get("id")
    if message["method"] == "server/discover":
        open("probed", "w").write("x")
    if message["method"] == "initialize":
        first, second = asked["server/discover"], message["id"]
        {answers}
    elif message["method"] == "tools/list":
        answer(message["id"], result={{"tools": [{{"name": "t"}}]}})
"""
AGREED_LATE = {
    "discover agrees": "answer(first, result=AGREES); answer(second, error=REFUSED)",
    "initialize is refused first": "answer(second, error=REFUSED); answer(first, result=AGREES)",
    "discover is refused": "answer(first, error=UNKNOWN); answer(second, result=GREETED)",
    "initialize is answered first": "answer(second, result=GREETED); answer(first, error=UNKNOWN)",
    "only initialize is answered": "answer(second, result=GREETED)",
    "only discover is answered": "answer(first, result=AGREES)",
}


@pytest.mark.parametrize("answers", AGREED_LATE.values(), ids=AGREED_LATE)
def test_a_child_that_is_slow_to_start_is_taken_by_whichever_answer_agrees(
    answers: str, tmp_path: Path
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW.format(answers=answers))
    recorded_scene = RecordedScene(tmp_path)

    async def names(scene: Scene) -> list[str]:
        await anyio.lowlevel.checkpoint()
        return scene.names

    kid = command(sys.executable, str(script), connect=LONG, cwd=tmp_path)
    probed = forward_after(tmp_path / "probed", LONG / 2)
    recorded = recorded_scene.record(names, kid, meanwhile=probed)
    played = recorded_scene.replay(names, command("/nonexistent/program"))

    assert recorded.value == played.value == ["kid__t"]
    assert recorded_scene.leftovers == []


def test_the_first_question_is_cancelled_after_the_handshake_is_over(tmp_path: Path) -> None:
    script, heard = tmp_path / "slow.py", tmp_path / "heard"
    note = f"open({str(heard)!r}, 'a').write(message['method'] + '\\n')\n    asked["
    script.write_text(SLOW.format(answers=AGREED_LATE["only initialize is answered"]))
    script.write_text(script.read_text("utf-8").replace("asked[", note, 1))

    async def scene() -> None:
        kid = command(sys.executable, str(script), connect=LONG, cwd=tmp_path)
        async with registry(kid) as s:
            assert s.names == ["kid__t"]

    play_probed(scene, tmp_path)
    assert heard.read_text("utf-8").split() == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "notifications/cancelled",
        "tools/list",
    ]


def test_a_child_that_refuses_both_questions_is_told_of_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    answers = "answer(second, error=REFUSED); answer(first, error=UNKNOWN)"
    script.write_text(SLOW.format(answers=answers))

    async def scene() -> None:
        kid = command(sys.executable, str(script), connect=LONG, cwd=tmp_path)
        async with registry(kid) as s:
            assert s.registry.failure("kid") == (
                "it answers `initialize` with an error: the initialize handshake is not accepted"
            )
            (said,) = s.notices.said
            assert said[:2] == ("kid", "handshake_refused")

    play_probed(scene, tmp_path)
