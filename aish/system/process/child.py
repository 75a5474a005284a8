"""Child processes: argv lists, a small environment, a process group of their own.

The leader is reaped only after its group was told to end, so that the group's number is not reused
and no signal reaches an unrelated process.
"""

import asyncio
import codecs
import contextlib
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.lowlevel

from aish.core.frozen import frozen
from aish.system.files import open_append
from aish.system.platform.forms import is_portable
from aish.system.platform.processes import (
    exit_code_of,
    hide_from_others,
    open_end,
    signal_group,
)
from aish.system.process.reaper import Reaper
from aish.system.process.reaper_process import MARK, holders_of, processes_with_mark
from aish.system.secrets.secrets import Secrets, StreamMask

_KILLED_WITHIN = 5.0
_PASSES = 5


@cache
def hide_process() -> None:
    """Close this process's environment and memory to other processes of its user.

    A child could otherwise read keys in `/proc`. The kernel refuses it to all but root; in
    bubblewrap there is no such process to be seen.
    """
    hide_from_others()


class Process:
    """A started child; `stop` has to be called in the end."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", pipes: set[int], reaper: Reaper | None, mark: str
    ) -> None:
        self._popen = popen
        self._mark = mark
        self._pipes = pipes
        self._reaper = reaper
        self._ended = anyio.Event()
        self._is_over = False
        self.pid = popen.pid
        self._watched = open_end(popen.pid)
        if self._watched is not None:
            asyncio.get_running_loop().add_reader(self._watched, self._on_end)

    @property
    def exit_code(self) -> int | None:
        if self._popen.returncode is not None:
            return self._popen.returncode
        code = exit_code_of(self.pid)
        if is_portable():  # it is reaped
            self._popen.returncode = code
        return code

    async def wait(self) -> int:
        while (code := self.exit_code) is None:
            if self._watched is not None:
                await self._ended.wait()
            else:
                await anyio.sleep(_POLL)
        return code

    def signal(self, number: signal.Signals) -> None:
        if not self._is_over:
            signal_group(self.pid, number, is_reaped=self._popen.returncode is not None)

    async def stop(self, grace: float) -> int:
        """End the whole group, by force after `grace` seconds; must not be cancelled."""
        with anyio.CancelScope(shield=True):
            if self.exit_code is None and grace > 0:
                self.signal(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self.wait()
            self.signal(signal.SIGKILL)
            with anyio.move_on_after(_KILLED_WITHIN):
                await self.wait()
        self._kill_strays()
        return self._reap()

    def _kill_strays(self) -> None:
        """Kill processes that left the group (`setsid`): by a pipe of the child, or by its mark."""
        own, marks = {os.getpid()}, {self._mark.encode()} if self._mark else set()
        for _ in range(_PASSES):  # again, for what was forked while the others were killed
            strays = holders_of(self._pipes, own) | processes_with_mark(marks, own)
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not strays:
                break

    def _reap(self) -> int:
        self._unwatch()
        self._is_over = True
        if self._reaper is not None:
            self._reaper.forget(self.pid)
            self._reaper.unexpect(self._pipes)
            self._reaper.unmark(self._mark)
        try:
            return self._popen.wait(0)
        except subprocess.TimeoutExpired:  # stuck in the kernel; nothing can be done about it
            self._popen.returncode = -signal.SIGKILL
            return -signal.SIGKILL

    def _on_end(self) -> None:
        self._unwatch()
        self._ended.set()

    def _unwatch(self) -> None:
        if self._watched is not None and not self._ended.is_set():
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._ended.set()


def start_process(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    reaper: Reaper | None,
    is_own: bool = False,
) -> Process:
    """Start a child with the given standard streams, in a session and a group of its own.

    It cannot read what this process has in its environment and memory, unless it is root. With a
    `MARK` in `env`, which no other process may have, what it starts ends with it in any session.

    Pipes among the streams must be created for this child: they identify its processes to the
    reaper before the number of the group is known, also when the child replaces some of them.

    Raises:
        OSError: it cannot be started.
    """
    hide_process()
    if reaper is not None and not is_own:
        reaper.require_room()
    pipes = {status.st_ino for status in map(os.fstat, streams) if stat.S_ISFIFO(status.st_mode)}
    if is_portable():  # nobody else can tell it from other processes
        env = {MARK: os.urandom(16).hex(), **env}
    mark = env.get(MARK, "")
    if reaper is not None:
        reaper.expect(pipes)
        if mark:
            reaper.mark(mark)
    try:
        popen = _popen(argv, cwd, env, streams)
    except BaseException:
        if reaper is not None:
            reaper.unexpect(pipes)
            reaper.unmark(mark)
        raise
    if reaper is not None:
        reaper.register(popen.pid)
        if not is_own:
            reaper.count(popen.pid)
    return Process(popen, pipes, reaper, mark)


def _popen(
    argv: Sequence[str], cwd: str | Path, env: Mapping[str, str], streams: tuple[int, int, int]
) -> "subprocess.Popen[bytes]":
    if not argv:
        raise OSError(errno.EINVAL, "there is no command")
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
        )
    except ValueError as error:  # a NUL or a lone surrogate in a word
        raise OSError(errno.EINVAL, f"a word cannot be passed to a process: {error}") from error


CHUNK = 1 << 16


class _PipeEnd:
    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class PipeReader(_PipeEnd):
    """The reading end of a pipe; unread data stays in the pipe."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._ready = 0
        self.at_end = False

    async def read(self, most: int = CHUNK) -> bytes:
        self._ready += 1
        if self._ready % 16 == 0:  # a continuous writer must not block the loop
            await anyio.lowlevel.checkpoint()
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, most)
            except BlockingIOError:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self._descriptor)
            else:
                self.at_end = not data
                return data
        return b""


