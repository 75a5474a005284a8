"""A scripted model endpoint: a real HTTP/1.1 server on 127.0.0.1, byte for byte under control.

In a test:

    with ModelEndpoint([text_reply("hello"), tool_reply([("c1", "repo__file_read", "{}")])]) as end:
        ... base_url=end.base_url ...
    assert end.requests[0].json["model"] == "m"

A reply is a `Reply`, or a callable that gets the parsed request and returns one; instead of a
list, one callable may answer everything (what it raises is raised at the end of the `with`). The
parts of a reply are bytes (one write, and one HTTP chunk, each), a `Gate` (stops until the test
opens it), a `Pause`, `CUT` or `RESET`. `GET …/models` is answered without using up the script.
When the script is over the answer is a 500 that asks not to be retried.

As a program it streams a fixed number of deltas, at little cost, for benchmarks:

    python tests/support/model_endpoint.py --deltas 200 --port-file /tmp/port
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self

TURNS = 5
PATIENCE = 60.0


class Break(Enum):
    """How a connection can end in the middle of a reply."""

    CUT = "closed before the body is complete"
    RESET = "reset by a TCP RST"


CUT = Break.CUT
RESET = Break.RESET


class Gate:
    """A place in a reply where the server waits until the test lets it go on.

    With `opens_at=n` it opens by itself once `n` replies wait there: a barrier.
    """

    def __init__(self, *, opens_at: int | None = None) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._opens_at = opens_at
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.arrived = threading.Event()

    def open(self) -> None:
        """Let everyone through, now and later."""
        with self._lock:
            self._opened.set()
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # that server is gone
                loop.call_soon_threadsafe(event.set)

    def wait_arrived(self) -> None:
        """Block until a reply has come to this gate."""
        assert self.arrived.wait(PATIENCE), "no reply came to the gate"

    async def arrival(self) -> None:
        """The same for async tests."""
        await asyncio.to_thread(self.wait_arrived)

    async def passed(self) -> None:
        """For the server: wait here."""
        event = asyncio.Event()
        with self._lock:
            self._waiting.append((asyncio.get_running_loop(), event))
            full = self._opens_at is not None and len(self._waiting) >= self._opens_at
            if self._opened.is_set():
                event.set()
        self.arrived.set()
        if full:
            self.open()
        await event.wait()


@dataclass(frozen=True)
class Pause:
    """The pace of an endpoint that dribbles; never a way to wait for a test."""

    seconds: float


Part = bytes | Gate | Break | Pause
Framing = Literal["chunked", "length", "close", "raw"]


@dataclass(frozen=True)
class Reply:
    """`framing="raw"` means that the parts hold the head too; the connection closes after it."""

    parts: Iterable[Part] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    framing: Framing = "chunked"
    before_head: Gate | None = None
    keep_alive: bool = True

    def but(self, **changes: Any) -> "Reply":
        """The same reply with some fields changed."""
        return replace(self, **changes)


@dataclass
class Recorded:
    """One request as it came; `aborted` is set when the client left before the reply's end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    received: float
    answered: float | None = None
    aborted: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)

    async def abort_seen(self) -> None:
        """Wait until the server has seen the client leave."""
        seen = await asyncio.to_thread(self.aborted.wait, PATIENCE)
        assert seen, "the client did not close the connection"


Answer = Reply | Callable[[Any], Reply]


# ---------------------------------------------------------------------------------------------
# Builders


def sse(chunks: Iterable[Any], *, done: bool = True, newline: str = "\n") -> bytes:
    """An event stream; a chunk is an object, or text that goes into `data:` as it is."""
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    if done:
        lines.append("[DONE]")
    return "".join(f"data: {line}{newline}{newline}" for line in lines).encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chat-completions chunk."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


