"""Messages to MCP servers over HTTP: sessions, streams to hear on, what a server asks of us."""

import json

import anyio
import anyio.lowlevel
import httpx
import pytest
from cassette_exchanges import HEAD, answer
from cassette_recorders import (
    END,
    EVENTS,
    Endpoint,
    Step,
    chunk,
    endpoint,
    json_answer,
    nothing,
    pieces_of,
    recorder,
    send,
)

from aish.cassettes.format.interaction import (
    CassetteMissError,
    Chunk,
    Interaction,
    Request,
    Response,
)
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.recorder import LEFT, CassetteRecorder

pytestmark = pytest.mark.anyio
URL = "http://127.0.0.1:9/mcp"
LISTEN = Request("GET", URL)
CANCELLED = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'


def rpc(method: str, number: object = None, **params: object) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}).encode()


def reply(number: int, **result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()


def event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def player(one: CassetteRecorder) -> httpx.AsyncBaseTransport:
    return cassette_transport(one, "mcp", nothing)


def recording_transport(one: CassetteRecorder) -> httpx.AsyncBaseTransport:
    return cassette_transport(one, "mcp", httpx.AsyncHTTPTransport)


async def test_another_version_of_this_program_is_no_other_client() -> None:
    def asked(version: str) -> tuple[bytes, bytes]:
        ours = {"name": "aish", "version": version}
        meta = {"io.modelcontextprotocol/clientInfo": ours}
        return (
            rpc("initialize", 1, protocolVersion="2025-11-25", clientInfo=ours),
            rpc("tools/call", 2, name="t", _meta=meta),
        )

    held = [Interaction(Request("POST", URL, body=body), answer("{}")) for body in asked("0.1")]
    transport = player(recorder("replay", *held))

    for body in asked("0.2"):
        assert (await send(transport, URL, body)).is_success
    with pytest.raises(CassetteMissError):
        await send(transport, URL, rpc("initialize", 1, protocolVersion="2024-11-05"))


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [("GET", b"", 405), ("DELETE", b"", 405), ("POST", CANCELLED, 202)],
)
async def test_what_timing_alone_decides_is_no_miss(method: str, body: bytes, status: int) -> None:
    replay = recorder("replay")

    assert (await send(player(replay), URL, body, method)).status_code == status
    assert replay.missed == []


def test_what_timing_alone_decides_is_no_leftover() -> None:
    held = [
        Interaction(LISTEN, Response(broken=LEFT)),
        Interaction(Request("DELETE", URL), Response()),
        Interaction(Request("POST", URL, body=CANCELLED), Response()),
        Interaction(Request("POST", URL, body=rpc("tools/call", 1)), Response()),
    ]

    assert [number for number, _ in recorder("replay", *held).leftovers()] == [4]


async def test_a_stream_to_hear_on_is_played_and_stays_open() -> None:
    kept = Interaction(LISTEN, Response(body=event(b"1"), broken=LEFT))

    heard = (await send(player(recorder("replay", kept)), URL, b"", "GET")).aiter_raw()

    assert await anext(heard) == event(b"1")
    with anyio.move_on_after(0.05) as scope:
        await anext(heard)
    assert scope.cancelled_caught


async def test_a_stream_that_nothing_was_heard_on_keeps_nobody_waiting() -> None:
    kept = Interaction(LISTEN, Response(599, "No Answer", broken=LEFT))

    assert (await send(player(recorder("replay", kept)), URL, b"", "GET")).status_code == 405


async def test_a_stream_that_is_taken_up_again_is_told_from_a_new_one() -> None:
    again = Request("GET", URL, (("last-event-id", "7"),))
    held = [Interaction(LISTEN, answer("new")), Interaction(again, answer("rest"))]
    transport = player(recorder("replay", *held))

    rest = await send(transport, URL, b"", "GET", {"last-event-id": "7"})
    assert await pieces_of(rest) == [b"rest"]
    assert await pieces_of(await send(transport, URL, b"", "GET")) == [b"new"]


async def drained(transport: httpx.AsyncBaseTransport, url: str, body: bytes) -> list[bytes]:
    response = await send(transport, url, body)
    try:
        return await pieces_of(response)
    finally:
        await response.aclose()


async def until_heard(served: Endpoint, count: int) -> None:
    while len(served.heard) < count:
        await anyio.lowlevel.checkpoint()


async def record_a_listener(recording: CassetteRecorder) -> str:
    """A listener that hears something during the second of two calls."""
    said = anyio.Event()
    quiet, loud = [json_answer(reply(1))], [json_answer(reply(2))]
    listening: list[Step] = [EVENTS, said, chunk(event(b"changed")), anyio.Event()]
    async with endpoint(listening, [*quiet], [*loud]) as served:
        transport = recording_transport(recording)
        stream = await send(transport, served.url, b"", "GET")
        await drained(transport, served.url, rpc("tools/call", 1, name="a"))
        await drained(transport, served.url, rpc("tools/call", 2, name="b"))
        said.set()
        assert await anext(stream.aiter_raw()) == event(b"changed")
        await stream.aclose()
        await transport.aclose()
    return served.url


