import json
import socket
from functools import partial
from typing import Any

import anyio
import pytest
from mcp_dynamic_registry import dynamic_registry
from mcp_emulators import (
    Legacy,
    LuaServer,
    McpEndpoint,
    Modern,
    accepted,
    error,
    event,
    events,
    result,
)
from mcp_peers import free_port
from mcp_scenes import Scene, http, play, registry
from model_endpoint import CUT, RESET, Gate, Recorded, Reply, json_reply

from aish.mcp.transports.streamable import UNANSWERED

SUM = {"content": [{"type": "text", "text": "3"}]}


def answer(request: Recorded, value: Any = SUM) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.json["id"], "result": value}


def called(handler: Any, **fields: Any) -> tuple[Any, McpEndpoint, Any]:
    """What a call comes to; the endpoint and the notices."""
    with McpEndpoint(handler) as end:

        async def scene() -> tuple[Any, Any]:
            async with registry(http(end.url, **fields)) as s:
                assert s.registry.failure("web") is None
                return await s.call("web__add", a=1, b=2), s.notices

        found, notices = play(scene)
        if isinstance(handler, Legacy) and handler.session:
            # A client that is done does not wait long for the answer to its last request.
            end.wait_until(lambda: end.requests[-1].method == "DELETE")
        return found, end, notices


def failure_of(url: str, **fields: Any) -> str:
    async def scene() -> str | None:
        async with registry(http(url, **fields)) as s:
            return s.registry.failure("web")

    found = play(scene)
    assert isinstance(found, str)
    return found


def test_an_answer_may_come_as_a_stream_of_events_among_others() -> None:
    def stream(request: Recorded) -> Reply:
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
        return events(
            b": ping\n\n", event(note), event("no JSON"), event(answer(request), name="message")
        )

    found, end, _ = called(Legacy(tools__call=stream))
    assert found.content == "3"
    assert end.connections == 1, "the connection is used again"


@pytest.mark.parametrize("part", [CUT, event("{}")])
def test_a_stream_that_ends_without_the_answer_is_a_transport_error(part: Any) -> None:
    found, _, _ = called(Legacy(tools__call=lambda _: events(event("{}"), part)))
    assert found.kind == "transport_error"
    assert found.content.startswith("[aish] tool transport error: the ")


def refused(*replies: Reply) -> Any:
    """Calls get these replies, and then their answer."""
    waiting = list(replies)
    return Legacy(tools__call=lambda request: waiting.pop(0) if waiting else result(request, SUM))


@pytest.mark.parametrize(
    "refusal",
    [
        json_reply(429, {"error": "slow down"}, {"retry-after": "0.01"}),
        json_reply(503, {"error": "starting"}, {"retry-after-ms": "10"}),
        json_reply(429, {"error": "m"}, {"x-gateway-retry-after": "0.01"}),
        json_reply(
            429, {"error": "m"}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "10ms"}
        ),
        json_reply(429, {"error": {"message": "Please try again in 10ms."}}),
    ],
    ids=["retry-after", "milliseconds", "gateway", "reset", "words"],
)
def test_a_call_that_is_refused_for_load_is_made_again_when_the_server_says(refusal: Reply) -> None:
    """B5 of issue 27: a refused call was not made."""
    found, end, _ = called(refused(refusal, refusal))
    assert found.content == "3"
    assert end.methods.count("tools/call") == 3


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        (json_reply(429, {"error": "slow down"}), 1),
        (json_reply(429, {"error": "slow down"}, {"retry-after": "3600"}), 1),
        (json_reply(429, {"error": "slow down"}, {"retry-after": "50"}), 1),
        (json_reply(500, {"error": "down"}, {"retry-after": "0.01"}), 1),
        (json_reply(503, {"error": "down"}, {"retry-after": "0"}), 5),
    ],
    ids=["no wait named", "too late", "later than the call may last", "another status", "for ever"],
)
def test_a_call_is_not_made_again_without_end_or_reason(refusal: Reply, tries: int) -> None:
    found, end, _ = called(refused(*[refusal] * 9), call=40.0)
    assert found.kind == "transport_error"
    assert f"HTTP {refusal.status}" in found.content
    assert "down" in found.content
    assert end.methods.count("tools/call") == tries


