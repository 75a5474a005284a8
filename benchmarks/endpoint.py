"""A mock model endpoint in a thread, which notes when requests arrive and answers leave.

Answers are cut into one network write per `per_write` deltas. For tool turns, `calls` calls of
`tool` are asked for in each of the first `turns` answers of a conversation. With `counts` these
are the first of all answers, and each says how many tokens its request had, a token for 4 bytes.
A `text` is said four characters a delta. `api` says in which form (`answers.py`).
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from answers import ANSWERS, RESULT


@dataclass
class Script:
    deltas: int = 200
    per_write: int = 1
    first_byte: float = 0.0
    pause: float = 0.0
    turns: int = 0
    calls: int = 1
    tool: str = "mock__echo"
    arguments: str = '{"text": "hello"}'
    counts: bool = False
    text: str = ""
    api: str = "chat"


@dataclass
class Times:
    """`perf_counter` seconds, one entry a request."""

    arrived: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, script: Script, times: Times) -> None:
        self.script = script
        self.times = times
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = bytes(self.buffer[:head]).lower().split(b"\r\n")
        length = next(int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length"))
        if len(self.buffer) < head + 4 + length:
            return
        self.times.arrived.append(time.perf_counter())
        body = bytes(self.buffer[head + 4 : head + 4 + length])
        self.buffer.clear()
        if self.script.counts:
            self.answer(len(self.times.arrived) - 1, len(body) // 4)
        else:
            self.answer(body.count(RESULT[self.script.api]))

    def answer(self, rounds: int, tokens: int = 9) -> None:
        assert self.transport is not None
        script = self.script
        if rounds < script.turns:
            asked = script.tool, script.arguments
            calls = [(f"call_{rounds}_{index}", *asked) for index in range(script.calls)]
            said: Iterator[str] = iter(())
        else:
            calls = []
            said = (script.text[4 * n : 4 * n + 4] or f"word{n} " for n in range(script.deltas))
        parts = list(ANSWERS[script.api](said, calls, tokens))
        writes = [
            _chunked(b"".join(parts[start : start + script.per_write]))
            for start in range(0, len(parts), script.per_write)
        ]
        writes[0] = _HEAD + writes[0]
        writes[-1] += b"0\r\n\r\n"
        if script.first_byte or script.pause:
            loop = asyncio.get_running_loop()
            loop.call_later(script.first_byte, self.write_slowly, iter(writes), script.pause)
            return
        for write in writes:
            self.transport.write(write)
        self.times.answered.append(time.perf_counter())

    def write_slowly(self, writes: Iterator[bytes], pause: float) -> None:
        assert self.transport is not None
        for write in writes:
            self.transport.write(write)
            if pause:
                asyncio.get_running_loop().call_later(pause, self.write_slowly, writes, pause)
                return
        self.times.answered.append(time.perf_counter())


class Endpoint:
    """`with Endpoint(script) as endpoint:`; `url` ends in `/v1`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.times = Times()
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def forget(self) -> None:
        self.times.arrived.clear()
        self.times.answered.clear()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        made = self._loop.create_server(
            lambda: _Connection(self.script, self.times), "127.0.0.1", 0
        )
        server = self._loop.run_until_complete(made)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.close()
