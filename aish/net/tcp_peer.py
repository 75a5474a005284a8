"""The process at the other end of a TCP connection within this machine, as `/proc` shows it."""

import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from aish.core.frozen import frozen
from aish.system.files import lacks_descriptors
from aish.system.platform.forms import is_portable
from aish.system.platform.peers import find_tcp_owner

_HIDDEN = (FileNotFoundError, PermissionError, ProcessLookupError)
_UID, _INODE = 6, 8
"""Indexes in a line of `/proc/net/tcp`, from the local end on."""

_AF_NETLINK = 16
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _IS_REQUEST, _ANY_STATE = 4, 20, 1, 0xFFFFFFFF
_HEAD = struct.Struct("=IHHII")
"""Length, type, flags, number and sender of a netlink message."""
_QUESTION = struct.Struct("=BBHI")
"""Family, protocol, extensions and states of `inet_diag_req_v2`; the ends follow."""
_SOCKET_ID = struct.Struct("!HH16s16s")
_ANY_INTERFACE = bytes(4) + b"\xff" * 8
_UID_AND_INODE = 60
"""Where they are in `inet_diag_msg`, from the ends on."""
_NETLINK_SECONDS = 1.0

MOST_LOOKUPS = 2
"""Threads of a listener that look for the processes of new connections."""
MOST_OWNERS = 16
"""Processes with earlier connections that a listener remembers."""
REFUSED_PEER = (
    "processes that the run started may not connect to it, nor those that cannot be identified"
)


@frozen
class LocalEnd:
    """The other end of a connection; `inode` is 0 where no process has it open any more.

    In the portable form it is the number of the process instead.
    """

    uid: int
    inode: int


def local_end(connection: socket.socket) -> LocalEnd | None:
    """The other end of a connection, if it is a socket of this machine; reads files.

    Raises:
        OSError: the connection is closed, or there is no `/proc`.
    """
    peer, own = connection.getpeername()[:2], connection.getsockname()[:2]
    if is_portable():
        if (found := find_tcp_owner(peer, own)) is not None:
            return LocalEnd(found[1], found[0])
        return LocalEnd(os.geteuid(), 0) if _is_own_address(connection) else None
    if (end := _end_by_netlink(connection.family, peer, own)) is not None:
        return end
    tables = {"tcp6": f" {_format_v6(peer)} {_format_v6(own)} "}
    if connection.family == socket.AF_INET:
        tables = {"tcp": f" {_format_v4(peer)} {_format_v4(own)} ", **tables}
        if not Path("/proc/self/net/tcp6").exists():  # a system without IPv6
            del tables["tcp6"]
    for table, ends in tables.items():
        text = Path(f"/proc/self/net/{table}").read_text(encoding="ascii", errors="replace")
        start = text.find(ends)
        if start >= 0:
            # The number of the line stands before.
            words = text[start : text.find("\n", start)].split()
            return LocalEnd(int(words[_UID]), int(words[_INODE]))
    # It may have been closed a moment ago, which does not take back what it sent.
    return LocalEnd(os.geteuid(), 0) if _is_own_address(connection) else None


def _end_by_netlink(
    family: int, local: tuple[str, int], remote: tuple[str, int]
) -> LocalEnd | None:
    """The socket with these ends, asked for by itself: the tables in `/proc` take milliseconds.

    `None` where there is none, or the kernel does not answer: the tables have the last word.
    """
    ends = _SOCKET_ID.pack(
        local[1], remote[1], _packed(family, local[0]), _packed(family, remote[0])
    )
    asked = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + ends + _ANY_INTERFACE
    head = _HEAD.pack(_HEAD.size + len(asked), _SOCK_DIAG_BY_FAMILY, _IS_REQUEST, 1, 0)
    try:
        with socket.socket(_AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_NETLINK_SECONDS)
            kernel.send(head + asked)
            answer = kernel.recv(4096)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        return None
    # Without a connection of these ends the kernel may answer with what listens at the local one.
    start = _HEAD.size + 4
    if len(answer) < start + _UID_AND_INODE + 8 or answer[start : start + len(ends)] != ends:
        return None
    uid, inode = struct.unpack_from("=II", answer, start + _UID_AND_INODE)
    return LocalEnd(uid, inode)


