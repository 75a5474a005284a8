"""A child process in a group of its own, whose number is ours until we say so (X8).

The leader is not waited for (reaped) before its group has been killed: until then the number of
the group cannot be given to somebody else's.
"""

import asyncio
import contextlib
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from aish.system.process.reaper import Reaper
from aish.system.process.reaper_process import holders_of

_KILLED_WITHIN = 5.0
_POLL = 0.02


class Process:
    """A started child; `stop` has to be called in the end."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", pipes: set[int], reaper: Reaper | None
    ) -> None:
        self._popen = popen
        self._pipes = pipes
        self._reaper = reaper
        self._ended = anyio.Event()
        self._watched: int | None = None
        self.pid = popen.pid
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old one
            self._watched = os.pidfd_open(popen.pid)
            asyncio.get_running_loop().add_reader(self._watched, self._on_end)

    @property
    def exit_code(self) -> int | None:
        """How the leader has ended, `None` while it runs; a signal is negative."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # whoever started us has SIGCHLD ignored: the code is lost
            return 0
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    async def wait(self) -> int:
        """Wait for the leader's end."""
        while (code := self.exit_code) is None:
            if self._watched is not None:
                await self._ended.wait()
            else:
                await anyio.sleep(_POLL)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, if there is one left."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def stop(self, grace: float) -> int:
        """End the whole group, by force after `grace` seconds; not to be cancelled."""
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
        """End what has left the group (`setsid`) and still holds a pipe it was started with."""
        for pid in holders_of(self._pipes, {os.getpid()}):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> int:
        self._unwatch()
        if self._reaper is not None:
            self._reaper.forget(self.pid)
            self._reaper.unexpect(self._pipes)
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
) -> Process:
    """Start a child with the given standard streams, in a session and a group of its own.

    Pipes among the streams have to be made for this child: they tell the reaper which process is
    ours before the number of the group is known, also when the child replaces some of them.

    Raises:
        OSError: it cannot be started.
    """
    pipes = {found.st_ino for found in map(os.fstat, streams) if stat.S_ISFIFO(found.st_mode)}
    if reaper is not None:
        reaper.expect(pipes)
    try:
        popen = _popen(argv, cwd, env, streams)
    except BaseException:
        if reaper is not None:
            reaper.unexpect(pipes)
        raise
    if reaper is not None:
        reaper.register(popen.pid)
    return Process(popen, pipes, reaper)


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
