"""Proof that a replay does not use the network: no socket, look-up or child process.

Python calls an audit hook before each such attempt, whichever module makes it, and in every thread.
Not covered are: a C library that opens sockets by itself, data over an existing connection, and
`_posixsubprocess.fork_exec` called directly. Pairs of connected sockets are allowed: an event loop
wakes itself with one.
"""

import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Self

from aish.core.errors import InternalError
from aish.system.guest import is_guest

_ATTEMPTS = {
    "socket.connect": "connect a socket",
    "socket.bind": "bind a socket",
    "socket.sendto": "send a datagram",
    "socket.sendmsg": "send a datagram",
    "socket.getaddrinfo": "look up an address",
    "socket.gethostbyname": "look up an address",
    "socket.gethostbyaddr": "look up a name",
    "socket.getnameinfo": "look up a name",
    "subprocess.Popen": "start a process",
    "os.posix_spawn": "start a process",
    "os.spawn": "start a process",
    "os.startfile": "start a process",
    "os.exec": "start a program",
    "os.system": "run a command",
    "os.fork": "fork",
    "os.forkpty": "fork",
    "pty.spawn": "start a process",
}
_SOCKET = "socket.__new__"
_ANONYMOUS = {socket.AF_UNIX, -1}
_SHOWN = 200

_armed: list[list["OfflineError"]] = []
_guests: list[list["OfflineError"]] = []
_within: ContextVar[tuple[int, ...]] = ContextVar("within", default=())
_permitted: ContextVar[bool] = ContextVar("permitted", default=False)


class OfflineError(InternalError):
    """An attempt to leave the process where that is forbidden: an internal error."""

    code = "offline"


@contextmanager
def offline() -> Generator[list[OfflineError]]:
    """Refuse every attempt, in the whole process, and yield the list that records them.

    In a host process only attempts of the run itself are refused: of its tasks and their threads.
    An attempt whose error is swallowed is still in the list.
    """
    _watch()
    trips: list[OfflineError] = []
    _armed.append(trips)
    token = None
    if is_guest():
        _guests.append(trips)
        token = _within.set((*_within.get(), id(trips)))
    try:
        yield trips
    finally:
        if token is not None:
            _within.reset(token)
            _guests[:] = [entry for entry in _guests if entry is not trips]
        # By identity: two empty lists are equal.
        _armed[:] = [entry for entry in _armed if entry is not trips]


class PartlyOffline:
    """Refuses every attempt of the tasks that begin `within` it, and of what they start.

    The rest of the process, which may be a server, listens and is connected to as ever.
    """

    def __init__(self) -> None:
        self.trips: list[OfflineError] = []

    def __enter__(self) -> Self:
        _watch()
        _armed.append(self.trips)
        _guests.append(self.trips)
        return self

    def __exit__(self, *_: object) -> None:
        for lists in (_armed, _guests):
            lists[:] = [entry for entry in lists if entry is not self.trips]

    @contextmanager
    def within(self) -> Generator[None]:
        """Keep this block, and the tasks that it starts, offline."""
        token = _within.set((*_within.get(), id(self.trips)))
        try:
            yield
        finally:
            _within.reset(token)


@contextmanager
def offline_here() -> Generator[list[OfflineError]]:
    """The same as `offline` for this task, and for those that begin within, alone."""
    with PartlyOffline() as guard, guard.within():
        yield guard.trips


@contextmanager
def permit_attempts() -> Generator[None]:
    """Let this task start a helper process of aish, or ask a model that is not replayed."""
    before = _permitted.set(True)
    try:
        yield
    finally:
        _permitted.reset(before)


@cache
def _watch() -> None:
    """Hooks can only be added; this one does nothing while no block is offline."""
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not _armed:
        return
    what = _ATTEMPTS.get(event)
    if what is None:
        if event != _SOCKET or args[1] in _ANONYMOUS:
            return
        what = "open a socket"
    if _permitted.get():
        return
    armed = [entry for entry in _armed if not _is_in(entry, _guests) or id(entry) in _within.get()]
    if not armed:
        return
    said = f"a replay must reach nothing, and something tried to {what}: {_describe(event, args)}"
    error = OfflineError(said, hint="please report this: everything should come from the cassette")
    for trips in armed:
        trips.append(error)
    raise error


def _is_in(trips: list[OfflineError], lists: list[list[OfflineError]]) -> bool:
    return any(entry is trips for entry in lists)


def _describe(event: str, args: tuple[object, ...]) -> str:
    """A description of the attempt, as far as possible without calling methods of an object."""
    plain = [argument for argument in args if isinstance(argument, (str, bytes, int, tuple, list))]
    return f"{event}{tuple(plain)!r}"[:_SHOWN]
