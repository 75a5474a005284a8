"""The worker process for schemas that are not simple: started lazily, serial, killable."""

import json
import signal
import sys
from collections.abc import Mapping
from typing import Any

import anyio

from aish.core.json import JsonValue
from aish.system.offline import permit_attempts
from aish.system.process.child import Child, child_environment, start_child
from aish.system.process.reaper import Reaper
from aish.system.schema.check import TOO_LONG, Schema, SchemaProblem

_PATIENCE = 20.0
"""Seconds for a start, and for an answer: the worker itself bounds its CPU time."""
_LONGEST_ANSWER = 1 << 20
_WORKER = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from aish.system.schema.worker_process import main; main()"
)
_ENDED = SchemaProblem((), "the schema checker has ended", "schema")


class SchemaWorker:
    """The worker process: started on first use, killed when it takes too long."""

    def __init__(self, reaper: Reaper | None = None) -> None:
        self._reaper = reaper
        self._child: Child | None = None
        self._lock = anyio.Lock()

    async def check(self, schema: Schema, value: JsonValue) -> tuple[SchemaProblem, ...]:
        """The problems of a value, in at most a second of CPU time."""
        try:
            request = json.dumps([schema, value], default=_plain).encode() + b"\n"
        except (RecursionError, ValueError, TypeError):
            return (SchemaProblem((), "cannot be written as JSON", "schema"),)
        async with self._lock:
            return await self._exchange(request)

    async def close(self) -> int | None:
        """End the process, if there is one: its exit code."""
        child, self._child = self._child, None
        return await child.stop(0) if child is not None else None

    async def _exchange(self, request: bytes) -> tuple[SchemaProblem, ...]:
        """Send a request and return its answer; on any failure the process is discarded."""
        answer: bytes | None = None
        code = None
        try:
            child = self._child = self._child or await self._start()
            with anyio.move_on_after(_PATIENCE):
                await child.write(request)
                answer = await child.read_line(_LONGEST_ANSWER)
        except OSError:
            answer = b""
        finally:
            if not answer:
                code = await self.close()
        if not answer:
            return (TOO_LONG if answer is None or code == -signal.SIGPROF else _ENDED,)
        return tuple(
            SchemaProblem(tuple(path), message, keyword, key, tuple(allowed))
            for path, message, keyword, key, allowed in json.loads(answer)
        )

    async def _start(self) -> Child:
        """A worker that has finished its imports; that time is not charged to the schema."""
        paths = json.dumps([path for path in sys.path if path])
        with permit_attempts():
            self._child = child = await start_child(
                [sys.executable, "-I", "-S", "-c", _WORKER, paths],
                cwd="/",
                env=child_environment({}, {}),
                reaper=self._reaper,
                is_own=True,
            )
        with anyio.move_on_after(_PATIENCE):
            if await child.read_line(_LONGEST_ANSWER):
                return child
        raise OSError("the schema checker did not start")


def _plain(value: Any) -> Any:
    """A JSON-compatible form of a mapping that is not a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
