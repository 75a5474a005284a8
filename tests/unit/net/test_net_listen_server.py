"""A server against hostile and slow clients, on real sockets (H16, H17, H19, X11, A2)."""

import asyncio
import errno
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import anyio
import pytest
from listening_server import (
    BEARER,
    EVENT,
    WRITING,
    Answer,
    Connection,
    Listening,
    serving,
)
from waits import put_forward, waits_of

from aish.core.errors import UsageError
from aish.net.listen.access import Access, ServerLimits
from aish.net.listen.addresses import Exposure, parse_address, unix_address
from aish.net.listen.routes import EventQueue, Route, ServerEvent
from aish.net.listen.server import serve, tls_context
from aish.net.listen.sockets import listen_on
from aish.net.listen.tokens import Tokens
from aish.system.clock import SystemClock

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json\r\n"
SOON = ServerLimits(receive=0.2)
LATER = ServerLimits(receive=60, idle=30)
"""What runs out only where a test puts the clock forward."""


async def time_is_over() -> None:
    """Let the server take in what was sent to it; then the time of all requests is over."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    put_forward(60)


async def connected(server: Listening, count: int) -> None:
    """Wait until so many connections have been accepted: who opened them is looked up first."""
    # A loop without a wait would take the interpreter's lock from the thread that looks.
    while server.server.connections < count:
        await anyio.to_thread.run_sync(os.sched_yield)


def head(server: Listening, more: str, first: str = "POST /things HTTP/1.1") -> bytes:
    return f"{first}\r\n{server.host}{WRITING}{JSON}{more}\r\n".encode()


async def refused(server: Listening, raw: bytes) -> Answer:
    """The one answer to these bytes, after which the server closes."""
    async with await server.open() as connection:
        await connection.send(raw)
        answer = await connection.answer()
        assert answer.headers["connection"] == "close"
        assert await connection.rest() == b""
    return answer


AMBIGUOUS = {
    "length and chunked": "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
    "chunked and length": "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
    "two lengths": "Content-Length: 2\r\nContent-Length: 3\r\n",
    "two equal lengths": "Content-Length: 2\r\nContent-Length: 2\r\n",
    "a list of lengths": "Content-Length: 2, 2\r\n",
    "a signed length": "Content-Length: +2\r\n",
    "a negative length": "Content-Length: -2\r\n",
    "a length in hex": "Content-Length: 0x2\r\n",
    "a length with an underscore": "Content-Length: 1_0\r\n",
    "a length in other digits": "Content-Length: ٢\r\n",
    "no length": "Content-Length:\r\n",
    "a folded header": "X-A: b\r\n c\r\nContent-Length: 2\r\n",
    "a header folded with a tab": "X-A: b\r\n\tc\r\nContent-Length: 2\r\n",
    "a folded length": "Content-Length:\r\n 2\r\n",
    "a folded first header": " X: y\r\nContent-Length: 2\r\n",
    "two codings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "a list of codings": "Transfer-Encoding: gzip, chunked\r\n",
    "identity": "Transfer-Encoding: identity\r\n",
    "an unknown coding": "Transfer-Encoding: xchunked\r\n",
    "a coding in quotes": 'Transfer-Encoding: "chunked"\r\n',
    "a coding after a vertical tab": "Transfer-Encoding: \x0bchunked\r\n",
    "a space before the colon": "Content-Length : 2\r\n",
    "a space in the name": "Content Length: 2\r\n",
    "no colon": "Content-Length\r\n",
    "a bare line feed": "X-A: b\nContent-Length: 2\r\n",
    "a bare carriage return": "X-A: b\rContent-Length: 2\r\n",
    "a NUL": "X-A: b\0\r\nContent-Length: 2\r\n",
    "an empty name": ": b\r\nContent-Length: 2\r\n",
    "two hosts": "Host: evil.example\r\nContent-Length: 2\r\n",
}


@pytest.mark.parametrize("framing", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_framing_that_can_be_understood_in_two_ways_is_refused(framing: str) -> None:
    async with serving() as server:
        answer = await refused(server, head(server, framing) + b"{}")

    assert (answer.status, answer.code) == (400, "bad_request")
    assert server.bodies == []
    assert [(call.status, call.path) for call in server.calls] == [(400, "")]


@pytest.mark.parametrize(
    "first",
    [
        *(
            "POST /things HTTP/2.0",
            "POST /things HTTP/1.2",
            "POST /things",
            "get /things HTTP/1.1",
        ),
        *(
            "POST /things\tHTTP/1.1",
            "POST /th ings HTTP/1.1",
            "POST /things HTTP/1.1 ",
            "\r\nPOST /",
        ),
        *(
            "POST /things http/1.1",
            "P@ST /things HTTP/1.1",
            " POST /things HTTP/1.1",
        ),
    ],
)
async def test_a_first_line_that_is_no_request_is_refused(first: str) -> None:
    async with serving() as server:
        answer = await refused(server, head(server, "Content-Length: 2\r\n", first) + b"{}")

    assert (answer.status, answer.code) == (400, "bad_request")


async def test_a_chunked_request_of_http_1_0_is_refused() -> None:
    async with serving() as server:
        raw = head(server, "Transfer-Encoding: chunked\r\n", "POST /things HTTP/1.0")
        answer = await refused(server, raw + b"2\r\n{}\r\n0\r\n\r\n")

    assert answer.status == 400


@pytest.mark.parametrize(
    "chunks",
    [b"x\r\n{}", b"-2\r\n{}", b"2\r\n{}X", b"2\n{}\n0\n\n", b"\r\n", b"f" * 30 + b"\r\n"],
)
async def test_chunks_that_are_none_are_refused(chunks: bytes) -> None:
    async with serving() as server:
        raw = head(server, "Transfer-Encoding: chunked\r\n") + chunks + b"\r\n" * 2
        async with await server.open() as connection:
            await connection.send(raw)
            answer = await connection.answer()

    assert answer.status == 400
    assert server.bodies == []


async def test_what_follows_a_refused_request_is_not_read_as_another_one() -> None:
    async with serving() as server:
        smuggled = f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n".encode()
        answer = await refused(
            server, head(server, AMBIGUOUS["length and chunked"]) + b"0\r\n\r\n" + smuggled
        )

    assert answer.status == 400
    assert [call.status for call in server.calls] == [400]


async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async with serving() as server, await server.open() as connection:
        one = f"GET /things/a HTTP/1.1\r\n{server.host}{BEARER}\r\n".encode()
        two = head(server, "Content-Length: 2\r\n") + b"{}"
        chunked = head(server, "Transfer-Encoding: chunked\r\n") + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
        answers = []
        for request in (one, two, chunked, one.replace(b"/a", b"/b")):
            await connection.send(request)
            answers.append(await connection.answer())

    assert [answer.status for answer in answers] == [200, 201, 201, 200]
    assert [answers[number].json()["path"]["path"] for number in (0, 3)] == ["a", "b"]


@pytest.mark.parametrize("more", [b"GET /things/b HTTP/1.1\r\n\r\n", b"}", b"GET /thi"])
async def test_what_is_sent_before_the_answer_is_not_read_and_ends_the_connection(
    more: bytes,
) -> None:
    async with serving() as server, await server.open() as connection:
        one = f"GET /things/a HTTP/1.1\r\n{server.host}{BEARER}\r\n".encode()
        await connection.send(one + more)
        answer = await connection.answer()
        rest = await connection.reader.read()

    assert (answer.status, answer.json()["path"]["path"], rest) == (200, "a", b"")
    assert [call.status for call in server.calls] == [200]


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(framing: str) -> None:
    most = ServerLimits().body
    async with serving() as server:
        for size in (most, most + 1):
            body = b'"' + b"x" * (size - 2) + b'"'
            if framing == "length":
                raw = head(server, f"Content-Length: {size}\r\n") + body
            else:
                chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
                raw = head(server, "Transfer-Encoding: chunked\r\n") + chunk
            answer = await server.ask(raw)
            assert answer.status == (201 if size == most else 413)

    assert answer.code == "body_too_large"
    assert [len(body) for body in server.bodies] == [most]


@pytest.mark.parametrize(
    "framing", ["Content-Length: 99999999999\r\n", "Transfer-Encoding: chunked\r\n"]
)
@pytest.mark.parametrize("token", [WRITING, ""], ids=["with a token", "without"])
async def test_an_endless_body_is_cut_off(framing: str, token: str) -> None:
    limits = ServerLimits(body=1 << 16)
    async with serving(limits=limits) as server, await server.open() as connection:
        await connection.send(f"POST /things HTTP/1.1\r\n{server.host}{token}{JSON}{framing}\r\n")
        piece = b"x" * 65536
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece) if "chunked" in framing else piece
        sent = 0
        with anyio.fail_after(60):
            while not connection.writer.is_closing() and not connection.reader.at_eof():
                try:
                    connection.writer.write(chunk)
                    await connection.writer.drain()
                except ConnectionError:
                    break
                sent += len(chunk)
                await anyio.lowlevel.checkpoint()

    # What was sent and not read is in the buffers of both ends.
    assert sent < 40 << 20
    assert [call.status for call in server.calls] == [413 if token else 401]


@pytest.mark.parametrize(
    "raw", [b"GET /" + b"a" * 20_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4000]
)
@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\n\r\n"])
async def test_a_head_that_is_too_long_is_refused(raw: bytes, end: bytes) -> None:
    async with serving() as server:
        answer = await refused(server, raw + end)

    assert (answer.status, answer.code) == (431, "head_too_large")


DRIPS = {
    "a first line": b"GET /thi",
    "a head": b"GET /things HTTP/1.1\r\nHost: x\r\nX-A: ",
    "a body": b"",
    "chunks": b"",
}


def drip_of(server: Listening, kind: str) -> bytes:
    if kind == "a body":
        return head(server, "Content-Length: 1000\r\n") + b"{"
    if kind == "chunks":
        return head(server, "Transfer-Encoding: chunked\r\n") + b"fff\r\n{"
    return DRIPS[kind]


@pytest.mark.parametrize("kind", DRIPS)
def test_a_request_that_does_not_arrive_in_time_is_refused(kind: str) -> None:
    async def refused() -> tuple[Answer, Listening]:
        async with serving(limits=LATER) as server, await server.open() as connection:
            await connection.send(drip_of(server, kind))
            await connected(server, 1)
            for _ in range(10):
                await _drip(connection)
            answer = await connection.answer()
            assert await connection.rest() == b""
        return answer, server

    (answer, server), _ = waits_of(refused)
    assert (answer.status, answer.code) == (408, "timeout")
    assert "60 seconds" in answer.json()["error"]["message"]
    assert server.bodies == []


async def _drip(connection: Connection) -> None:
    """A byte now and then: each keeps a deadline for single reads from running out."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    put_forward(7)
    if not connection.writer.is_closing():
        connection.writer.write(b"1")