def test_a_stream_that_broke_off_is_resumed_where_it_stopped() -> None:
    waiting: list[dict[str, Any]] = []

    def broken(request: Recorded) -> Reply:
        waiting.append(answer(request))
        return events(b"id: e-1\nretry: 1\ndata: \n\n")

    def resumed(request: Recorded) -> Reply:
        assert request.headers["last-event-id"] == "e-1"
        return events(event(waiting[0], id="e-2"))

    found, _, _ = called(Legacy(tools__call=broken, GET=resumed))
    assert found.content == "3"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (accepted(), "HTTP 202 without an answer to a request"),
        (Reply((b"<html>hello",), framing="length"), "the answer is not JSON: a page of HTML"),
        (Reply((b'{"error":"x"}',), framing="length"), "the answer is not a JSON-RPC message"),
        (json_reply(200, {"jsonrpc": "2.0", "id": 99, "result": {}}), "belongs to another request"),
        (json_reply(200, {}, {"content-encoding": "gzip"}), "the server compressed its answer"),
        (Reply((b'{"jso', CUT)), "the connection was lost"),
        (Reply((RESET,)), "the connection was lost"),
    ],
)
def test_an_answer_that_is_none_is_a_transport_error(reply: Reply, why: str) -> None:
    found, _, _ = called(Legacy(tools__call=lambda _: reply))
    assert found.kind == "transport_error"
    assert found.content.startswith("[aish] tool transport error: ")
    assert why in found.content


def test_a_body_without_end_is_cut_off() -> None:
    endless = Reply(b"x" * 1024 * 1024 for _ in range(64))
    found, _, _ = called(Legacy(tools__call=lambda _: endless))
    assert "larger than 33554432 bytes" in found.content


def test_an_event_without_end_is_cut_off() -> None:
    endless = events(b"data: ", *(b"x" * 1024 * 1024 for _ in range(64)))
    found, _, _ = called(Legacy(tools__call=lambda _: endless))
    assert "the stream of events is larger than is allowed" in found.content


def test_a_batch_is_an_answer_too() -> None:
    def batch(request: Recorded) -> Reply:
        note = {"jsonrpc": "2.0", "method": "notifications/message"}
        return json_reply(200, [note, answer(request)])

    assert called(Legacy(tools__call=batch))[0].content == "3"


def test_a_session_is_kept_and_ended() -> None:
    _, end, _ = called(Legacy(session="s-1"))
    later = [r for r in end.requests if r.headers.get("mcp-session-id") == "s-1"]
    assert [r.method for r in end.requests][-1] == "DELETE"
    assert end.requests[-1].headers["mcp-protocol-version"] == "2025-11-25"
    assert "initialize" not in [r.json["method"] for r in later if r.method == "POST"]
    assert len(later) == len(end.requests) - 2


NO_SESSION = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
}


@pytest.mark.parametrize(
    "refusal",
    [
        json_reply(404, {"error": "no such session"}),
        Reply(status=404, framing="length"),
        json_reply(400, NO_SESSION),
        json_reply(
            400, {**NO_SESSION, "error": {"code": -32000, "message": "Server not initialized"}}
        ),
        Reply((b"Invalid session id",), status=400, framing="length"),
        json_reply(410, NO_SESSION),
    ],
)
def test_a_session_the_server_forgot_is_begun_again_and_the_call_made(refusal: Reply) -> None:
    """404 is what the protocol says, 400 the case `http-session-lost-400`."""
    sessions: list[str] = []

    class Forgetful(Legacy):
        def usual(self, request: Recorded) -> Reply:
            if request.method == "POST" and request.json["method"] == "initialize":
                self.session = f"s-{len(sessions)}"
                sessions.append(self.session)
            return super().usual(request)

        def __call__(self, request: Recorded) -> Reply:
            old = request.headers.get("mcp-session-id") == "s-0"
            if old and request.method == "POST" and request.json["method"] == "tools/call":
                return refusal
            return super().__call__(request)

    found, end, _ = called(Forgetful())
    assert found.content == "3"
    assert end.methods.count("initialize") == 2
    assert end.methods.count("tools/call") == 2


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("restarts", [True, False], ids=["in a run", "in the hub"])
def test_a_hub_looks_whether_a_400_without_a_reason_is_of_its_session(
    *, restarts: bool, forgets: bool
) -> None:
    server = Legacy(session="s-0")
    refusal = json_reply(400, {"error": "bad request"})

    def answers(request: Recorded) -> Reply:
        method = request.json["method"] if request.method == "POST" else ""
        if method == "initialize" and server.session == "gone":
            server.session = "s-1"
        if request.headers.get("mcp-session-id") == "s-0":
            if method == "tools/call" or (method == "ping" and forgets):
                server.session = "gone"
                return refusal
            if method == "ping":
                return result(request, {})
        return server(request)

    async def scene(end: McpEndpoint) -> str:
        async with dynamic_registry() as s:
            s.dynamic_registry.restarts = restarts
            await s.dynamic_registry.connect(http(end.url, protocol="legacy"))
            return (await s.call("web__add", a=1, b=2)).content

    with McpEndpoint(answers) as end:
        said = play(lambda: scene(end))
    is_found = forgets and not restarts
    assert said == (
        "3" if is_found else '[aish] tool transport error: HTTP 400: {"error": "bad request"}'
    )
    assert end.methods.count("initialize") == 1 + is_found


