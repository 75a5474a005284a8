"""Parses untrusted input in a child process that can be killed.

One child serves all packs of a run: it is started by the first call, stays warm, and is killed
when a call takes too much time or memory; the next call starts another one. Its CPU time is what
counts: wall time would depend on what else the machine does.
"""

import json
import math
import signal
from pathlib import Path
from typing import Any

import anyio

from aish.core.json import JsonValue
from aish.packs import parse_worker_child
from aish.packs.installed_libraries import child_command
from aish.packs.pack_error import PackError
from aish.system.process.child import Child, child_environment, start_child
from aish.system.process.reaper import Reaper

LARGEST_SOURCE = 2 * 1024 * 1024
"""Bytes of one file that are parsed."""
SECONDS = 10.0
_START_SECONDS = 20.0
_STARVED = 5
"""How many times its CPU time a call may take where the machine has no time for it."""
_LARGEST_ANSWER = 64 * 1024 * 1024
_SCRIPT = str(Path(parse_worker_child.__file__))


class ParseWorker:
    """The child process of a run, which handles one call at a time; `close` ends it."""

    def __init__(self, reaper: Reaper | None) -> None:
        self._reaper = reaper
        self._child: Child | None = None
        self._turn = anyio.Lock()

    @property
    def pid(self) -> int | None:
        """The process number of the child, `None` while there is none."""
        return None if self._child is None else self._child.pid

    async def run(
        self,
        call: str,
        *sources: bytes,
        seconds: float = SECONDS,
        largest: int = LARGEST_SOURCE,
        **options: JsonValue,
    ) -> Any:
        """The result of `module:function`, called in the child with these sources and options.

        The function takes `bytes` and keywords and returns a JSON value.

        Raises:
            PackError: a source has more than `largest` bytes (`too_large`), the child took more
                than `seconds` of CPU time, more than its memory or crashed (`too_slow`), or the
                function raised it.
        """
        size = max(map(len, sources), default=0)
        if size > largest:
            message = f"{size:,} bytes are too many to be parsed; {largest:,} are the most"
            raise PackError("too_large", message, limit=largest)
        sizes = [len(source) for source in sources]
        limit = seconds if math.isfinite(seconds) else None
        head = {"call": call, "options": options, "sizes": sizes, "seconds": limit}
        request = b"".join((json.dumps(head).encode(), b"\n", *sources))
        async with self._turn:
            answer = await self._answer(request, seconds)
        if "error" in answer:
            code, message, details = answer["error"]
            raise PackError(code, message, **details)
        if "failed" in answer:
            raise PackError("failed", f"the parser failed: {answer['failed']}")
        return answer["value"]

    async def close(self) -> int | None:
        """End the child, if there is one: its exit code."""
        child, self._child = self._child, None
        return None if child is None else await child.stop(0)

    async def _answer(self, request: bytes, seconds: float) -> dict[str, Any]:
        """The child's answer; without one it is not used again."""
        line, code = b"", None
        try:
            with anyio.move_on_after(_START_SECONDS + seconds * _STARVED) as scope:
                child = await self._ensure_child()
                async with anyio.create_task_group() as tasks:
                    # Written meanwhile: a child that dies early would otherwise block the write.
                    tasks.start_soon(_write, child, request)
                    line = await child.read_line(_LARGEST_ANSWER)
                    tasks.cancel_scope.cancel()
        finally:
            if not line.endswith(b"\n"):
                code = await self.close()
        if scope.cancelled_caught or code == -signal.SIGPROF:
            raise PackError("too_slow", f"parsing took more than {seconds:g} seconds")
        if not line.endswith(b"\n"):
            message = "parsing was stopped: it took too much memory, or is nested too deeply"
            raise PackError("too_slow", message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _ensure_child(self) -> Child:
        if self._child is not None and self._child.exit_code is not None:
            await self.close()
        if self._child is None:
            self._child = await start_child(
                child_command(_SCRIPT),
                cwd="/",
                env=child_environment({}, {}),
                reaper=self._reaper,
                is_own=True,
            )
        return self._child


async def _write(child: Child, request: bytes) -> None:
    try:
        await child.write(request)
    except BrokenPipeError:
        # The end of its output says the same.
        return
