"""Ensures that no child process outlives this one, even after SIGKILL."""

import errno
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from aish.system.offline import permit_attempts
from aish.system.platform.forms import PORTABLE_WORD, is_portable
from aish.system.platform.processes import wait_for_end

_SCRIPT = Path(__file__).with_name("reaper_process.py")
_PATIENCE = 3.0
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class Reaper:
    """Small process, one per run, that the first child starts.

    It waits on a pipe that only this process holds, and kills the registered groups when the pipe
    closes.
    """

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._pid = 0
        self._lines: dict[bytes, None] = {}
        self.limit: int | None = None
        """How many children of others there may be at a time; what is our own does not count."""
        self._counted: set[object] = set()

    def require_room(self) -> None:
        """Refuse to start another child beyond the limit.

        Raises:
            OSError: the limit is reached.
        """
        if self.limit is not None and len(self._counted) >= self.limit:
            raise OSError(errno.EAGAIN, f"{self.limit} child processes run already")

    def expect(self, pipes: Collection[int]) -> None:
        """A child that will hold these pipes, named by inode, is about to be forked."""
        for inode in pipes:
            self._say(b"?%d\n" % inode)

    def unexpect(self, pipes: Collection[int]) -> None:
        """No child holds these pipes any more."""
        for inode in pipes:
            self._unsay(b"?%d\n" % inode, b"!%d\n" % inode)

    def count(self, child: object) -> None:
        """A child of others has started, which counts; a process group is known by its number."""
        self._counted.add(child)

    def uncount(self, child: object) -> None:
        """It has ended; a process group that is forgotten has."""
        self._counted.discard(child)

    def register(self, pgid: int) -> None:
        """Register a process group to be killed when this process ends."""
        self._say(b"+%d\n" % pgid)

    def forget(self, pgid: int) -> None:
        """Remove an ended group; to be called before its leader is reaped and its number reused."""
        self.uncount(pgid)
        self._unsay(b"+%d\n" % pgid, b"-%d\n" % pgid)

    def mark(self, mark: str) -> None:
        """Processes with `mark` in their environment are to be killed when this process ends."""
        self._say(b"m%s\n" % mark.encode())

    def unmark(self, mark: str) -> None:
        """No process has that mark any more."""
        self._unsay(b"m%s\n" % mark.encode(), b"n%s\n" % mark.encode())

    def own_folder(self, folder: Path) -> None:
        """A folder that is to be removed when this process ends."""
        self._say(b"f%s\n" % os.fsencode(folder))

    def disown_folder(self, folder: Path) -> None:
        self._unsay(b"f%s\n" % os.fsencode(folder), b"g%s\n" % os.fsencode(folder))

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
        reading, self._pipe = os.pipe()
        try:
            self._pid = start_script(_SCRIPT, reading)
        except OSError:
            os.close(self._pipe)
            self._pipe = None
            raise
        finally:
            os.close(reading)

    def _wait(self) -> None:
        wait_for_script(self._pid)


def start_script(script: Path, stdin: int) -> int:
    """Start a script of ours that outlives this process; returns its number.

    It is in a session of its own, with the signals of a terminal blocked and no environment.

    Raises:
        OSError: it cannot be started.
    """
    if not sys.executable:
        raise OSError("there is no Python interpreter to start a process with")
    if stdin == 0:  # not to be closed on exec, in case it is standard input already
        os.set_inheritable(stdin, True)
    words = [sys.executable, "-I", "-S", str(script), *([PORTABLE_WORD] * is_portable())]
    loader = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    with permit_attempts():
        return os.posix_spawn(
            sys.executable,
            words,
            loader,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=_BLOCKED,
        )


def wait_for_script(pid: int) -> None:
    """Wait for a process of `start_script`, which ends by itself, with a time limit."""
    wait_for_end(pid, _PATIENCE)