def test_a_404_without_a_session_is_a_failure() -> None:
    found, end, _ = called(Legacy(tools__call=lambda _: json_reply(404, {"gone": 1})))
    assert found.content == '[aish] tool transport error: HTTP 404: {"gone": 1}'
    assert end.methods.count("tools/call") == 1


def test_the_token_and_extra_headers_go_with_every_request() -> None:
    _, end, _ = called(Legacy(), token="secret-token", headers={"X-Team": "blue"})
    for request in end.requests:
        assert request.headers["authorization"] == "Bearer secret-token"
        assert request.headers["x-team"] == "blue"


def test_without_a_token_there_is_no_header() -> None:
    _, end, _ = called(Legacy())
    assert all("authorization" not in r.headers for r in end.requests)


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_origin_is_followed_with_its_body(status: int) -> None:
    def moved(request: Recorded) -> Reply:
        if request.path == "/mcp":
            return Reply(status=status, headers={"Location": "/mcp/"}, framing="length")
        return Legacy()(request)

    found, end, _ = called(moved, token="secret-token")
    assert found.content == "3"
    assert end.requests[-1].path == "/mcp/"


@pytest.mark.parametrize("status", [300, 301, 302, 303])
def test_a_redirect_that_may_lose_or_repeat_a_call_is_an_error_that_says_so(status: int) -> None:
    def moved(_: Recorded) -> Reply:
        return Reply(status=status, headers={"Location": "/other?key=1"}, framing="length")

    found, end, _ = called(Legacy(tools__call=moved))

    assert found.kind == "transport_error"
    assert found.content == (
        f"[aish] tool transport error: HTTP {status}: the server redirects to `{end.origin}/other`,"
        " and only 307 and 308 repeat a message there: write that as its `url`"
    )
    assert end.methods.count("tools/call") == 1
    assert {r.path for r in end.requests} == {"/mcp"}


@pytest.mark.requirement("X5")
def test_a_redirect_to_another_origin_is_not_followed() -> None:
    with McpEndpoint(Legacy()) as other:
        away = Reply(status=307, headers={"Location": other.url}, framing="length")
        with McpEndpoint(lambda _: away) as end:
            why = failure_of(end.url, token="secret-token")
        assert why == f"the server sent us to another origin, {other.origin}"
        assert other.requests == []


@pytest.mark.parametrize("location", ["http://xn--/", "http://[", "//[::1"])
def test_a_redirect_to_an_address_that_is_none_is_a_failed_server(location: str) -> None:
    astray = Reply(status=307, headers={"Location": location}, framing="length")
    with McpEndpoint(lambda _: astray) as end:
        assert failure_of(end.url).startswith("the server")


@pytest.mark.parametrize("pause", ["9" * 5000, "1" + "0" * 400])
def test_a_pause_that_no_number_holds_is_no_pause(pause: str) -> None:
    def broken_off(_: Recorded) -> Reply:
        return events(f"retry: {pause}\ndata: \n\n".encode())

    found, _, _ = called(Legacy(tools__call=broken_off))
    assert found.kind == "transport_error"


