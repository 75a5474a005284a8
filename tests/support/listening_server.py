"""A server of `aish.net.listen` with a few routes, and a client that sends bytes as they are."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import anyio
from starlette.requests import Request
from starlette.responses import Response

from aish.net.listen.access import Access, AccessRecord, Peer, ServerLimits
from aish.net.listen.addresses import Address, parse_address
from aish.net.listen.http_error import HttpError
from aish.net.listen.routes import (
    EventQueue,
    EventStreamResponse,
    Route,
    ServerEvent,
    connection_of,
    json_body,
    json_response,
)
from aish.net.listen.server import RunningServer, serve
from aish.net.listen.sockets import listen_on
from aish.net.listen.tokens import ClientToken, Tokens
from aish.system.clock import SystemClock

READER = "reader-token-" + "r" * 32
WRITER = "writer-token-" + "w" * 32
BEARER = f"Authorization: Bearer {READER}\r\n"
WRITING = f"Authorization: Bearer {WRITER}\r\n"
LIMITS = ServerLimits()


@dataclass
class Answer:
    """What a server said: its status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def code(self) -> str:
        """The word of an error."""
        code: str = self.json()["error"]["code"]
        return code

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Listening:
    """A running server, what it was asked, and what went wrong in it."""

    server: RunningServer
    tokens: Tokens
    calls: list[AccessRecord] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    queues: list[EventQueue] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[bytes] = field(default_factory=list)

    def end(self, what: str) -> None:
        """Note that something has ended."""
        self.ended.append(what)
        self.has_ended.set()

    async def until_ended(self, count: int) -> None:
        """Wait until so many things have ended."""
        with anyio.fail_after(60):
            while len(self.ended) < count:
                self.has_ended.clear()
                await self.has_ended.wait()

    @property
    def address(self) -> Address:
        return self.server.addresses[0]

    @property
    def host(self) -> str:
        return f"Host: {self.address.netloc}\r\n"

    async def open(self, address: Address | None = None) -> "Connection":
        """A connection to it."""
        to = address or self.address
        if to.path is not None:
            return Connection(*await asyncio.open_unix_connection(to.path))
        return Connection(*await asyncio.open_connection(to.host, to.port))

    async def ask(self, raw: bytes | str, address: Address | None = None) -> Answer:
        """What it answers to these bytes, on a connection of their own."""
        async with await self.open(address) as connection:
            await connection.send(raw)
            return await connection.answer()

    async def get(self, path: str = "/things", headers: str = BEARER) -> Answer:
        return await self.ask(f"GET {path} HTTP/1.1\r\n{self.host}{headers}\r\n")

    async def post(self, body: bytes, headers: str = WRITING, path: str = "/things") -> Answer:
        head = f"POST {path} HTTP/1.1\r\n{self.host}{headers}Content-Type: application/json\r\n"
        return await self.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


class Connection:
    """A socket to the server; what is sent is sent as it is."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, raw: bytes | str) -> None:
        """Send; that the server has hung up is seen when its answer is read."""
        self.writer.write(raw.encode() if isinstance(raw, str) else raw)
        with suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self) -> Answer:
        """The next answer, with its whole body."""
        with anyio.fail_after(60):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:-2]:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(lines[0].split(" ")[1]), headers, body, head + body)

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        with anyio.fail_after(60):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


def routes_of(listening: Callable[[], Listening]) -> list[Route]:
    """The routes: `/things` and others, each there for one kind of test."""

    async def things(request: Request, peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
        shown = {"name": peer.name, "scopes": sorted(peer.scopes), "transport": peer.transport}
        return json_response({**shown, "uid": peer.uid, "path": dict(request.path_params)})

    async def add(request: Request, peer: Peer) -> Response:
        listening().bodies.append(await request.body())
        return json_response({"got": await json_body(request)}, 201)

    async def wait(request: Request, peer: Peer) -> Response:
        listening().entered.set()
        gone = connection_of(request.scope).gone
        async with anyio.create_task_group() as group:
            group.start_soon(_after, gone, group.cancel_scope)
            await listening().proceed.wait()
            group.cancel_scope.cancel()
        if gone.is_set():
            listening().end("gone")
        return json_response({"waited": True})

    async def events(request: Request, peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
        queue = EventQueue(20)
        listening().queues.append(queue)
        listening().entered.set()
        return EventStreamResponse(queue, lambda: listening().end("stream"))

    async def fail(request: Request, peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
        raise ZeroDivisionError(READER)

    async def refuse(request: Request, peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
        raise HttpError(409, "conflict", "it was decided", hint="look again")

    return [
        Route("/things", ("GET",), "read", things),
        Route("/things", ("POST",), "write", add),
        Route("/things/{path:path}", ("GET",), "read", things),
        Route("/number/{n:int}", ("GET",), "read", things),
        Route("/wait", ("GET", "POST"), "read", wait),
        Route("/events", ("GET",), "read", events),
        Route("/fail", ("GET",), "read", fail),
        Route("/refuse", ("GET",), "read", refuse),
        Route("/", ("GET",), "", things, public=True),
        Route("/healthz", ("GET",), "", things, public=True, any_host=True),
    ]


async def _after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@asynccontextmanager
async def serving(
    *addresses: Address,
    limits: ServerLimits = LIMITS,
    access: dict[str, Any] | None = None,
    tls: Any = None,
    report: Callable[[Exception], None] | None = None,
) -> AsyncGenerator[Listening]:
    """A server, on a port of 127.0.0.1 unless it is told where."""
    tokens = Tokens(
        [ClientToken("reader", frozenset({"read"}), READER), ClientToken("writer", BOTH, WRITER)],
        SystemClock(),
    )
    found: list[Listening] = []
    calls: list[AccessRecord] = []
    faults: list[Exception] = []
    policy: dict[str, Any] = {"socket_scopes": BOTH, "is_refused": lambda _: False}
    with listen_on(addresses or (parse_address("127.0.0.1:0"),)) as listeners:
        async with serve(
            lambda: routes_of(lambda: found[0]),
            listeners,
            Access(tokens, **(policy | (access or {}))),
            report=report or faults.append,
            on_call=calls.append,
            limits=limits,
            tls=tls,
        ) as server:
            found.append(Listening(server, tokens, calls, faults))
            yield found[0]


BOTH = frozenset({"read", "write"})
EVENT = ServerEvent("x" * 1000)
