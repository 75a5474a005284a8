"""Commands whose whole tree ends with them, processes that left their group included.

The run talks to one warm process, started by the first command; that forks a guard for each
command (`supervisor_process`). A command costs two forks and no start of an interpreter.
"""

import asyncio
import base64
import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.system.process.child import PipeWriter
from aish.system.process.reaper import Reaper, start_script, wait_for_script
from aish.system.process.reaper_process import MARK, processes_with_mark

SCRIPT = Path(__file__).with_name("supervisor_process.py")
_KILLED_WITHIN = 6.0
_MOST_SOCKETS = 253
"""What the kernel passes in one message."""


@frozen
class Landlock:
    """The paths below which a command may write, and those below which it may read."""

    write: tuple[str, ...]
    read: tuple[str, ...]


WantedSocket = tuple[Literal["tcp", "udp"], str, int]
"""A socket to open in a sandbox's network namespace: the address, which `lo` gets, and port."""


class NetworkNamespaceError(OSError):
    """The network namespace of a sandbox cannot be entered, or not be given an address."""


@frozen
class Command:
    """Command to start. `wrapped` says that `argv` begins with the program of a sandbox.

    With a `seccomp` filter, which `aish.system.process.seccomp` makes, it gets no capabilities
    under Landlock, writes no core dumps, and reaches no abstract socket of other processes.

    `sockets` need bubblewrap with `--unshare-net`: they are open before the command runs. `given`
    are paths with their devices and inodes: where it would see something else there, it is not
    started.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    landlock: Landlock | None = None
    wrapped: bool = False
    seccomp: bytes = b""
    sockets: tuple[WantedSocket, ...] = ()
    given: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Supervised:
    """A started command and all that it started; `stop` has to be called in the end."""

    def __init__(
        self, control: socket.socket, mark: bytes, on_gone: Callable[[], None] | None = None
    ) -> None:
        self.pid = 0
        self._on_gone = on_gone
        self._mark = mark
        self._control = control
        self._rest = b""
        self._code: int | None = None
        self._started = anyio.Event()
        self._ended = anyio.Event()
        self._gone = anyio.Event()
        self._failure: OSError | None = None
        self.sockets: list[socket.socket] = []
        """Those that the command asked for, in this order; `stop` does not close them."""
        asyncio.get_running_loop().add_reader(control.fileno(), self._hear)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, `None` while it runs; a signal is negative."""
        return self._code

    async def wait(self) -> int:
        """Wait for the command's end; what it left behind may still run."""
        await self._ended.wait()
        return -signal.SIGKILL if self._code is None else self._code

    async def wait_until_gone(self) -> None:
        await self._gone.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send SIGTERM or SIGKILL to all that is left of it."""
        with contextlib.suppress(OSError):  # it is gone
            self._control.send(b"t" if number == signal.SIGTERM else b"k")

    async def stop(self, grace: float) -> int:
        """End all of it, by force after `grace` seconds; must not be cancelled."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._gone.is_set() and not self._ended.is_set():
                self.signal(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self._gone.wait()
            if not self._gone.is_set():
                self.signal(signal.SIGKILL)
                with anyio.move_on_after(_KILLED_WITHIN):
                    await self._gone.wait()
        if self._code is None:
            # Something killed the guard, or it could not end everything: the mark is left.
            for pid in processes_with_mark({self._mark}, {os.getpid()}):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._finish()
        return -signal.SIGKILL if self._code is None else self._code

    def abandon(self) -> None:
        """Let its guard end all of it: SIGTERM, SIGKILL."""
        with contextlib.suppress(OSError):  # it is gone
            self._control.shutdown(socket.SHUT_RDWR)

    async def wait_until_started(self) -> None:
        """Wait until it runs.

        Raises:
            OSError: it cannot be started.
        """
        await self._started.wait()
        if not self.pid:
            raise self._failure or OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _hear(self) -> None:
        try:
            chunk, descriptors, _, _ = socket.recv_fds(self._control, 4096, _MOST_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            chunk, descriptors = b"", []
        for descriptor in descriptors:
            opened = socket.socket(fileno=descriptor)
            opened.setblocking(False)
            opened.set_inheritable(False)
            self.sockets.append(opened)
        if not chunk:
            self._finish()
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            match word:
                case b"pid":
                    self.pid = int(number)
                    self._started.set()
                case b"exit":
                    self._code = int(number)
                    self._ended.set()
                case b"network":
                    why = number.decode("utf-8", "replace")
                    self._failure = NetworkNamespaceError(errno.EPERM, why)
                case b"error":
                    self._failure = OSError(int(number), os.strerror(int(number)))
                case _:  # the sockets have come with it
                    pass

    def _finish(self) -> None:
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
        for event in (self._started, self._ended, self._gone):
            event.set()
        if self._on_gone is not None:
            self._on_gone()


class Supervisor:
    """Starts commands; the processes that it needs start with the first one."""

    def __init__(self, reaper: Reaper | None = None) -> None:
        self._reaper = reaper
        self._mark = secrets.token_hex(16)
        self._count = 0
        self._requests: socket.socket | None = None
        self._pid = 0
        self._started: weakref.WeakSet[Supervised] = weakref.WeakSet()

    async def start(
        self, command: Command, *, folder: int, streams: tuple[int, int, int]
    ) -> Supervised:
        """Start a command in the folder of a descriptor.

        Raises:
            OSError: it cannot be started.
        """
        if self._reaper is not None:
            self._reaper.require_room()
        self._count += 1
        mark = f"{self._mark}-{self._count}"
        request = _encode_request(command, {**command.env, MARK: mark})
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            self._send([theirs.fileno(), *streams, folder])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        on_gone = None
        if self._reaper is not None:
            self._reaper.count(mark)
            on_gone = partial(self._reaper.uncount, mark)
        process = Supervised(ours, mark.encode() + b"\0", on_gone)
        self._started.add(process)
        try:
            await _write(ours, request)
            await process.wait_until_started()
        except BaseException:
            # Whatever was started ends with its control socket.
            await process.stop(0)
            for opened in process.sockets:
                opened.close()
            raise
        return process

    def close(self) -> None:
        if self._requests is not None:
            for left in self._started:
                left.abandon()
            self._finish()
            if self._reaper is not None:
                self._reaper.unmark(self._mark)

    def _finish(self) -> None:
        assert self._requests is not None
        self._requests.close()
        self._requests = None
        wait_for_script(self._pid)

    def _send(self, descriptors: list[int]) -> None:
        if self._requests is None:
            self._start()
        assert self._requests is not None
        try:
            socket.send_fds(self._requests, [b"+"], descriptors)
        except BrokenPipeError:  # somebody killed it; the guards are left, and need it no more
            self._finish()
            self._start()
            socket.send_fds(self._requests, [b"+"], descriptors)

    def _start(self) -> None:
        if self._reaper is not None:
            self._reaper.mark(self._mark)
        ours, theirs = socket.socketpair()
        try:
            self._pid = start_script(SCRIPT, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._requests = ours


async def _write(control: socket.socket, data: bytes) -> None:
    writer = PipeWriter(os.dup(control.fileno()))
    try:
        await writer.write(data)
    except BrokenPipeError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    finally:
        writer.close()


def _encode_request(command: Command, env: Mapping[str, str]) -> bytes:
    words = [*command.argv, *env, *env.values()]
    try:
        fits = bool(command.argv) and not any(b"\0" in os.fsencode(word) for word in words)
    except UnicodeEncodeError:  # a lone surrogate
        fits = False
    if not fits:
        raise OSError(errno.EINVAL, "a word cannot be passed to a process")
    request: dict[str, JsonValue] = {
        "argv": list(command.argv),
        "env": dict(env),
        "wrapped": command.wrapped,
    }
    if command.landlock is not None:
        request |= {"write": command.landlock.write, "read": command.landlock.read}
    if command.seccomp:
        request["seccomp"] = base64.b64encode(command.seccomp).decode("ascii")
    if command.sockets:
        request["sockets"] = command.sockets
    if command.given:
        request["given"] = command.given
    body = json.dumps(request).encode()
    return struct.pack("!I", len(body)) + body
