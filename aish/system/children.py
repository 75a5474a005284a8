"""Child processes: argv lists, a small environment, a group of their own, killed with the run (X8).

`start_child` is for a process to talk to, `run_command` for one that is run to its end.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from aish.core.frozen import frozen
from aish.system.child import Child, start_child
from aish.system.pipes import PipeReader, PipeWriter
from aish.system.process import Process, start_process
from aish.system.reaper import Reaper

__all__ = [
    "CHILD_ENV_NAMES",
    "CUT_OFF",
    "Child",
    "CommandResult",
    "Hear",
    "Reaper",
    "Stream",
    "child_environment",
    "kill_group",
    "run_command",
    "start_child",
]

CHILD_ENV_NAMES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_GRACE = 0.5
_POLL = 0.02
# For the last words of what a command's shell did not wait for.
_LINGER = 0.2

Stream = Literal["stdout", "stderr"]
Hear = Callable[[Stream, bytes], None]
"""Told each piece of output that is kept, as it comes."""


def child_environment(
    extra: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """What a child gets of `environ`: six names, and what `extra` says.

    A value of `None` in `extra` passes that name on as it is, if it is there.
    """
    wanted: dict[str, str | None] = {**dict.fromkeys(CHILD_ENV_NAMES), **extra}
    values = {name: environ.get(name) if v is None else v for name, v in wanted.items()}
    return {name: value for name, value in values.items() if value is not None}


@frozen
class CommandResult:
    """How a command ended and the beginning of what it printed; a signal is a negative code.

    `stdout_bytes` and `stderr_bytes` count everything that was printed.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0


CUT_OFF: ContextVar[list[CommandResult] | None] = ContextVar("CUT_OFF", default=None)
"""Where a command that is cancelled leaves what it has printed, for who wants that."""


async def run_command(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    timeout: float | None,  # ruff: ignore[async-function-with-timeout] - what was printed until then has to be returned
    limit_bytes: int,
    input: bytes | None = None,  # ruff: ignore[builtin-argument-shadowing] - named as in `subprocess.run`
    reaper: Reaper | None = None,
    hear: Hear | None = None,
) -> CommandResult:
    """Run a command to its end, or to the time-out, and its whole group with it.

    What it leaves running in the background is killed when it ends. Of each stream the first
    `limit_bytes` are kept, and told to `hear` meanwhile. Where it is cancelled, they are left in
    `CUT_OFF`.

    Raises:
        OSError: it cannot be started.
    """
    with contextlib.ExitStack() as theirs:
        stdin, feeding = _input(theirs, input)
        (out, stdout), (err, stderr) = (
            _captured(theirs, limit_bytes, hear and partial(hear, "stdout")),
            _captured(theirs, limit_bytes, hear and partial(hear, "stderr")),
        )
        try:
            streams = (stdin, stdout, stderr)
            process = start_process(argv, cwd=cwd, env=env, streams=streams, reaper=reaper)
        except BaseException:
            _close(feeding, out, err)
            raise
    ends = (feeding, input or b"", out, err)
    return await _followed(process, ends, timeout)


async def _followed(
    process: Process,
    ends: tuple[PipeWriter | None, bytes, "_Capture", "_Capture"],
    timeout: float | None,  # ruff: ignore[async-function-with-timeout] - what was printed until then has to be returned
) -> CommandResult:
    """A started command to its end, its streams fed and gathered meanwhile."""
    feeding, data, out, err = ends
    code: int | None = None
    cancelled = True
    try:
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, feeding, data)
                tasks.start_soon(out.gather)
                tasks.start_soon(err.gather)
                code = await process.wait()
                await _ended(out, err, _LINGER)
                process.signal(signal.SIGKILL)
                await _ended(out, err, _GRACE)
                tasks.cancel_scope.cancel()
        cancelled = False
    finally:
        ended = await process.stop(_GRACE)
        if code is None:
            with anyio.move_on_after(_GRACE, shield=True):
                await out.gather()
                await err.gather()
        _close(feeding, out, err)
        result = CommandResult(
            exit_code=ended if code is None else code,
            stdout=bytes(out.kept),
            stderr=bytes(err.kept),
            timed_out=code is None,
            truncated=out.total > len(out.kept) or err.total > len(err.kept),
            stdout_bytes=out.total,
            stderr_bytes=err.total,
        )
        left = CUT_OFF.get()
        if cancelled and left is not None:
            left.append(result)
    return result


async def kill_group(pgid: int, grace: float = _GRACE) -> None:
    """End a process group that we have not started as a `Child`: SIGTERM, `grace`, SIGKILL."""
    with anyio.CancelScope(shield=True), contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGTERM)
        with anyio.move_on_after(grace):
            while True:
                await anyio.sleep(_POLL)
                os.killpg(pgid, 0)
        os.killpg(pgid, signal.SIGKILL)


class _Capture:
    """One output stream: its beginning, and how much there was."""

    def __init__(self, descriptor: int, limit: int, hear: Callable[[bytes], None] | None) -> None:
        self._reader = PipeReader(descriptor)
        self._limit = limit
        self._hear = hear
        self.kept = bytearray()
        self.total = 0
        self.ended = anyio.Event()

    async def gather(self) -> None:
        while not self.ended.is_set():
            chunk = await self._reader.read()
            self.total += len(chunk)
            piece = chunk[: self._limit - len(self.kept)]
            self.kept += piece
            if piece and self._hear is not None:
                self._hear(piece)
            if not chunk:
                self.ended.set()

    def close(self) -> None:
        self._reader.close()


async def _ended(out: _Capture, err: _Capture, patience: float) -> None:
    """Wait for the end of both streams, which a process in the background may keep open."""
    with anyio.move_on_after(patience):
        await out.ended.wait()
        await err.ended.wait()


def _input(theirs: contextlib.ExitStack, data: bytes | None) -> tuple[int, PipeWriter | None]:
    if data is None:
        reading = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        theirs.callback(os.close, reading)
        return reading, None
    reading, writing = os.pipe()
    theirs.callback(os.close, reading)
    return reading, PipeWriter(writing)


def _captured(
    theirs: contextlib.ExitStack, limit: int, hear: Callable[[bytes], None] | None
) -> tuple[_Capture, int]:
    reading, writing = os.pipe()
    theirs.callback(os.close, writing)
    return _Capture(reading, limit, hear), writing


def _close(*ends: PipeWriter | _Capture | None) -> None:
    for end in ends:
        if end is not None:
            end.close()


async def _feed(writer: PipeWriter | None, data: bytes) -> None:
    if writer is not None:
        with contextlib.suppress(BrokenPipeError):
            await writer.write(data)
        writer.close()