def test_redirects_without_end_are_given_up() -> None:
    around = Reply(status=307, headers={"Location": "/mcp"}, framing="length")
    with McpEndpoint(lambda _: around) as end:
        assert failure_of(end.url) == "more than 3 redirects"


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with McpEndpoint(Legacy()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.origin)
        monkeypatch.setenv("ALL_PROXY", proxy.origin)
        called(Legacy(), token="secret-token")
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("url", "fields", "why"),
    [
        ("ftp://127.0.0.1/", {}, "does not begin with http"),
        ("http://", {}, "does not begin with http"),
        ("http://127.0.0.1:99999/", {}, "a port above 65535"),
        ("http://[::1/", {}, "the url is not legal"),
        ("http://xn--/", {}, "the url is not legal"),
        (
            "http://127.0.0.1/",
            {"headers": {"X": "é"}},
            "the header `x` has a character that is not legal",
        ),
        (
            "http://127.0.0.1/",
            {"headers": {"X": "a\r\nY: b"}},
            "the header `x` has a character that is not legal",
        ),
    ],
)
def test_an_entry_that_cannot_be_used_is_a_failed_server(
    url: str, fields: dict[str, Any], why: str
) -> None:
    assert why in failure_of(url, **fields)


def test_a_server_that_is_not_there_says_where_it_was_looked_for() -> None:
    with socket.socket() as held:  # so that nobody else listens at its port
        held.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{held.getsockname()[1]}"
        why = failure_of(f"{origin}/mcp")
    assert why.startswith(f"cannot connect to {origin}: ")


@pytest.mark.parametrize("era", [Legacy, Modern])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_required_server_that_is_up_later_is_waited_for(era: Any, status: int) -> None:
    down = [json_reply(status, {"error": "down"})] * 3
    up = era()

    def starting(request: Recorded) -> Reply:
        found: Reply = down.pop() if down else up(request)
        return found

    found, _, _ = called(starting, required=True)
    assert found.content == "3"


def test_a_port_that_is_closed_is_tried_until_the_time_to_connect_is_over() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    why = failure_of(f"{url}/mcp", required=True, connect=0.6)
    assert why == f"cannot connect to {url}: All connection attempts failed, for 0.6 s"

    said: list[str] = []

    async def call(done: anyio.Event) -> None:
        async with registry(http(f"{url}/mcp", required=True)) as s:
            said.append(await s.text("web__add", a=1, b=2))
        done.set()

    async def scene() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, done := anyio.Event())
            await anyio.sleep(0.1)  # not waited for: it may listen before or after it is asked
            with McpEndpoint(Legacy(), port=port):
                await done.wait()

    play(scene)
    assert said == ["3"]


ADVICE = {
    401: "; `auth_env` names the variable that has its token, and `oauth` gets one",
    403: "; it may want a login: `auth_env` or `oauth`",
}


@pytest.mark.parametrize("status", [401, 403, 500, 502])
def test_http_failures_are_told_apart_from_json_rpc_errors(status: int) -> None:
    body = {"error": "unauthorized"}
    found, _, _ = called(Legacy(tools__call=lambda _: json_reply(status, body)))
    assert found.kind == "transport_error"
    advice = ADVICE.get(status, "")
    assert found.content == (
        f'[aish] tool transport error: HTTP {status}: {{"error": "unauthorized"}}{advice}'
    )


PAGE = b"<!DOCTYPE html>\n<html><head><title>502 Bad\n Gateway</title></head>" + b"<p>no</p>" * 90
LOGIN = ADVICE[403]
GUARD = "; it guards its `Host`: allow the name in the `url` there, or use one it accepts"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply((PAGE,), status=500), "HTTP 500: a page of HTML, `502 Bad Gateway`"),
        (Reply((PAGE,)), "the answer is not JSON: a page of HTML, `502 Bad Gateway`"),
        (Reply((b" <html><body>no",), status=403), f"HTTP 403: a page of HTML{LOGIN}"),
        (Reply((b"Invalid Host header",), status=421), f"HTTP 421: Invalid Host header{GUARD}"),
        (Reply((b"Invalid Host: x",), status=403), f"HTTP 403: Invalid Host: x{GUARD}"),
        (
            Reply((b'This host ("x") is not allowed.',), status=403),
            f'HTTP 403: This host ("x") is not allowed.{GUARD}',
        ),
        (Reply((b"not for you",), status=403), f"HTTP 403: not for you{LOGIN}"),
    ],
)
def test_a_refusal_says_what_it_is_and_what_to_do(reply: Reply, said: str) -> None:
    found, _, _ = called(Legacy(tools__call=lambda _: reply))
    assert found.content == f"[aish] tool transport error: {said}"


def test_a_long_error_body_is_cut() -> None:
    found, _, _ = called(Legacy(tools__call=lambda _: Reply((b"x" * 9000,), status=500)))
    assert found.content == f"[aish] tool transport error: HTTP 500: {'x' * 400}"


