"""A child process to talk to: bytes in, bytes out, its noise in a bounded log (M10)."""

import asyncio
import codecs
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel

from aish.system.files import open_append
from aish.system.pipes import CHUNK, PipeReader, PipeWriter
from aish.system.process import Process, start_process
from aish.system.reaper import Reaper
from aish.system.secrets import Secrets, StreamMask

STDERR_LIMIT = 1 << 20
_TAIL = 4096
_CUT = b"\n[aish] the log ends here: the limit is reached\n"


class Child:
    """A running child; `stop` has to be called in the end, and may be called at any time."""

    def __init__(
        self, process: Process, stdin: PipeWriter, stdout: PipeReader, stderr: "StderrLog"
    ) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr

    @property
    def pid(self) -> int:
        """The number of the process and of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it has ended, `None` while it runs; a signal is negative."""
        return self._process.exit_code

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error, masked."""
        return self._stderr.tail

    async def read(self, most: int = CHUNK) -> bytes:
        """Some bytes of its output; none at the end."""
        return await self._stdout.read(most)

    async def write(self, data: bytes) -> None:
        """Write all of `data`; one writer at a time.

        A write that is cancelled may leave half a line behind: then stop the child.

        Raises:
            BrokenPipeError: it does not read any more.
        """
        await self._stdin.write(data)

    def close_stdin(self) -> None:
        """Let it read the end of its input."""
        self._stdin.close()

    async def wait(self) -> int:
        """Wait for its end."""
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
    """Copies standard error to a file as it comes, masked, up to a limit; keeps the tail."""

    def __init__(self, descriptor: int, path: Path | None, secrets: Secrets) -> None:
        self._descriptor: int | None = descriptor
        self._log = open_append(path) if path is not None else None
        self._left = STDERR_LIMIT
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask = StreamMask(secrets)
        self._tail = ""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._drain)

    @property
    def tail(self) -> str:
        """The end of what was said so far."""
        self._drain()
        return self._tail

    def close(self) -> None:
        """Take what is there and close the log."""
        self._drain()
        self._end()

    def _drain(self) -> None:
        """Take what is there, but no more than fits a pipe, so that the loop goes on."""
        if self._descriptor is None:
            return
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return
        self._keep(self._mask.feed(self._decoder.decode(chunk)))
        if not chunk:
            self._end()

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
        self._tail = (self._tail + text)[-_TAIL:]
        if self._log is None or self._left <= 0 or not text:
            return
        data = text.encode("utf-8", "replace")
        kept = data[: self._left] + (_CUT if len(data) >= self._left else b"")
        self._left -= len(data)
        with contextlib.suppress(OSError):  # a full disk is no reason to end the child
            os.write(self._log, kept)


async def start_child(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    reaper: Reaper | None = None,
    stderr_to: Path | None = None,
    secrets: Secrets | None = None,
) -> Child:
    """Start a child in a group of its own, with nothing but its three streams.

    Raises:
        OSError: it cannot be started.
    """
    await anyio.lowlevel.checkpoint()
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        pipes = [_pipe(ours, theirs, reverse=number == 0) for number in range(3)]
        stderr = StderrLog(pipes[2][0], stderr_to, secrets or Secrets())
        ours.pop_all()
        stdin, stdout = PipeWriter(pipes[0][0]), PipeReader(pipes[1][0])
        streams = (pipes[0][1], pipes[1][1], pipes[2][1])
        try:
            process = start_process(argv, cwd=cwd, env=env, streams=streams, reaper=reaper)
        except BaseException:
            stdin.close()
            stdout.close()
            stderr.close()
            raise
    return Child(process, stdin, stdout, stderr)


def _pipe(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack, *, reverse: bool
) -> tuple[int, int]:
    """Our end and the child's end of a pipe; `reverse` where we are the writer."""
    reading, writing = os.pipe()
    mine, other = (writing, reading) if reverse else (reading, writing)
    ours.callback(os.close, mine)
    theirs.callback(os.close, other)
    return mine, other
