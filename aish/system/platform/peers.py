"""Sockets: who is at the other end, and where a socket file is made."""

import os
import socket
import struct
import sys
from pathlib import Path

from aish.system.platform.forms import is_portable
from aish.system.platform.process_table import run_program

KEEP_IDLE: int = getattr(socket, "TCP_KEEPIDLE", 0) or getattr(socket, "TCP_KEEPALIVE", 0x10)
"""The option for the seconds of silence after which a connection is tested."""
_PRIVATE = 0o600
_LINUX_CREDENTIALS = struct.Struct("=3i")  # `struct ucred`: pid, uid, gid
_MAC_CREDENTIALS = struct.Struct("=2I")  # `struct xucred`: version, uid; 16 groups follow
_MAC_LOCAL, _MAC_PEERCRED, _MAC_PEERPID, _MAC_SIZE = 0, 1, 2, 76
_LSOF = ("/usr/sbin/lsof", "/usr/bin/lsof", "/bin/lsof")


def read_credentials(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a socket file.

    The kernel of a Mac tells them by other options: both are the system's own, not weaker forms.

    Raises:
        OSError: the kernel does not tell.
    """
    if sys.platform == "linux":
        size = _LINUX_CREDENTIALS.size
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = _LINUX_CREDENTIALS.unpack(found)
        return pid, uid
    else:  # ruff: ignore[superfluous-else-return] - the type checker leaves one of them out
        return read_mac_credentials(connection)


def read_mac_credentials(connection: socket.socket) -> tuple[int, int]:
    """The same by `LOCAL_PEERCRED` and `LOCAL_PEERPID`.

    Raises:
        OSError: the kernel does not tell.
    """
    found = connection.getsockopt(_MAC_LOCAL, _MAC_PEERCRED, _MAC_SIZE)
    version, uid = _MAC_CREDENTIALS.unpack_from(found)
    if version != 0:
        raise OSError("the credentials have a form that is not known")
    return connection.getsockopt(_MAC_LOCAL, _MAC_PEERPID), uid


def socket_name(path: Path, folder: int) -> str:
    """The name of a socket in an open folder, which cannot be exchanged; portable: its path."""
    return str(path) if is_portable() else f"/proc/self/fd/{folder}/{path.name}"


def bind_private(opened: socket.socket, path: Path, folder: int) -> None:
    """Make a socket file in an open folder, which only its owner may enter.

    Raises:
        OSError: it cannot be made, or the folder was exchanged meanwhile.
    """
    if not is_portable():
        # The kernel makes the file with the mode of the socket, less the umask.
        os.fchmod(opened.fileno(), _PRIVATE)
    opened.bind(socket_name(path, folder))
    if is_portable() and not os.path.samestat(path.parent.stat(), os.fstat(folder)):
        raise FileNotFoundError(2, "its folder was exchanged")


def find_tcp_owner(peer: tuple[str, int], own: tuple[str, int]) -> tuple[int, int] | None:
    """The process and user with the other end of a TCP connection, as `lsof` tells.

    `None` where it is of another user, another machine, or closed.

    Raises:
        OSError: there is no `lsof`.
    """
    words = ("lsof", "-nPw", f"-iTCP:{peer[1]}", "-Fpun")
    number, output = run_program(_LSOF, words)
    if not number:
        raise FileNotFoundError(2, "there is no `lsof`")
    ends = f"n{_end(peer)}->{_end(own)}".encode()
    pid = uid = -1
    for line in output.splitlines():
        if line[:1] == b"p":
            pid = int(line[1:])
        elif line[:1] == b"u":
            uid = int(line[1:])
        elif line == ends:
            return pid, uid
    return None


def _end(address: tuple[str, int]) -> str:
    host = address[0].partition("%")[0].removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