def test_a_json_rpc_error_with_an_http_status_is_one_in_the_stateless_era() -> None:
    def refuse(request: Recorded) -> Reply:
        return error(request, -32602, "bad arguments", status=400)

    modern, _, _ = called(Modern(tools__call=refuse))
    legacy, _, _ = called(Legacy(tools__call=refuse))
    assert (modern.kind, modern.content) == (
        "rpc_error",
        "[aish] tool dispatch failed: bad arguments",
    )
    assert legacy.kind == "transport_error"
    assert legacy.content.startswith("[aish] tool transport error: HTTP 400: {")


def test_parameters_are_mirrored_into_headers_and_a_mismatch_renews_the_list() -> None:
    plain = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {}}}}
    region = {"type": "integer", "x-mcp-header": "Region"}
    mirrored = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": region}}}
    lists = [plain, mirrored]

    def call(request: Recorded) -> Any:
        if request.headers.get("mcp-param-region") != "1":
            return error(request, -32020, "Header mismatch", status=400)
        return {"resultType": "complete", **SUM}

    server = Modern(
        tools__list=lambda _: {"resultType": "complete", "tools": [lists.pop(0)]},
        tools__call=call,
    )
    found, end, _ = called(server)
    assert found.content == "3"
    assert end.methods == [
        "server/discover",
        "tools/list",
        "tools/call",
        "tools/list",
        "tools/call",
    ]


def test_the_transport_of_2024_is_used_after_a_post_was_refused_with_404_or_405() -> None:
    with McpEndpoint(Older()) as end:
        assert play(lambda: older_scene(end)) == "3"
        assert [r.method for r in end.requests][:3] == ["POST", "POST", "GET"]