def usage(prompt: int = 7, completion: int = 3) -> dict[str, Any]:
    """The usage chunk, which has no choices."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def stream_reply(
    *parts: Part, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """A chunked event stream of these parts."""
    kind = {"content-type": "text/event-stream"}
    return Reply(parts=parts, status=status, headers={**kind, **(headers or {})})


def text_reply(text: str, *, pieces: Sequence[str] | None = None, finish: str = "stop") -> Reply:
    """An answer in words, in `pieces` if given, one network chunk each."""
    chunks = [delta(content=piece) for piece in (pieces if pieces is not None else [text])]
    head = delta(role="assistant", content="")
    parts = [sse([chunk], done=False) for chunk in (head, *chunks)]
    return stream_reply(*parts, sse([delta(finish), usage()]))


def tool_reply(
    calls: Sequence[tuple[str, str, str]], text: str = "", *, finish: str = "tool_calls"
) -> Reply:
    """An answer that asks for tools: `(id, name, arguments as JSON text)` each."""
    chunks: list[dict[str, Any]] = [delta(role="assistant", content=text or None)]
    for index, (call_id, name, arguments) in enumerate(calls):
        middle = len(arguments) // 2
        opening = {"name": name, "arguments": ""}
        chunks.append(
            delta(
                tool_calls=[
                    {"index": index, "id": call_id, "type": "function", "function": opening}
                ]
            )
        )
        chunks.extend(
            delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])
            for piece in (arguments[:middle], arguments[middle:])
            if piece
        )
    parts = [sse([chunk], done=False) for chunk in chunks]
    return stream_reply(*parts, sse([delta(finish), usage()]))


def json_reply(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """A whole JSON document, such as an error."""
    kind = {"content-type": "application/json"}
    return Reply(
        parts=(json.dumps(body).encode(),),
        status=status,
        headers={**kind, **(headers or {})},
        framing="length",
    )


def hanging_reply(gate: Gate) -> Reply:
    """A server that takes the request and says nothing until the gate opens."""
    return text_reply("late").but(before_head=gate)


def cut_up(body: bytes, *cuts: int) -> tuple[bytes, ...]:
    """The body in pieces that end at these offsets."""
    edges = [0, *cuts, len(body)]
    return tuple(body[start:end] for start, end in itertools.pairwise(edges) if end > start)


# ---------------------------------------------------------------------------------------------
# The server


async def _settled() -> None:
    """A connection gets its task, and loses its socket, some turns of the loop later."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class ModelEndpoint:
    """The server; a context manager with its own thread."""

    def __init__(
        self,
        replies: Sequence[Answer] | Callable[[Any], Reply] = (),
        *,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        record_bodies: bool = True,
        models: Reply | None = None,
    ) -> None:
        self._models = models
        self._answer_all = replies if callable(replies) else None
        self._script: list[Answer] = [] if callable(replies) else list(replies)
        self._tls = tls
        self._port = port
        self._record_bodies = record_bodies
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model-endpoint", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.requests: list[Recorded] = []
        self.failures: list[Exception] = []
        self.connections = 0
        self.open_connections = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the endpoint did not start"
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if self.failures and error is None:
            raise self.failures[0]

    def close(self) -> None:
        """Drop every connection and stop."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(stop.set)
            self._thread.join(PATIENCE)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What a model entry names."""
        return f"{self.origin}/v1"

    @property
    def asked(self) -> list[Any]:
        """The parsed bodies of all POST requests."""
        return [request.json for request in self.requests if request.method == "POST"]

    def queue(self, *replies: Answer) -> None:
        """Add to the script."""
        self._script.extend(replies)

    def wait_requests(self, count: int) -> None:
        """Block until so many requests have come."""
        self.wait_until(lambda: len(self.requests) >= count)

    def wait_closed(self) -> None:
        """Block until no connection is open."""
        self.wait_until(lambda: self.open_connections == 0)

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Block until this is so; it is looked at when a request has come, or a connection left."""
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE), "it did not happen"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(
            connected, "127.0.0.1", self._port, ssl=self._tls, limit=1 << 26
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        # What was accepted a moment ago cannot be attached to a closed server.
        await _settled()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _settled()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._changed:
            self.connections += 1
            self.open_connections += 1
            number = self.connections
        connection = writer.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (request := await self._read_request(reader, number)) is not None:
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()
            with self._changed:
                self.open_connections -= 1
                self._changed.notify_all()

    async def _read_request(self, reader: asyncio.StreamReader, number: int) -> Recorded | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        body = await self._read_body(reader, method, int(headers.get("content-length", "0")))
        request = Recorded(method, path, headers, body, number, time.monotonic())
        if not self._record_bodies:
            request.body = b"{}"
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        return request

    async def _read_body(self, reader: asyncio.StreamReader, method: str, size: int) -> bytes:
        del method  # of interest to those that break off
        return await reader.readexactly(size)

    def _choose(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return self._got(request)
        if self._answer_all is None and not self._script:
            return _refusal("the script is over")
        answer = self._answer_all or self._script.pop(0)
        if isinstance(answer, Reply):
            return answer
        try:
            # One that judges keys needs the head.
            return answer(request if getattr(answer, "reads_head", False) else request.json)
        except Exception as failure:
            self.failures.append(failure)
            return _refusal(f"the script failed: {failure!r}")

    def _got(self, request: Recorded) -> Reply:
        if request.path.endswith("/log"):
            rows = [[r.received, r.answered] for r in self.requests if r.method == "POST"]
            return json_reply(HTTPStatus.OK, rows)
        if request.path.endswith("/models"):
            listed = {"object": "list", "data": [{"id": "scripted"}]}
            return self._models or json_reply(HTTPStatus.OK, listed)
        return json_reply(HTTPStatus.NOT_FOUND, {"error": {"message": "nothing here"}})

    async def _answer(
        self, request: Recorded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send the reply; whether the connection may be used again."""
        reply = _named_as_asked(self._choose(request), request)
        try:
            whole = await self._send(reply, reader, writer)
        except ConnectionError:
            request.aborted.set()
            raise
        if whole:
            request.answered = time.monotonic()
        return whole and reply.framing in {"chunked", "length"} and reply.keep_alive

    async def _send(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the reply was sent whole."""
        if reply.before_head is not None:
            await self._pass(reply.before_head, reader)
        writer.writelines(_head(reply))
        for part in reply.parts:
            if isinstance(part, bytes):
                writer.write(_framed(part) if reply.framing == "chunked" else part)
                await writer.drain()
            elif isinstance(part, Gate):
                await self._pass(part, reader)
            elif isinstance(part, Pause):
                await asyncio.sleep(part.seconds)
            else:
                await _break(part, writer)
                return False
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    @staticmethod
    async def _pass(gate: Gate, reader: asyncio.StreamReader) -> None:
        """Wait at the gate, or until the client leaves."""
        passed = asyncio.ensure_future(gate.passed())
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({passed, left}, return_when=asyncio.FIRST_COMPLETED)
            if not passed.done():
                left.result()
                raise ConnectionResetError("the client left")
        finally:
            for task in (passed, left):
                task.cancel()
            await asyncio.gather(passed, left, return_exceptions=True)


_NAME = re.compile(rb'"model": ?"(?:scripted|claude-test|gpt-6)"')
"""The name of a model in an answer whose test says nothing of it."""


def named(reply: Reply, model: str | None, **more: str) -> Reply:
    """The answer of a model that calls itself so."""
    name = json.dumps({"model": model, **more})[1:-1].encode()
    renamed = (_NAME.sub(lambda _: name, p) if isinstance(p, bytes) else p for p in reply.parts)
    # Other parts than those of a tuple are made as they are sent, and may have no end.
    return reply.but(parts=tuple(renamed) if isinstance(reply.parts, tuple) else renamed)


def _named_as_asked(reply: Reply, request: Recorded) -> Reply:
    """The reply with the name that the model was asked by, as endpoints answer.

    A reply with a head of its own says in it how long it is, and stays as it is.
    """
    asked = re.search(rb'"model": ?"([^"\\]*)"', request.body)
    if asked is None or reply.framing == "raw":
        return reply
    return named(reply, asked[1].decode())


def _refusal(why: str) -> Reply:
    return json_reply(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        {"error": {"message": why}},
        {"x-should-retry": "false"},
    )


def _head(reply: Reply) -> Iterator[bytes]:
    if reply.framing == "raw":
        return
    reason = HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else "Odd"
    lines = [f"HTTP/1.1 {reply.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if reply.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    elif reply.framing == "length" and "content-length" not in reply.headers:
        lines.append(f"content-length: {sum(len(p) for p in reply.parts if isinstance(p, bytes))}")
    if reply.framing == "close" or not reply.keep_alive:
        lines.append("connection: close")
    yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _framed(part: bytes) -> bytes:
    # A chunk without content would end the body.
    return b"%x\r\n%b\r\n" % (len(part), part) if part else b""


async def _break(how: Break, writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    if how is Break.RESET:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


# ---------------------------------------------------------------------------------------------
# The program, for benchmarks


@dataclass(frozen=True)
class Act:
    """What the program plays: `turns` answers with tool calls, then one in words, and so on."""

    deltas: int
    turns: int
    calls: int
    tool: str
    arguments: str
    per_chunk: int

    def replies(self) -> Iterator[Reply]:
        """For ever."""
        words = self._words()
        asking = tool_reply(
            [(f"call_{index}", self.tool, self.arguments) for index in range(self.calls)]
        )
        while True:
            for _ in range(self.turns):
                yield asking
            yield words

    def _words(self) -> Reply:
        pieces = [sse([delta(content=f"word{n} ")], done=False) for n in range(self.deltas)]
        joined = [
            b"".join(pieces[start : start + self.per_chunk])
            for start in range(0, len(pieces), self.per_chunk)
        ]
        return stream_reply(*joined, sse([delta("stop"), usage()]))


def main() -> None:
    """Serve until a SIGTERM or SIGINT comes."""
    parser = argparse.ArgumentParser(description="a scripted model endpoint for benchmarks")
    parser.add_argument("--deltas", type=int, default=200, help="text deltas of an answer")
    parser.add_argument("--per-chunk", type=int, default=1, help="deltas per network chunk")
    parser.add_argument("--turns", type=int, default=0, help="tool turns before each text answer")
    parser.add_argument("--calls", type=int, default=1, help="tool calls per tool turn")
    parser.add_argument("--tool", default="mock__echo", help="wire name of the tool")
    parser.add_argument("--arguments", default="{}", help="arguments as JSON text")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path, help="where the port is written once listening")
    options = parser.parse_args()
    act = Act(
        deltas=options.deltas,
        turns=options.turns,
        calls=options.calls,
        tool=options.tool,
        arguments=options.arguments,
        per_chunk=options.per_chunk,
    )
    replies = act.replies()
    waiting = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    endpoint = ModelEndpoint(lambda _: next(replies), port=options.port, record_bodies=False)
    with endpoint:
        if options.port_file:
            beside = options.port_file.with_name(options.port_file.name + f".{os.getpid()}")
            beside.write_text(str(endpoint.port), encoding="ascii")
            beside.rename(options.port_file)
        else:
            print(endpoint.port, flush=True)
        signal.sigwait(waiting)


if __name__ == "__main__":
    main()
