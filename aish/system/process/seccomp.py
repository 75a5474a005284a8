"""The system-call filters of confined servers, as programs for the kernel (classic BPF).

A filter sees numbers only, no paths and no addresses: it refuses kinds of sockets, and calls that
no mount and no rule of Landlock covers. `supervisor_process` installs it just before the command.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aish.core.frozen import frozen

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_TYPE_OF_SOCKET, _DATAGRAM = 0xF, 2
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_X32 = 0x40000000
"""The first number of the x32 table, which has all calls once more."""

# Rings of requests are carried out by the kernel, past any filter.
_NOT_THERE = ("io_uring_setup", "io_uring_enter", "io_uring_register")
# The keys of the user, and memory and queues that are shared by number with all processes.
_REFUSED = ("add_key", "request_key", "keyctl")
_SHARED_BY_NUMBER = ("shmget", "shmat", "msgget", "msgsnd", "msgrcv", "semget", "mq_open")


@frozen
class _Machine:
    """`audit` is how the kernel names it in a filter, `numbers` are those of `_CALLS`."""

    audit: int
    numbers: tuple[int, ...]
    has_x32: bool = False


_CALLS = (
    *("socket", "socketpair", "ioctl"),
    *_REFUSED,
    *_SHARED_BY_NUMBER,
    *_NOT_THERE,
)
_RINGS = (425, 426, 427)
_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(
        0xC000003E,
        (41, 53, 16, 248, 249, 250, 29, 30, 68, 69, 70, 64, 240, *_RINGS),
        has_x32=True,
    ),
    "aarch64": _Machine(
        0xC00000B7, (198, 199, 29, 217, 218, 219, 194, 196, 186, 189, 188, 190, 180, *_RINGS)
    ),
}

Step = tuple[int, int, int, int]
"""An instruction: code, steps to skip if true and if false, and a number."""


def has_filter(machine: str | None = None) -> bool:
    """Return true if the system calls of this machine are known here."""
    return (machine or platform.machine()) in _MACHINES


def seccomp_filter(*, internet: bool, unix: bool, machine: str | None = None) -> bytes:
    """The program of a filter for this machine.

    `internet` and `unix` say which sockets may be made: those of IP, and Unix ones. Without `unix`
    memory shared by number is refused too: no namespace keeps it apart then. Of netlink only the
    list of interfaces and routes is left, which sends nothing out.

    Raises:
        KeyError: its system calls are not known.
    """
    kind = _MACHINES[machine or platform.machine()]
    families = (*((_INET, _INET6) if internet else ()), *((_UNIX,) if unix else ()))
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, kind.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if kind.has_x32:
        steps += [(_AT_LEAST, 0, 1, _X32), _refusal(errno.ENOSYS)]
    steps += _for_calls(kind, _NOT_THERE, [_refusal(errno.ENOSYS)])
    refused = _REFUSED if unix else (*_REFUSED, *_SHARED_BY_NUMBER)
    steps += _for_calls(kind, refused, [_refusal(errno.EPERM)])
    steps += _for_calls(kind, ("socket",), _check_socket(families))
    if not unix:
        steps += _for_calls(kind, ("socketpair",), _check_pair())
    steps += _for_calls(kind, ("ioctl",), _check_terminal())
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _for_calls(kind: _Machine, names: Iterable[str], then: Sequence[Step]) -> list[Step]:
    """Steps that are taken for these calls only; `then` has to return."""
    steps: list[Step] = []
    numbers = dict(zip(_CALLS, kind.numbers, strict=True))
    for name in names:
        steps += [(_EQUAL, 0, len(then), numbers[name]), *then]
    return steps


def _check_socket(families: Sequence[int]) -> list[Step]:
    """Allow sockets of some families, and those of netlink that list routes."""
    steps: list[Step] = [(_LOAD, 0, 0, _argument(0))]
    for family in families:
        steps += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    return [
        *steps,
        (_EQUAL, 0, 3, _NETLINK),
        (_LOAD, 0, 0, _argument(2)),
        (_EQUAL, 0, 1, _NETLINK_ROUTE),
        (_RETURN, 0, 0, _ALLOW),
        _refusal(errno.EACCES),
    ]


def _check_pair() -> list[Step]:
    """Refuse pairs of datagram sockets, which can send to any other socket."""
    return [
        (_LOAD, 0, 0, _argument(1)),
        (_AND, 0, 0, _TYPE_OF_SOCKET),
        (_EQUAL, 0, 1, _DATAGRAM),
        _refusal(errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _check_terminal() -> list[Step]:
    """Refuse to type into a terminal."""
    first, second = _TERMINAL_INPUT
    return [
        (_LOAD, 0, 0, _argument(1)),
        (_EQUAL, 1, 0, first),
        (_EQUAL, 0, 1, second),
        _refusal(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _argument(number: int) -> int:
    """The offset of the lower half of an argument: both machines store it first."""
    return _ARGUMENTS + 8 * number


def _refusal(number: int) -> Step:
    return (_RETURN, 0, 0, _ERROR | number)