class Older:
    """A server that has 2024's HTTP+SSE only: POSTs go to `/messages`, answers to the stream."""

    def __init__(self, endpoint: str = "/messages?session=1") -> None:
        self.endpoint = endpoint
        self.pieces: list[bytes | Gate] = [event(endpoint, name="endpoint")]
        self.gates = [Gate() for _ in range(8)]
        self.answers: list[bytes] = []

    def __call__(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return Reply(self.stream(), headers={"content-type": "text/event-stream"})
        if request.path == "/mcp":
            return Reply(status=405, framing="length")
        if "id" in request.json:
            body = Legacy(version="2024-11-05").usual(request).parts
            data = b"".join(part for part in body if isinstance(part, bytes))
            self.answers.append(b"event: message\ndata: " + data + b"\n\n")
            self.gates[len(self.answers) - 1].open()
        return accepted()

    def stream(self) -> Any:
        yield event(self.endpoint, name="endpoint")
        for number, gate in enumerate(self.gates):
            yield gate
            yield self.answers[number]


async def older_scene(end: McpEndpoint) -> str | None:
    async with registry(http(end.url)) as s:
        failure = s.registry.failure("web")
        return failure or await s.text("web__add", a=1, b=2)


class Cut(Older):
    """Ends its stream after each answer, as a proxy ends one on which nothing is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts = [Gate() for _ in range(8)]
        self.streams = 0

    def __call__(self, request: Recorded) -> Reply:
        return super().__call__(request).but(keep_alive=request.method != "GET")

    def stream(self) -> Any:
        self.streams += 1
        number, first = self.streams, len(self.answers)
        yield event(self.endpoint, name="endpoint")
        for at in range(first, len(self.gates)):
            yield self.gates[at]
            yield self.answers[at]
            if b"content" in self.answers[at]:
                yield self.cuts[number]
                return


def is_cut(end: McpEndpoint, number: int) -> bool:
    streams = [request for request in end.requests if request.method == "GET"]
    return len(streams) >= number and streams[number - 1].answered is not None


@pytest.mark.parametrize("restarts", [True, False], ids=["in a run", "in the hub"])
def test_a_stream_of_2024_that_is_cut_while_idle_is_opened_as_often_as_needed(
    *, restarts: bool
) -> None:
    """The case `http-sse-second-cut`: no call was sent, so none fails."""
    server = Cut()
    server.gates = [Gate() for _ in range(40)]

    async def scene(end: McpEndpoint) -> tuple[list[str], Any]:
        async with dynamic_registry() as s:
            s.dynamic_registry.restarts = restarts
            await s.dynamic_registry.connect(http(end.url))
            said = []
            for number in range(1, 5):
                said.append(await s.text("web__add", a=1, b=2))
                server.cuts[number].open()
                await anyio.to_thread.run_sync(end.wait_until, partial(is_cut, end, number))
                for _ in range(20):  # its end is read
                    await anyio.lowlevel.checkpoint()
            # A list that is asked for anew may be cut off with the stream.
            return said, (s.states, set(s.notices.codes) - {"refresh_failed"})

    with McpEndpoint(server) as end:
        said, about = play(lambda: scene(end))

    assert said == ["3"] * 4
    assert about == ({"web": "ready"}, set())


def test_an_address_of_another_origin_is_not_used_by_the_transport_of_2024() -> None:
    with McpEndpoint(Legacy()) as other, McpEndpoint(Older(f"{other.origin}/messages")) as end:
        assert play(lambda: older_scene(end)) == "HTTP 405"
        assert other.requests == []


def test_an_announced_address_alone_changes_nothing() -> None:
    with LuaServer() as lua:

        async def scene() -> str:
            async with registry(http(lua.url)) as s:
                return await s.text("web__status")

        assert play(scene) == "all is well"
        assert "GET" not in [verb for verb, _, _ in lua.requests]


REFUSED_TOKEN = f'HTTP 401: {{"error":"unauthorized"}}{ADVICE[401]}'


def test_the_lua_servers_refusal_is_a_status_and_its_error_text_a_result() -> None:
    with LuaServer("tok") as lua:
        assert failure_of(lua.url, token="wrong") == REFUSED_TOKEN

        async def scene() -> tuple[Any, Any, Any]:
            async with registry(http(lua.url, token="tok")) as s:
                lua._token = "changed"
                refused = await s.call("web__status")
                lua._token = "tok"
                odd = await s.call("web__set_light", room="attic", on=True)
                return refused, odd, await s.call("web__set_light", room="hall", on=True)

        refused, odd, empty = play(scene)
        assert refused.content == f"[aish] tool transport error: {REFUSED_TOKEN}"
        assert (odd.kind, odd.content) == ("ok", "Error: no such room")
        assert (empty.kind, empty.content) == ("ok", "")


def test_calls_to_one_server_run_side_by_side() -> None:
    gate = Gate(opens_at=8)

    def slow(request: Recorded) -> Reply:
        return result(request, SUM).but(before_head=gate)

    async def scene(end: McpEndpoint) -> list[str]:
        found: list[str] = []

        async def one(s: Scene) -> None:
            found.append(await s.text("web__add", a=1, b=2))

        async with registry(http(end.url)) as s, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(one, s)
        return found

    with McpEndpoint(Legacy(tools__call=slow)) as end:
        assert play(lambda: scene(end)) == ["3"] * 8


def test_what_a_server_was_asked_is_one_message_per_request() -> None:
    _, end, _ = called(Legacy())
    for request in end.requests:
        assert request.headers["accept"] == "application/json, text/event-stream"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept-encoding"] == "identity"
        assert isinstance(json.loads(request.body), dict)


@pytest.mark.parametrize("named", ["a\r\nX-Evil: 1", "é", "x" * 5000, "", "a b"])
def test_what_a_server_names_never_becomes_a_broken_header(named: str) -> None:
    def broken(_: Recorded) -> Reply:
        head = f"id: {named}\nretry: 1\ndata: \n\n".encode()
        return events(head if "\r" not in named else b"id: a\x00\nretry: 1\ndata: \n\n")

    found, end, notices = called(Legacy(version=named, tools__call=broken), protocol="legacy")
    assert found.content.startswith(f"[aish] tool transport error: {UNANSWERED}")
    assert notices.said == []
    assert end.requests[-1].headers["mcp-protocol-version"] == "2025-11-25"


def test_a_stream_for_what_is_said_unasked_is_opened_again_when_it_is_lost() -> None:
    streams: list[Reply] = [events(b"retry: 1\ndata: \n\n", RESET)]
    again, done = Gate(), Gate()

    def stream(_: Recorded) -> Reply:
        return streams.pop() if streams else events(b": open\n\n", again, done)

    async def scene(end: McpEndpoint) -> None:
        async with registry(http(end.url)) as s:
            await again.arrival()
            assert await s.text("web__add", a=1, b=2) == "3"

    with McpEndpoint(Legacy(session="s-1", GET=stream)) as end:
        play(lambda: scene(end))