async def test_a_connection_that_asks_for_nothing_is_closed_in_silence() -> None:
    async with serving(limits=SOON) as server, await server.open() as connection:
        assert await connection.rest() == b""

    assert server.calls == []


def test_a_second_request_has_its_own_time() -> None:
    async def both() -> list[int]:
        async with serving(limits=LATER) as server, await server.open() as connection:
            await connection.send(f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            first = await connection.answer()
            await connection.send(b"GET /thi")
            await time_is_over()
            return [first.status, (await connection.answer()).status]

    assert waits_of(both)[0] == [200, 408]


def test_a_connection_whose_request_was_refused_early_may_wait_for_another() -> None:
    async def both() -> list[int]:
        limits = ServerLimits(receive=10, idle=120)
        async with serving(limits=limits) as server, await server.open() as connection:
            path = "POST /nothing HTTP/1.1"
            await connection.send(head(server, "Content-Length: 2\r\n", path))
            first = await connection.answer()
            await connection.send(b"{}")
            await time_is_over()
            for _ in range(5):  # what has run out ends first
                await anyio.lowlevel.checkpoint()
            await connection.send(f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            return [first.status, (await connection.answer()).status]

    assert waits_of(both)[0] == [404, 200]


async def test_two_hundred_dripping_sockets_do_not_keep_an_honest_client_waiting() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        dripping = []
        for number in range(200):
            connection = await stack.enter_async_context(await server.open())
            await connection.send(drip_of(server, list(DRIPS)[number % len(DRIPS)]))
            dripping.append(connection)
            if number % 20 == 0:
                assert (await server.get()).status == 200
        async with await server.open() as honest:
            for _ in range(50):
                await honest.send(f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n")
                assert (await honest.answer()).status == 200
                for connection in dripping:
                    if not connection.writer.is_closing():
                        connection.writer.write(b"1")
        assert server.server.connections <= 64

    assert {call.status for call in server.calls} == {200}


async def test_where_all_connections_are_busy_one_more_is_told_to_come_again() -> None:
    async with serving(limits=ServerLimits(connections=4)) as server, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(await server.open()) for _ in range(4)]
        for connection in busy:
            server.entered.clear()
            await connection.send(f"GET /wait HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            await server.entered.wait()
        one_more = await server.get()
        server.proceed.set()
        answers = [(await connection.answer()).status for connection in busy]
        again = await server.get()

    assert (one_more.status, one_more.code) == (503, "busy")
    assert one_more.headers["retry-after"] == "1"
    assert answers == [200] * 4
    assert again.status == 200


async def test_a_client_with_a_token_keeps_its_place_before_those_without() -> None:
    async with serving(limits=ServerLimits(connections=4)) as server, AsyncExitStack() as stack:
        known = await stack.enter_async_context(await server.open())
        ask = f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n"
        await known.send(ask)
        await known.answer()
        for _ in range(20):
            stranger = await stack.enter_async_context(await server.open())
            await stranger.send(f"GET /things HTTP/1.1\r\n{server.host}\r\n")
            assert (await stranger.answer()).status == 401
        await known.send(ask)

        assert (await known.answer()).status == 200


async def _streaming(server: Listening, connection: Connection) -> None:
    server.entered.clear()
    await connection.send(f"GET /events HTTP/1.1\r\n{server.host}{BEARER}\r\n")
    await server.entered.wait()
    await connection.reader.readuntil(b"\r\n\r\n")


def test_a_stream_lives_longer_than_a_request_may_take_and_ends_with_the_server() -> None:
    async def streamed() -> tuple[bytes, bytes, Listening]:
        async with AsyncExitStack() as stack:
            async with serving(limits=LATER) as server:
                reading = await stack.enter_async_context(await server.open())
                await _streaming(server, reading)
                async with await server.open() as late:
                    await connected(server, 2)
                    await time_is_over()
                    await late.rest()  # its time is over, and so is that of the other one
                server.queues[0].put(ServerEvent('{"a":1}\n{"b":2}', "step", "7"))
                event = await reading.reader.readuntil(b"2}\n\n")
                server.queues[0].put(ServerEvent("last"))
            return event, await reading.rest(), server

    (event, rest, server), _ = waits_of(streamed)
    assert b'event: step\nid: 7\ndata: {"a":1}\ndata: {"b":2}\n\n' in event
    assert b"data: last\n\n" in rest
    assert rest.endswith(b"0\r\n\r\n")
    assert server.ended == ["stream"]
    assert server.faults == []


async def test_a_reader_that_does_not_read_is_cut_off_and_others_are_not() -> None:
    limits = ServerLimits(write=1000)
    async with (
        serving(limits=limits) as server,
        await server.open() as slow,
        await server.open() as quick,
    ):
        await _streaming(server, slow)
        await _streaming(server, quick)
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]  # no public name
        with anyio.fail_after(60):
            while not server.queues[0].overflowed.is_set():
                for queue in server.queues:
                    queue.put(EVENT)
                await quick.reader.readuntil(EVENT.encode())
        await server.until_ended(1)
        server.queues[1].put(ServerEvent("still here"))
        last = await quick.reader.readuntil(b"still here\n\n")

    assert last
    assert server.faults == []


async def test_a_reader_is_cut_off_by_the_length_of_what_it_has_not_read() -> None:
    queue = EventQueue(most_text=10)
    queue.put(ServerEvent("x" * 100))
    assert [len(one.data) for one in await queue.take()] == [100]
    for _ in range(2):
        queue.put(ServerEvent("x" * 5))
    assert not queue.overflowed.is_set()
    queue.put(ServerEvent("x"))

    assert queue.overflowed.is_set()
    assert await queue.take() == []


async def test_a_client_that_reads_nothing_of_a_long_answer_is_cut_off() -> None:
    async with serving(limits=ServerLimits(write=0.2)) as server, await server.open() as connection:
        await _streaming(server, connection)
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]  # no public name
        for _ in range(10):  # more than the buffers of both ends hold, less than a queue does
            server.queues[0].put(ServerEvent("x" * 1_000_000))
        await server.until_ended(1)

    assert not server.queues[0].overflowed.is_set()
    assert server.faults == []


async def test_a_client_that_leaves_ends_its_stream_and_is_seen_by_its_handler() -> None:
    async with serving() as server:
        for path in ("/events", "/wait"):
            server.entered.clear()
            async with await server.open() as connection:
                await connection.send(f"GET {path} HTTP/1.1\r\n{server.host}{BEARER}\r\n")
                await server.entered.wait()
        await server.until_ended(2)

    assert sorted(server.ended) == ["gone", "stream"]
    assert server.faults == []


async def test_an_answer_is_ended_before_the_server_is() -> None:
    async with AsyncExitStack() as stack:
        # Its port is held, so that nobody else listens there once it has ended.
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        async with serving(parse_address(f"127.0.0.1:{held.getsockname()[1]}")) as server:
            connection = await stack.enter_async_context(await server.open())
            idle = await stack.enter_async_context(await server.open())
            await connection.send(f"GET /wait HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            await server.entered.wait()
            asyncio.get_running_loop().call_soon(server.proceed.set)
        answer = await connection.answer()
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await server.open()

    assert answer.json() == {"waited": True}


async def test_what_does_not_end_in_time_is_cut_off() -> None:
    async with AsyncExitStack() as stack:
        async with serving(limits=ServerLimits(drain=0.2)) as server:
            connection = await stack.enter_async_context(await server.open())
            await connection.send(f"GET /wait HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            await server.entered.wait()
        assert b"200 OK" not in await connection.rest()


def descriptors() -> set[str]:
    """Those that are open, and what they are, without the one that lists them.

    Threads of earlier tests may close some at any time.
    """
    found = set()
    for one in [*Path("/proc/self/fd").iterdir()]:
        with suppress(FileNotFoundError):
            found.add(f"{one.name} {one.readlink()}")
    return found


async def test_a_client_that_reads_nothing_does_not_keep_the_server_from_ending() -> None:
    async with AsyncExitStack() as stack:
        before = descriptors()
        async with serving(limits=ServerLimits(drain=0.2)) as server:
            slow = await stack.enter_async_context(await server.open())
            await _streaming(server, slow)
            slow.reader._transport.pause_reading()  # type: ignore[attr-defined]  # no public name
            for _ in range(10):
                server.queues[0].put(ServerEvent("x" * 1_000_000))

        assert len(descriptors() - before) == 1  # that of the client
    assert server.ended == ["stream"]


async def test_nothing_is_left_and_nothing_is_written_and_signals_stay(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving() as server:
        await server.get()  # what is imported and opened once
    gc.collect()
    before = descriptors()
    tasks = len(asyncio.all_tasks())
    threads = set(threading.enumerate())

    async with serving(unix_address(tmp_path / "s" / "a.sock")) as server:
        async with AsyncExitStack() as stack:
            for raw in (b"", b"GET", b"\r\n", drip_of(server, "a body")):
                await (await stack.enter_async_context(await server.open())).send(raw)
            for path in ("/events", "/wait", "/fail"):
                one = await stack.enter_async_context(await server.open())
                await one.send(f"GET {path} HTTP/1.1\r\n\r\n" if path == "/fail" else "x")
            await server.ask("GET /things HTTP/1.1\r\nHost: x\r\n\r\n")
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    gc.collect()
    assert descriptors() - before == set()
    assert len(asyncio.all_tasks()) == tasks
    assert set(threading.enumerate()) <= threads
    assert during == handlers
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "s" / "a.sock").exists()


@pytest.mark.parametrize(
    "more",
    [
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
    ],
    ids=["websocket", "h2c"],
)
async def test_an_upgrade_is_not_taken_and_the_request_answered(more: str) -> None:
    async with serving() as server, await server.open() as connection:
        await connection.send(f"GET /things HTTP/1.1\r\n{server.host}{BEARER}{more}\r\n")
        assert (await connection.answer()).status == 200
        assert await connection.reader.read() == b""

    assert server.faults == []


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked_only_if_it_may() -> None:
    more = "Expect: 100-continue\r\nContent-Length: 2\r\n"
    async with serving() as server, await server.open() as connection:
        await connection.send(head(server, more))
        interim = await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"{}")
        answer = await connection.answer()
        refused = await server.ask(head(server, more).replace(b"Bearer", b"Basic"))

    assert interim.startswith(b"HTTP/1.1 100 ")
    assert (answer.status, refused.status) == (201, 401)


async def test_the_owner_of_a_socket_file_needs_no_token(tmp_path: Path) -> None:
    async with serving(unix_address(tmp_path / "s" / "a.sock")) as server:
        answer = await server.ask("GET /things HTTP/1.1\r\nHost: anything\r\n\r\n")
        foreign = await server.ask(
            "GET /things HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n\r\n"
        )

    assert answer.json()["name"] == f"uid:{os.geteuid()}"
    assert answer.json()["scopes"] == ["read", "write"]
    assert foreign.status == 403


CLIENT = """
import os, socket, sys
path, uid, headers = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
if uid:
    os.setgid(uid); os.setuid(uid)
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(path)
except PermissionError:
    print("no permission"); sys.exit()
client.sendall(b"GET /things HTTP/1.1\\r\\nHost: x\\r\\n" + headers + b"\\r\\n")
print(client.recv(65536).decode().splitlines()[0])
"""
FOREIGN = 12345


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def _client(path: Path, uid: int = 0, headers: str = "") -> str:
    command = [sys.executable, "-I", "-c", CLIENT, str(path), str(uid), headers]
    done = await anyio.run_process(command)
    return done.stdout.decode().strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_cannot_use_a_socket_file(public_folder: Path) -> None:
    path = public_folder / "s" / "a.sock"
    async with serving(unix_address(path)) as server:
        kept_out = await _client(path, FOREIGN)
        # Somebody has opened the way to it: then the kernel's word on who it is decides.
        path.parent.chmod(0o755)
        path.chmod(0o666)
        refused = await _client(path, FOREIGN)
        with_token = await _client(path, FOREIGN, BEARER)
        ours = await _client(path)

    assert kept_out == "no permission"
    assert refused == with_token == "HTTP/1.1 403 Forbidden"
    assert ours == "HTTP/1.1 200 OK"
    assert [(call.status, call.peer.uid) for call in server.calls[:2]] == [(403, FOREIGN)] * 2


SERVER = """
import os, subprocess, sys
import anyio
sys.path.insert(0, sys.argv[1])
from listening_server import serving
from aish.net.listen.addresses import unix_address
from aish.system.process.ancestry import adopt_orphans, descends_from
from pathlib import Path

async def main():
    path = Path(sys.argv[2])
    refuse = {"is_refused": lambda pid: descends_from(pid, os.getpid())}
    adopt_orphans()
    async with serving(unix_address(path), access=refuse):
        for before in ("", "import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\n"):
            command = [sys.executable, "-I", "-c", before + sys.argv[3], str(path), "0", ""]
            async with await anyio.open_process(command, stderr=None) as child:
                print((await child.stdout.receive()).decode().strip(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)

anyio.run(main)
"""


def test_a_process_that_the_run_started_is_refused_and_its_owner_is_not(tmp_path: Path) -> None:
    support = Path(__file__).parents[2] / "support"
    path = tmp_path / "s" / "a.sock"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(support), str(path), CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=support.parents[1],
    ) as server:
        assert server.stdout is not None
        refused = [server.stdout.readline().strip() for _ in range(2)]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /things HTTP/1.1\r\nHost: x\r\n\r\n")
            served = client.recv(65536)
        server.communicate("\n")

    assert refused == ["HTTP/1.1 403 Forbidden"] * 2
    assert served.startswith(b"HTTP/1.1 200 OK")
    assert server.returncode == 0


NO_DESCRIPTORS = """
import resource, sys
import anyio
sys.path.insert(0, sys.argv[1])
from listening_server import serving
from aish.net.listen.access import Access, ServerLimits

def report(fault):
    print(type(fault).__name__, fault.errno, flush=True)

async def main():
    async with serving(limits=ServerLimits(connections=1000), report=report) as server:
        await server.get()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, hard))
        print(server.address.port, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)

anyio.run(main)
"""


def test_a_server_without_descriptors_says_so_and_serves_again(tmp_path: Path) -> None:
    support = Path(__file__).parents[2] / "support"
    with subprocess.Popen(
        [sys.executable, "-c", NO_DESCRIPTORS, str(support)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=support.parents[1],
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        told = server.stdout.readline()
        # All of them leave at once: in between it would take others, and say it again.
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        for one in many:
            one.close()
        server.send_signal(signal.SIGCONT)
        with socket.create_connection(("127.0.0.1", port)) as client:
            ask = f"GET /things HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{BEARER}\r\n"
            client.sendall(ask.encode())
            answer = client.recv(65536)
        rest, errors = server.communicate("\n")

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert told == f"OSError {errno.EMFILE}\n"
    assert (rest, errors) == ("", "")


@pytest.fixture(scope="module")
def exposure(tmp_path_factory: pytest.TempPathFactory) -> Exposure:
    """A certificate of its own for 127.0.0.1."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Exposure(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem")


@pytest.mark.slow(reason="a handshake that begins late runs out a minute later")
def test_tls_is_served_and_a_handshake_has_to_end_in_time(exposure: Exposure) -> None:
    assert exposure.tls_cert is not None
    trusting = ssl.create_default_context(cafile=str(exposure.tls_cert))

    async def served() -> tuple[Answer, Listening]:
        async with (
            serving(tls=tls_context(exposure), limits=LATER) as server,
            AsyncExitStack() as stack,
        ):
            silent = [await stack.enter_async_context(await server.open()) for _ in range(10)]
            plain = await stack.enter_async_context(await server.open())
            await plain.send(f"GET /things HTTP/1.1\r\n{server.host}{BEARER}\r\n")
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.address.port, ssl=trusting
            )
            encrypted = await stack.enter_async_context(Connection(reader, writer))
            origin = f"Origin: https://{server.address.netloc}\r\n"
            await encrypted.send(f"GET /things HTTP/1.1\r\n{server.host}{origin}{BEARER}\r\n")
            answer = await encrypted.answer()
            await time_is_over()
            for one in (*silent, plain):
                assert b"HTTP" not in await one.rest()
        return answer, server

    (answer, server), _ = waits_of(served)
    assert answer.status == 200
    assert server.faults == []


def test_a_certificate_that_cannot_be_used_is_refused(exposure: Exposure, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_text("not a key", encoding="utf-8")
    for key in (tmp_path / "other.pem", tmp_path / "missing.pem"):
        with pytest.raises(UsageError, match="cannot be used") as caught:
            tls_context(Exposure(tls_cert=exposure.tls_cert, tls_key=key))
        assert caught.value.where == "--tls-cert"
    assert tls_context(Exposure()) is None


async def test_without_the_extra_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)  # what Python puts for "not there"

    with pytest.raises(UsageError, match="`httptools`") as caught:
        async with serving():
            pass

    assert caught.value.hint == "pip install 'aish-pipelines[serve]'"


IMPORTS = """
import socket, sys
from pathlib import Path
import anyio
from aish.net.listen.access import Access
from aish.net.listen.addresses import unix_address
from aish.net.listen.server import serve
from aish.net.listen.sockets import listen_on
from aish.net.listen.tokens import Tokens
from aish.system.clock import SystemClock

def loaded():
    print({"httptools", "starlette"} & set(sys.modules) == set(), flush=True)

async def main():
    access = Access(Tokens([], SystemClock()), frozenset(), lambda pid: False)
    with listen_on([unix_address(Path(sys.argv[1]) / "s" / "a.sock")]) as listeners:
        async with serve(lambda: [], listeners, access, report=print) as server:
            await anyio.sleep(0)
            loaded()
            async with await anyio.connect_unix(server.addresses[0].path) as client:
                await client.send(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
                print((await client.receive()).split()[1])
            loaded()
            async with await anyio.connect_unix(server.addresses[0].path) as client:
                await client.send(b"not HTTP\\r\\n\\r\\n")
                print((await client.receive()).split()[1])

anyio.run(main)
"""


def test_http_is_imported_at_the_first_connection_and_writes_to_no_stream(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "b'404'", "False", "b'400'"]
    assert not done.stderr


async def test_a_service_that_cannot_be_made_ends_no_run() -> None:
    faults: list[Exception] = []

    def broken() -> list[Route]:
        raise LookupError("no route")

    access = Access(Tokens([], SystemClock()), frozenset(), lambda _: False)
    with listen_on([parse_address("127.0.0.1:0")]) as listeners:
        async with serve(broken, listeners, access, report=faults.append) as server:
            for _ in range(2):
                address = server.addresses[0]
                client = Connection(*await asyncio.open_connection(address.host, address.port))
                assert await client.rest() == b""
                client.writer.close()

    assert [type(fault) for fault in faults] == [LookupError] * 2
