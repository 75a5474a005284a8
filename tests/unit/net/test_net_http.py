"""HTTP/1.1 on connections of asyncio (X5, X6): framing as h11 has it, and connections kept."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from work import work_of

from aish.net.http import ChunkedBody, DirectTransport, Head
from aish.net.post_request import PostError, post_json

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
EVENTS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """What a real socket on 127.0.0.1 says, and what it was asked."""

    def __init__(self) -> None:
        self.talk: Talk | None = None
        self.url = ""
        self.connections = 0
        self.asked: list[bytes] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk on one connection."""
        self.connections += 1
        try:
            assert self.talk is not None
            await self.talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has hung up, as some tests have it do
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request, head and body."""
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        self.asked.append(head + await reader.readexactly(int(size[1]) if size else 0))
        return head


@asynccontextmanager
async def serving(talk: Callable[[Server], Talk] | bytes) -> AsyncGenerator[Server]:
    """A server that answers each request with the same bytes, or as it is told to."""
    if isinstance(talk, bytes):
        answer = talk

        def talk(server: Server) -> Talk:
            async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while True:
                    await server.request(reader)
                    writer.write(answer)
                    if b"\r\nconnection: close\r\n" in answer or b"-length" not in answer:
                        return

            return say

    server = Server()
    server.talk = talk(server)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        yield server
    finally:
        listening.close()


@asynccontextmanager
async def opened(most: int = 4, kept_seconds: float = 60.0) -> AsyncGenerator[DirectTransport]:
    transport = DirectTransport(verify=True, most=most, kept_seconds=kept_seconds)
    try:
        yield transport
    finally:
        await transport.aclose()


def post(server: Server, body: bytes = b"{}", **more: str) -> httpx.Request:
    return httpx.Request("POST", server.url, content=body, headers=more)


async def answer(transport: DirectTransport, request: httpx.Request) -> tuple[int, bytes]:
    response = await transport.handle_async_request(request)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        return response.status_code, b"".join([piece async for piece in response.stream])
    finally:
        await response.aclose()


async def test_requests_share_a_connection_and_are_one_write_each() -> None:
    async with serving(OK) as server, opened() as transport:
        for body in (b"1", b"22"):
            assert await answer(transport, post(server, body, accept="*/*")) == (200, b"hi")

        assert server.connections == 1
        host = server.url[7:-1].encode()
        assert server.asked == [
            b"POST / HTTP/1.1\r\nHost: %s\r\naccept: */*\r\nContent-Length: %d\r\n\r\n%s"
            % (host, len(body), body)
            for body in (b"1", b"22")
        ]


@pytest.mark.parametrize("size", [64 * 1024, 64 * 1024 + 1, 5_000_000])
async def test_a_long_body_arrives_whole(size: int) -> None:
    body = b"%07d" * (size // 7) % tuple(range(size // 7)) + b"x" * (size % 7)
    async with serving(OK) as server, opened() as transport:
        for _ in range(2):
            assert await answer(transport, post(server, body)) == (200, b"hi")

        assert [asked.partition(b"\r\n\r\n")[2] == body for asked in server.asked] == [True, True]


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK, b"hi"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: a\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi", b"hi"),
        (b"HTTP/1.1 200\r\ncontent-length:2, 2\r\nx: a\r\n  b\r\n\r\nhi", b"hi"),
        (EVENTS + b"2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n", b"hi"),
        (
            EVENTS + b"0002;a=b\r\nhi\r\n003 \r\n you\r\n0\r\n\r\n".replace(b"003", b"004"),
            b"hi you",
        ),
        (EVENTS + b"0\r\n\r\n", b""),
        (EVENTS + b"00000000000000000002\r\nhi\r\n0\r\n\r\n", b"hi"),
    ],
)
async def test_the_end_of_a_body_is_found_wherever_it_is_cut(said: bytes, body: bytes) -> None:
    cuts = range(1, len(said))

    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            cut = cuts[len(server.asked) - 1]
            writer.write(said[:cut])
            # The next turn of the loop: what was written has been read by then.
            await asyncio.sleep(0)
            writer.write(said[cut:])

        return say

    async with serving(talk) as server, opened() as transport:
        for _ in cuts:
            assert (await answer(transport, post(server)))[1] == body


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (b"", httpx.RemoteProtocolError, "Server disconnected without sending a response."),
        (OK[:-1] + b"", httpx.RemoteProtocolError, "(received 1 bytes, expected 2)"),
        (EVENTS + b"5\r\nhel", httpx.RemoteProtocolError, "(incomplete chunked read)"),
        (EVENTS + b"2\r\nhi\r\n", httpx.RemoteProtocolError, "(incomplete chunked read)"),
        (EVENTS + b"2\r\nhi!!", httpx.RemoteProtocolError, "malformed chunk footer"),
        (EVENTS + b"0x2\r\nhi\r\n0\r\n\r\n", httpx.RemoteProtocolError, "illegal chunk header"),
        (EVENTS + b"-2\r\nhi\r\n0\r\n\r\n", httpx.RemoteProtocolError, "illegal chunk header"),
        (EVENTS + b"1" * 40, httpx.RemoteProtocolError, "illegal chunk header"),
        (b"hello\r\n\r\n", httpx.RemoteProtocolError, "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", httpx.RemoteProtocolError, "illegal header line"),
        (b"HTTP/1.1 200 OK\r\na : b\r\n\r\n", httpx.RemoteProtocolError, "illegal header line"),
        (b"HTTP/1.1 200 OK\r\n folded: b\r\n\r\n", httpx.RemoteProtocolError, "continuation line"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
            httpx.RemoteProtocolError,
            "conflicting Content-Length",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nhi", httpx.RemoteProtocolError, "bad Con"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            httpx.RemoteProtocolError,
            "Only Transfer-Encoding: chunked",
        ),
        (b"HTTP/1.1 101 Switching\r\n\r\n", httpx.RemoteProtocolError, "another protocol"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, httpx.RemoteProtocolError, "too long"),
        (
            EVENTS + b"0\r\nx: " + b"y" * 20_000,
            httpx.RemoteProtocolError,
            "trailers of the answer are too long",
        ),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(
    said: bytes, kind: type[httpx.TransportError], words: str
) -> None:
    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(said)

        return say

    async with serving(talk) as server, opened() as transport:
        with pytest.raises(kind, match=re.escape(words)):
            await answer(transport, post(server))


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    trailers=st.sampled_from([b"", b"x: y\r\n", b"x: y\r\nz: \r\n"]),
    behind=st.sampled_from([b"", b"more"]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_chunks_are_what_h11_says_they_are(
    pieces: list[bytes], trailers: bytes, behind: bytes, cuts: list[int]
) -> None:
    chunks = b"".join(b"%X\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    said = chunks + b"0\r\n" + trailers + b"\r\n"
    places = sorted({0, *(cut for cut in cuts if cut < len(said)), len(said)})
    cut = [said[a:b] for a, b in pairwise(places)]
    oracle = h11.Connection(h11.CLIENT)
    oracle.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    oracle.send(h11.EndOfMessage())
    oracle.receive_data(EVENTS + said)
    expected = b""
    while not isinstance(event := oracle.next_event(), h11.EndOfMessage):
        expected += bytes(event.data) if isinstance(event, h11.Data) else b""

    body = ChunkedBody()
    found = b""
    for part in cut:
        assert not body.over
        came: list[bytes] = []
        body.feed(part + (behind if part is cut[-1] else b""), came)
        found += b"".join(came)

    assert (found, body.over, body.rest) == (expected, True, behind)


async def test_a_connection_is_kept_only_where_another_request_may_follow() -> None:
    for said in (
        OK.replace(b"\r\n\r\n", b"\r\nConnection: Keep-Alive, Close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"and nobody asked for this",
    ):
        async with serving(said) as server, opened() as transport:
            for _ in range(2):
                assert await answer(transport, post(server)) == (200, b"hi")
            assert server.connections == 2


async def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    closed = asyncio.Event()

    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK)
            await writer.drain()
            writer.close()
            closed.set()

        return say

    async with serving(talk) as server, opened() as transport:
        for number in range(1, 4):
            assert await answer(transport, post(server)) == (200, b"hi")
            await closed.wait()
            closed.clear()
            assert server.connections == number


async def test_a_connection_that_nobody_used_for_long_is_not_used_again() -> None:
    async with serving(OK) as server, opened(kept_seconds=-1.0) as transport:
        for _ in range(2):
            await answer(transport, post(server))
        assert server.connections == 2


async def test_an_answer_that_is_left_closes_its_connection() -> None:
    async with serving(EVENTS + b"2\r\nhi\r\n") as server, opened() as transport:
        response = await transport.handle_async_request(post(server))
        await response.aclose()
        await response.aclose()
        assert await anext(aiter(await reopened(transport, server))) == b"hi"
        assert server.connections == 2


async def reopened(transport: DirectTransport, server: Server) -> httpx.AsyncByteStream:
    response = await transport.handle_async_request(post(server))
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


async def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    silent = asyncio.Event()

    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            if len(server.asked) > 1:
                writer.write(OK)
                return
            silent.set()
            assert await reader.read() == b"", "the client hangs up"

        return say

    async with serving(talk) as server, opened(most=1) as transport:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, transport, post(server))
            await silent.wait()
            tasks.cancel_scope.cancel()
        assert await answer(transport, post(server)) == (200, b"hi")


async def test_no_more_connections_are_opened_than_are_allowed() -> None:
    async with serving(OK) as server, opened(most=2) as transport:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(answer, transport, post(server))
        assert (len(server.asked), server.connections) == (6, 2)


@pytest.mark.parametrize("value", ["a\r\nevil: yes", "a\nb", "a\0b", "a\r", "é\x7f"])
async def test_a_header_that_would_be_another_one_is_never_sent(value: str) -> None:
    async with serving(OK) as server, opened() as transport:
        request = httpx.Request(
            "POST", server.url, content=b"", headers=[(b"x", value.encode("latin-1"))]
        )
        with pytest.raises(httpx.LocalProtocolError, match="a header has a character"):
            await answer(transport, request)
        assert server.asked == []


async def test_an_answer_that_comes_before_the_request_was_sent_is_read() -> None:
    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
            await writer.drain()
            assert await reader.read(1), "the body is on its way"
            await reader.read()

        return say

    async with serving(talk) as server, opened() as transport:
        assert await answer(transport, post(server, b"x" * 50_000_000)) == (413, b"big")


async def test_a_reader_that_takes_its_time_keeps_the_server_waiting() -> None:
    block = b"%x\r\n%s\r\n" % (65536, b"x" * 65536)
    blocks = 800

    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(EVENTS)
            for _ in range(blocks):
                writer.write(block)
                await writer.drain()
            writer.write(b"0\r\n\r\n")

        return say

    async with serving(talk) as server, opened() as transport:
        stream = await reopened(transport, server)
        for _ in range(2000):
            await asyncio.sleep(0)
        sizes = [len(piece) async for piece in stream]
        assert sum(sizes) == 65536 * blocks
        assert max(sizes) < 1024 * 1024


async def test_chunks_come_apart_for_who_asks_for_that() -> None:
    said = EVENTS + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    async with serving(said) as server, opened() as transport:
        assert [piece async for piece in await reopened(transport, server)] == [b"abc"]
        request = post(server)
        request.extensions["chunks_apart"] = True
        response = await transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        assert [piece async for piece in response.stream] == [b"a", b"bc"]


async def test_nobody_listening_is_said_as_httpx_says_it() -> None:
    async with opened() as transport:
        request = httpx.Request("GET", "http://127.0.0.1:9/")
        with pytest.raises(httpx.ConnectError, match="All connection attempts failed"):
            await transport.handle_async_request(request)
        request = httpx.Request("GET", "ftp://127.0.0.1:9/")
        with pytest.raises(httpx.UnsupportedProtocol, match="unsupported protocol 'ftp://'"):
            await transport.handle_async_request(request)


def test_a_chunk_costs_a_few_steps_however_many_come_at_once() -> None:
    data = b"c8\r\n%s\r\n" % (b"x" * 200) * 1000

    work = work_of(lambda: ChunkedBody().feed(data, []))

    assert work.steps < 1000 * 20


def test_the_reason_and_the_headers_are_as_they_came() -> None:
    head = Head(b"HTTP/1.1 404 Not  Here\r\nX-One: a \r\nx-one:\tb\r\nempty:\r\n\r\n")

    assert (head.status, head.reason, head.version) == (404, b"Not  Here", b"1.1")
    assert head.headers == [(b"X-One", b"a"), (b"x-one", b"b"), (b"empty", b"")]


async def test_what_came_before_a_chunk_that_is_not_legal_is_read() -> None:
    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(EVENTS + b"2\r\nhi\r\nno size\r\n")

        return say

    async with serving(talk) as server, opened() as transport:
        stream = aiter(await reopened(transport, server))
        assert await anext(stream) == b"hi"
        with pytest.raises(httpx.RemoteProtocolError, match="illegal chunk header"):
            await anext(stream)


@pytest.mark.parametrize("begun", [b"", EVENTS])
async def test_a_server_that_says_nothing_for_long_is_a_read_time_out(begun: bytes) -> None:
    def talk(server: Server) -> Talk:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(begun)
            assert await reader.read() == b"", "the client hangs up"

        return say

    async with serving(talk) as server, opened(most=1) as transport:
        for _ in range(2):
            request = post(server)
            request.extensions["timeout"] = {"read": 0.02}
            with anyio.fail_after(60), pytest.raises(httpx.ReadTimeout):
                await answer(transport, request)


@pytest.mark.parametrize(
    ("name", "value"), [("content-length", "1"), ("transfer-encoding", "chunked")]
)
async def test_a_request_that_says_what_is_not_so_of_its_body_is_never_sent(
    name: str, value: str
) -> None:
    async with serving(OK) as server, opened() as transport:
        with pytest.raises(httpx.LocalProtocolError, match="(?i)" + name):
            await answer(transport, post(server, b"{}", **{name: value}))
        assert server.asked == []


async def test_a_connection_that_we_said_to_close_is_not_used_again() -> None:
    async with serving(OK) as server, opened() as transport:
        for _ in range(2):
            await answer(transport, post(server, connection="close"))
        assert server.connections == 2


def test_a_header_of_nothing_but_blanks_is_read_in_one_go() -> None:
    # By trial and error it took more than a minute; a regular expression counts as no step.
    data = b"HTTP/1.1 200 OK\r\nx:" + b" " * 100_000
    assert Head(data + b"\r\n\r\n").headers == [(b"x", b"")]
    with pytest.raises(httpx.RemoteProtocolError, match="illegal header line"):
        Head(data + b"\0\r\n\r\n")


async def test_authorities_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")

    with pytest.raises(PostError, match=r"in `/nowhere/ca\.pem` .* cannot be read: No such file"):
        await post_json("https://127.0.0.1:1", b"{}", 60)