class PipeWriter(_PipeEnd):
    async def write(self, data: bytes) -> None:
        """Write everything; a cancelled write may have written a part.

        Raises:
            BrokenPipeError: there is no reader any more, or `close` was called.
        """
        rest = memoryview(data)
        while rest:
            if self._descriptor is None:
                raise BrokenPipeError
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_writable(self._descriptor)


STDERR_LIMIT = 1 << 20
_HEAD = 2048
_TAIL = 4096
_CUT = b"\n[aish] the log ends here: the limit is reached\n"


class Child:
    """A running child; `stop` has to be called in the end, and may be called at any time."""

    def __init__(
        self, process: "ChildProcess", stdin: PipeWriter, stdout: PipeReader, stderr: "StderrLog"
    ) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    @property
    def stderr_excerpt(self) -> str:
        """The start of its standard error and its end."""
        return self._stderr.excerpt

    async def read(self, most: int = CHUNK) -> bytes:
        return await self._stdout.read(most)

    async def read_line(self, most: int) -> bytes:
        """The only line that is on its way; empty if the child ends first, or writes too much."""
        line = bytearray()
        while len(line) <= most and (piece := await self.read(1 << 20)):
            line += piece
            if piece.endswith(b"\n"):
                return bytes(line)
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`; one writer at a time.

        A cancelled write may leave half a line behind: then stop the child.

        Raises:
            BrokenPipeError: it does not read any more.
        """
        await self._stdin.write(data)

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, grace: float) -> int:
        """End it and its whole group: the end of input, SIGTERM, SIGKILL, `grace` between them."""
        with anyio.CancelScope(shield=True):
            self._stdin.close()
            if grace > 0:
                with anyio.move_on_after(grace):
                    await self._process.wait()
            code = await self._process.stop(grace)
            self._stdout.close()
            self._stderr.close()
        return code


class StderrLog:
    """Copies standard error to a file as it arrives, masked, up to a limit; keeps both ends.

    Some programs print the reason first, and a long trace after it; others print it last.
    """

    def __init__(self, descriptor: int, path: Path | None, secrets: Secrets) -> None:
        self._descriptor: int | None = descriptor
        self._log = open_append(path) if path is not None else None
        self._left = STDERR_LIMIT
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask = StreamMask(secrets)
        self._head = self._tail = ""
        self._is_cut = False
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._drain)

    @property
    def excerpt(self) -> str:
        """All of it, or its first and last lines with a line `…` between them."""
        self._drain_all()
        if not self._is_cut:
            return self._head + self._tail
        first, last = self._head.rpartition("\n")[0], self._tail.partition("\n")[2]
        return f"{first or self._head}\n…\n{last or self._tail}"

    def close(self) -> None:
        self._drain_all()
        self._end()

    def _drain_all(self) -> None:
        """Read available output; of a child that keeps writing, at most the limit."""
        for _ in range(STDERR_LIMIT // CHUNK):
            if not self._drain():
                return

    def _drain(self) -> bool:
        """Read at most the size of a pipe: the loop is not blocked. Whether there was any."""
        if self._descriptor is None:
            return False
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return False
        self._keep(self._mask.feed(self._decoder.decode(chunk)))
        if not chunk:
            self._end()
        return bool(chunk)

    def _end(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            rest = self._mask.feed(self._decoder.decode(b"", final=True))
            self._keep(rest + self._mask.flush())
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _keep(self, text: str) -> None:
        room = _HEAD - len(self._head)
        self._head += text[:room]
        rest = self._tail + text[room:]
        self._is_cut = self._is_cut or len(rest) > _TAIL
        self._tail = rest[-_TAIL:]
        if self._log is None or self._left <= 0 or not text:
            return
        data = text.encode("utf-8", "replace")
        head = data[: self._left] + (_CUT if len(data) >= self._left else b"")
        self._left -= len(data)
        with contextlib.suppress(OSError):  # a full disk is no reason to stop the child
            os.write(self._log, head)


async def start_child(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    reaper: Reaper | None = None,
    stderr_to: Path | None = None,
    secrets: Secrets | None = None,
    is_own: bool = False,
) -> Child:
    """Start a child in a group of its own that inherits only its three streams.

    A worker of our `own` does not count for the limit of the reaper.

    Raises:
        OSError: it cannot be started.
    """

    async def start(streams: tuple[int, int, int]) -> ChildProcess:  # ruff: ignore[unused-async] - a supervisor's is awaited
        return start_process(argv, cwd=cwd, env=env, streams=streams, reaper=reaper, is_own=is_own)

    return await child_of(start, stderr_to=stderr_to, secrets=secrets)


async def child_of(
    start: "Callable[[tuple[int, int, int]], Awaitable[ChildProcess]]",
    *,
    stderr_to: Path | None = None,
    secrets: Secrets | None = None,
) -> Child:
    """The child that `start` starts on three pipes.

    Raises:
        OSError: it cannot be started.
    """
    await anyio.lowlevel.checkpoint()
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        pipes = [_pipe(ours, theirs, reverse=number == 0) for number in range(3)]
        stderr = StderrLog(pipes[2][0], stderr_to, secrets or Secrets())
        ours.pop_all()
        stdin, stdout = PipeWriter(pipes[0][0]), PipeReader(pipes[1][0])
        try:
            process = await start((pipes[0][1], pipes[1][1], pipes[2][1]))
        except BaseException:
            stdin.close()
            stdout.close()
            stderr.close()
            raise
    return Child(process, stdin, stdout, stderr)


def _pipe(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack, *, reverse: bool
) -> tuple[int, int]:
    reading, writing = os.pipe()
    mine, other = (writing, reading) if reverse else (reading, writing)
    ours.callback(os.close, mine)
    theirs.callback(os.close, other)
    return mine, other


CHILD_ENV_NAMES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_GRACE = 0.5
_POLL = 0.02
# For the last output that a command's shell did not wait for.
_LINGER = 0.2

Stream = Literal["stdout", "stderr"]
Hear = Callable[[Stream, bytes], None]
"""Told each piece of output that is kept, as it comes."""


def child_environment(
    extra: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a child: six names of `environ`, and those of `extra`.

    A value of `None` in `extra` passes that name on as it is, if it is there.
    """
    variables: dict[str, str | None] = {**dict.fromkeys(CHILD_ENV_NAMES), **extra}
    values = {name: environ.get(name) if v is None else v for name, v in variables.items()}
    return {name: value for name, value in values.items() if value is not None}


@frozen
class CommandResult:
    """Exit code of a command and the beginning of its output; a signal is a negative code.

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
    timeout: float | None,  # ruff: ignore[async-function-with-timeout] - the output until then has to be returned
    limit_bytes: int,
    input: bytes | None = None,  # ruff: ignore[builtin-argument-shadowing] - named as in `subprocess.run`
    reaper: Reaper | None = None,
    hear: Hear | None = None,
) -> CommandResult:
    """Run a command to its end or time-out, and kill its whole process group then.

    Background processes are killed when it ends. Of each stream the first `limit_bytes` are kept,
    and passed to `hear` meanwhile. On cancellation they are left in `CUT_OFF`.

    Raises:
        OSError: it cannot be started.
    """

    async def start(streams: tuple[int, int, int]) -> Running:  # ruff: ignore[unused-async] - a supervisor's is awaited
        return start_process(argv, cwd=cwd, env=env, streams=streams, reaper=reaper)

    return await follow(start, timeout=timeout, limit_bytes=limit_bytes, input=input, hear=hear)


class Running(Protocol):
    """A started command: a `Process`, or one of a supervisor."""

    async def wait(self) -> int: ...

    def signal(self, number: signal.Signals) -> None: ...

    async def stop(self, grace: float) -> int:
        """End it and what it started, by force after `grace` seconds."""


class ChildProcess(Running, Protocol):
    """A started command that a `Child` talks to."""

    pid: int

    @property
    def exit_code(self) -> int | None: ...


async def follow(
    start: Callable[[tuple[int, int, int]], Awaitable[Running]],
    *,
    timeout: float | None,  # ruff: ignore[async-function-with-timeout] - the output until then has to be returned
    limit_bytes: int,
    input: bytes | None = None,  # ruff: ignore[builtin-argument-shadowing] - named as in `subprocess.run`
    hear: Hear | None = None,
    grace: float = _GRACE,
) -> CommandResult:
    """The result of a command that `start` starts on three streams; otherwise as `run_command`.

    Raises:
        OSError: it cannot be started.
    """
    with contextlib.ExitStack() as theirs:
        stdin, feeding = _input(theirs, input)
        (out, stdout), (err, stderr) = (
            _open_capture(theirs, limit_bytes, hear and partial(hear, "stdout")),
            _open_capture(theirs, limit_bytes, hear and partial(hear, "stderr")),
        )
        try:
            process = await start((stdin, stdout, stderr))
        except BaseException:
            _close(feeding, out, err)
            raise
    data = input or b""
    code: int | None = None
    cancelled = True
    try:
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, feeding, data)
                tasks.start_soon(out.gather)
                tasks.start_soon(err.gather)
                code = await process.wait()
                await _wait_for_end(out, err, _LINGER)
                process.signal(signal.SIGKILL)
                await _wait_for_end(out, err, _GRACE)
                tasks.cancel_scope.cancel()
        cancelled = False
    finally:
        ended = await process.stop(grace)
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


class _Capture:
    """An output stream: its beginning, and its total size."""

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


async def _wait_for_end(out: _Capture, err: _Capture, patience: float) -> None:
    """Wait for the end of both streams, which a background process may keep open."""
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


def _open_capture(
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
