"""The transport against a real server on the loopback: recorded, and played without it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from cassette_exchanges import HEAD
from hypothesis import given
from hypothesis import strategies as st

from aish.cassettes.http import taped
from aish.cassettes.interaction import Interaction
from aish.cassettes.matching import Matching
from aish.cassettes.places import NOWHERE
from aish.cassettes.tape import Kind, Tape, TapeRules, Way
from aish.system.secrets import Secrets

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Endpoint:
    """Answers every request by a script: bytes are sent, events are waited for."""

    script: list[bytes | anyio.Event]
    url: str = ""
    heard: list[bytes] = field(default_factory=list)

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            self.heard.append(await stream.receive())
            for step in self.script:
                if isinstance(step, anyio.Event):
                    await step.wait()
                else:
                    await stream.send(step)


@asynccontextmanager
async def endpoint(*script: bytes | anyio.Event) -> AsyncGenerator[Endpoint]:
    made = Endpoint(list(script))
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        made.url = f"http://127.0.0.1:{port}/v1/chat/completions"
        tasks.start_soon(listener.serve, made.serve)
        yield made
        tasks.cancel_scope.cancel()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def tape(way: Way, *recorded: Interaction, paced: bool = False, lenient: bool = False) -> Tape:
    ways: dict[Kind, Way] = dict.fromkeys(("model", "mcp", "exec"), way)
    return Tape(
        TapeRules(ways, paced=paced, lenient=lenient),
        recorded,
        Matching(),
        places=NOWHERE,
        secrets=Secrets(),
        monotonic=anyio.current_time,
    )


def nothing() -> httpx.AsyncBaseTransport:
    raise AssertionError("nothing may go live")


async def test_bytes_reach_the_caller_as_they_arrive_and_come_again_as_they_were_cut() -> None:
    more = anyio.Event()
    recording = tape("record")
    async with endpoint(OK, chunk(b"one"), more, chunk(b"two"), chunk(b"three") + END) as served:
        transport = taped(recording, "model", httpx.AsyncHTTPTransport)
        request = httpx.Request("POST", served.url, content=b'{"a": 1}')
        response = await transport.handle_async_request(request)
        live = response.aiter_raw()
        assert await anext(live) == b"one"
        more.set()
        pieces = [b"one", *[piece async for piece in live]]
        await response.aclose()
        await transport.aclose()
    kept = recording.finish(HEAD)

    player = taped(tape("replay", *kept), "model", nothing)
    again = await player.handle_async_request(
        httpx.Request("POST", served.url, content=b'{"a":1}')
    )

    assert again.status_code == 200
    assert again.reason_phrase == "OK"
    assert [piece async for piece in again.aiter_raw()] == pieces
    assert b"".join(pieces) == b"onetwothree"
