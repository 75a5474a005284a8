"""Ensures that no child process outlives this one, even after SIGKILL (M10, X8)."""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from aish.system.offline import permitted

_SCRIPT = Path(__file__).with_name("reaper_process.py")
_PATIENCE_MS = 3000
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class Reaper:
    """One small process per run, started by the first child.

    It waits on a pipe that only this process holds, and kills the registered groups when the pipe
    closes.
    """

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._pid = 0
        self._lines: dict[bytes, None] = {}

    def expect(self, pipes: Collection[int]) -> None:
        """A child that will hold these pipes, named by inode, is about to be forked."""
        for inode in pipes:
            self._say(b"?%d\n" % inode)

    def unexpect(self, pipes: Collection[int]) -> None:
        """No child holds these pipes any more."""
        for inode in pipes:
            self._unsay(b"?%d\n" % inode, b"!%d\n" % inode)

    def register(self, pgid: int) -> None:
        """Register a process group to be killed when this process ends."""
        self._say(b"+%d\n" % pgid)

    def forget(self, pgid: int) -> None:
        """Remove an ended group; to be called before its leader is reaped and its number reused."""
        self._unsay(b"+%d\n" % pgid, b"-%d\n" % pgid)

    def close(self) -> None:
        """End the process, after it has killed what is still registered."""
        if self._pipe is None:
            return
        os.close(self._pipe)
        self._pipe = None
        self._lines.clear()
        self._wait()

    def _say(self, line: bytes) -> None:
        self._lines[line] = None
        if self._pipe is None:
            self._start()
        self._send(line)

    def _unsay(self, line: bytes, undone: bytes) -> None:
        if self._lines.pop(line, b"") is None and self._pipe is not None:
            self._send(undone)

    def _send(self, line: bytes) -> None:
        """Send a line; if the reaper was killed, start a new one and send everything again."""
        assert self._pipe is not None
        try:
            os.write(self._pipe, line)
        except BrokenPipeError:
            os.close(self._pipe)
            self._wait()
            self._start()
            os.write(self._pipe, b"".join(self._lines))

    def _start(self) -> None:
        if not sys.executable:
            raise OSError("there is no Python interpreter to start the reaper with")
        reading, self._pipe = os.pipe()
        if reading == 0:  # not to be closed on exec, in case it is standard input already
            os.set_inheritable(reading, True)
        loader = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        try:
            with permitted():
                self._pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-I", "-S", str(_SCRIPT)],
                    loader,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, reading, 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    ],
                    setsid=True,
                    setsigmask=_BLOCKED,
                )
        except OSError:
            os.close(self._pipe)
            self._pipe = None
            raise
        finally:
            os.close(reading)

    def _wait(self) -> None:
        """Wait for the process, which ends by itself, with a time limit."""
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(self._pid)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(_PATIENCE_MS)
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