async def test_what_a_server_says_unasked_comes_when_the_run_is_as_far_as_it_was() -> None:
    recording = recorder("record")
    url = await record_a_listener(recording)
    kept = recording.finish(HEAD)
    assert [piece.after for piece in kept[0].response.chunks] == [3]

    transport = player(recorder("replay", *kept))
    heard: list[bytes] = []

    async def hear() -> None:
        async for piece in (await send(transport, url, b"", "GET")).aiter_raw():
            heard.append(piece)  # ruff: ignore[manual-list-comprehension] - it never ends

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        await anyio.lowlevel.checkpoint()
        await drained(transport, url, rpc("tools/call", 1, name="a"))
        for _ in range(9):
            await anyio.lowlevel.checkpoint()
        assert heard == []
        await send(transport, url, rpc("tools/call", 2, name="b"))
        assert heard == [event(b"changed")]
        tasks.cancel_scope.cancel()


async def test_the_rest_of_an_answer_waits_for_what_the_server_was_told_meanwhile() -> None:
    question, told = event(rpc("sampling/createMessage", 5)), anyio.Event()
    calling: list[Step] = [EVENTS, chunk(question), told, chunk(event(reply(1))), END]
    recording = recorder("record")
    async with endpoint(calling, [json_answer(b"", b"202 Accepted")]) as served:
        transport = recording_transport(recording)
        response = await send(transport, served.url, rpc("tools/call", 1))
        live = response.aiter_raw()
        assert await anext(live) == question
        await drained(transport, served.url, reply(5, text="hi"))
        told.set()
        assert await anext(live) == event(reply(1))
        await anext(live, None)
        await response.aclose()
        await transport.aclose()
    kept = recording.finish(HEAD)
    assert [piece.after for piece in kept[0].response.chunks] == [0, 2]

    transport = player(recorder("replay", *kept))
    again = (await send(transport, served.url, rpc("tools/call", 1))).aiter_raw()
    assert await anext(again) == question
    rest: list[bytes] = []
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            rest.append(await anext(again))

        tasks.start_soon(read)
        for _ in range(9):
            await anyio.lowlevel.checkpoint()
        assert rest == []
        await drained(transport, served.url, reply(5, text="hi"))
    assert rest == [event(reply(1))]


async def test_a_session_is_opened_anew_where_a_recording_is_extended() -> None:
    def held(body: bytes, said: str) -> Interaction:
        return Interaction(Request("POST", "", body=body), answer(said))

    opening = [rpc("initialize", 0), rpc("notifications/initialized"), rpc("tools/list", 1)]
    call, other = rpc("tools/call", 2, name="a"), rpc("tools/call", 3, name="b")
    async with endpoint([json_answer(b'"live"')]) as served:
        old = [held(body, '"old"') for body in (*opening, call)]
        old = [
            Interaction(Request("POST", served.url, body=one.request.body), one.response)
            for one in old
        ]
        extended = recorder("extend", *old)
        transport = recording_transport(extended)
        said = [await drained(transport, served.url, body) for body in (*opening, call, other)]
        await transport.aclose()

    live, played = [b'"live"'], [b'"old"']
    assert said == [live, live, live, played, live]
    kept = extended.finish(HEAD)
    assert [json.loads(one.request.body)["method"] for one in kept] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
        "tools/call",
    ]
    assert [[one.response.body] for one in kept] == said


async def test_a_question_asked_live_is_answered_live() -> None:
    question, told = event(rpc("sampling/createMessage", 5)), anyio.Event()
    calling: list[Step] = [EVENTS, chunk(question), told, chunk(event(reply(1))), END]
    async with endpoint(calling, [json_answer(b"", b"202 Accepted")]) as served:
        held = Interaction(Request("POST", served.url, body=reply(5, text="hi")), Response(202))
        transport = recording_transport(recorder("extend", held))
        response = await send(transport, served.url, rpc("tools/call", 1))
        assert await anext(response.aiter_raw()) == question
        await drained(transport, served.url, reply(5, text="hi"))
        told.set()
        await response.aclose()
        await transport.aclose()
        await until_heard(served, 2)

    assert served.heard[1].endswith(reply(5, text="hi"))


async def test_a_call_that_is_not_held_fails_alone_where_another_model_answers() -> None:
    lenient = recorder("replay", lenient=True)
    transport = player(lenient)

    (said,) = await drained(transport, URL, rpc("tools/call", 4, name="x"))
    noted = await send(transport, URL, rpc("notifications/progress"))

    assert json.loads(said)["id"] == 4
    assert json.loads(said)["error"]["message"] == "the cassette has no such call"
    assert noted.status_code == 202
    assert lenient.missed == []


async def test_an_answer_has_the_ids_of_this_run_and_the_session_is_not_written() -> None:
    head = b"HTTP/1.1 200 OK\r\nmcp-session-id: s-1234\r\nconnection: close\r\n"
    recording = recorder("record")
    async with endpoint([head + b"content-length: 50\r\n\r\n", reply(1).ljust(50)]) as served:
        transport = recording_transport(recording)
        await drained(transport, served.url, rpc("initialize", 1))
        await transport.aclose()
    (kept,) = recording.finish(HEAD)
    assert "s-1234" not in repr(kept)

    again = await send(player(recorder("replay", kept)), served.url, rpc("initialize", 7))
    assert again.headers["mcp-session-id"] == "<secret:mcp-session-id>"
    assert json.loads(b"".join(await pieces_of(again)))["id"] == 7


async def test_a_file_can_say_what_a_piece_waits_for() -> None:
    pieces = Response(body=b"ab", chunks=(Chunk(1, 0.0), Chunk(1, 0.0, 9)), broken=LEFT)
    transport = player(recorder("replay", Interaction(LISTEN, pieces)))

    heard = (await send(transport, URL, b"", "GET")).aiter_raw()

    assert await anext(heard) == b"a"
    with anyio.move_on_after(0.05) as scope:
        await anext(heard)
    assert scope.cancelled_caught