def _packed(family: int, host: str) -> bytes:
    if family == socket.AF_INET:
        return socket.inet_aton(host)
    return socket.inet_pton(family, host.partition("%")[0])


def owner_of(inode: int, likely: Iterable[int] = ()) -> int | None:
    """A process that has a socket open, one of the `likely` first; `None` if none is found.

    Each descriptor that is looked at waits for the interpreter's lock, which a busy thread has.
    """
    if is_portable():
        return inode
    found = (pid for pid in likely if holds_socket(pid, inode))
    owner = next(found, None)
    return owner or next((pid for pid in _processes() if holds_socket(pid, inode)), None)


def _processes() -> Sequence[int]:
    """All processes, the youngest first."""
    with os.scandir("/proc") as entries:
        found = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return sorted(found, reverse=True)


def holds_socket(pid: int, inode: int) -> bool:
    """Return true if a process has a socket open."""
    wanted = f"socket:[{inode}]"
    with suppress(*_HIDDEN):
        # A connection that was just made has one of the last descriptors.
        for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True):  # ruff: ignore[os-listdir] - names are enough
            with suppress(*_HIDDEN):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{number}") == wanted:  # ruff: ignore[os-readlink] - a path would be made for each of hundreds
                    return True
    return False


def is_refused_peer(
    connection: socket.socket, is_refused: Callable[[int], bool], earlier: "deque[int]"
) -> bool:
    """Return true if the process of a connection is refused; one of our user has to be found.

    A process of another user, and another machine, have their token alone; so have the two programs
    that hide from their own user, where such a process is there. Reads files. The owners of
    `earlier` connections are tried first, and kept there.

    Raises:
        OSError: there are no descriptors left to read them with.
    """
    try:
        end = local_end(connection)
        if end is None:
            return False
        owner = owner_of(end.inode, tuple(earlier)) if end.inode else None
    except OSError as error:
        if lacks_descriptors(error):
            raise
        return True
    if owner is not None:
        if owner not in earlier:
            earlier.append(owner)
        return is_refused(owner)
    if not end.inode:
        return True
    return end.uid == os.geteuid() and all(is_refused(pid) for pid in _clients_that_hide())


def _clients_that_hide() -> Iterator[int]:
    """Our user's processes of programs that connect for it, and close their descriptors to it."""
    for pid in _processes():
        try:
            os.scandir(f"/proc/{pid}/fd").close()
        except PermissionError:
            with suppress(*_HIDDEN):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
                status = Path(f"/proc/{pid}/status").read_bytes()
                is_ours = f"\nUid:\t{os.geteuid()}\t".encode() in status
                if is_ours and (words[0][:4] == b"sshd" or any(map(_is_aish, words))):
                    yield pid
        except _HIDDEN:
            continue


def _is_aish(word: bytes) -> bool:
    return word.rpartition(b"/")[2] == b"aish"


def _format_v4(end: tuple[str, int]) -> str:
    """An end of a connection as `/proc/net/tcp` spells it."""
    return f"{_words(socket.inet_aton(end[0]))}:{end[1]:04X}"


def _format_v6(end: tuple[str, int]) -> str:
    """The same in `/proc/net/tcp6`, where a socket of both families has addresses of IPv4 too."""
    host = end[0].partition("%")[0]
    packed = socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}")
    return f"{_words(packed)}:{end[1]:04X}"


def _words(packed: bytes) -> str:
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _is_own_address(connection: socket.socket) -> bool:
    """Return true if the other end is of this machine: a socket can be bound to its address."""
    host, _, *scope = connection.getpeername()
    with socket.socket(connection.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0, *scope))
        except OSError:
            return False
    return True
