"""Tapes as tests need them, and an endpoint on the loopback that answers by a script."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx
from anyio.abc import SocketAttribute, SocketStream

from aish.cassettes.format.interaction import Interaction
from aish.cassettes.format.path_placeholders import NOWHERE, PathPlaceholders
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import CassetteRecorder, Kind, RecorderRules, Way
from aish.cassettes.replay.matching import Matching
from aish.system.clock import SystemClock
from aish.system.secrets.secrets import Secrets

HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
OK = HEAD + b"\r\n"
EVENTS = HEAD + b"content-type: text/event-stream\r\n\r\n"
END = b"0\r\n\r\n"

Step = bytes | anyio.Event


def chunk(data: bytes) -> bytes:
    """A piece of a body, as it is sent."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def json_answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer."""
    head = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-type: application/json\r\n" % status
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def recorder(
    way: Way,
    *recorded: Interaction,
    ways: Mapping[Kind, Way] | None = None,
    paced: bool = False,
    lenient: bool = False,
    secrets: Secrets | None = None,
    places: PathPlaceholders = NOWHERE,
    recording: Recording | None = None,
    allow: tuple[str, ...] = (),
) -> CassetteRecorder:
    """A tape on which everything goes one way, but for `ways`."""
    all_ways: dict[Kind, Way] = {"model": way, "mcp": way, "exec": way, **(ways or {})}
    return CassetteRecorder(
        RecorderRules(all_ways, allow, paced=paced, lenient=lenient),
        recorded,
        Matching(places=places),
        places=places,
        secrets=secrets or Secrets(),
        monotonic=SystemClock().monotonic,
        recording=recording,
    )


@dataclass
class Endpoint:
    """What was heard, and where."""

    scripts: list[list[Step]]
    url: str = ""
    port: int = 0
    heard: list[bytes] = field(default_factory=list)
    asked: anyio.Event = field(default_factory=anyio.Event)

    async def serve(self, stream: SocketStream) -> None:
        """Answer one connection by the next script, the last one again and again."""
        script = self.scripts[0] if len(self.scripts) == 1 else self.scripts.pop(0)
        async with stream:
            self.heard.append(await _request(stream))
            self.asked.set()
            for step in script:
                if isinstance(step, anyio.Event):
                    await step.wait()
                else:
                    await stream.send(step)


async def _request(stream: SocketStream) -> bytes:
    heard = b""
    while b"\r\n\r\n" not in heard:
        heard += await stream.receive()
    head, _, body = heard.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def endpoint(*scripts: list[Step]) -> AsyncGenerator[Endpoint]:
    """An endpoint that answers each connection by a script."""
    made = Endpoint(list(scripts))
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener,
        anyio.create_task_group() as tasks,
    ):
        made.port = listener.extra(SocketAttribute.local_port)  # ruff: ignore[django-extra] - no Django here
        made.url = f"http://127.0.0.1:{made.port}/v1/chat/completions"
        tasks.start_soon(listener.serve, made.serve)
        try:
            yield made
        finally:
            tasks.cancel_scope.cancel()


def nothing() -> httpx.AsyncBaseTransport:
    """For a replay: whoever wants to go live fails."""
    raise AssertionError("nothing may go live")


async def send(
    transport: httpx.AsyncBaseTransport,
    url: str,
    body: bytes = b'{"a": 1}',
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """One request, its answer's body not read."""
    request = httpx.Request(method, url, content=body, headers=headers)
    return await transport.handle_async_request(request)


async def pieces_of(response: httpx.Response) -> list[bytes]:
    """The body, as it was cut."""
    return [piece async for piece in response.aiter_raw()]


async def catch(
    transport: httpx.AsyncBaseTransport, url: str
) -> tuple[list[bytes], httpx.HTTPError]:
    """What came of a body before the connection broke, and how it broke."""
    pieces: list[bytes] = []
    try:
        response = await send(transport, url)
        async for piece in response.aiter_raw():
            pieces.append(piece)  # ruff: ignore[manual-list-comprehension] - it breaks off
    except httpx.HTTPError as error:
        return pieces, error
    raise AssertionError("nothing broke")
