"""Opens sockets in the network namespace of a sandbox that bubblewrap is preparing.

The supervisor's guard imports it where a command asks for them, in a process that has neither
`site` nor our libraries: it imports the standard library only. Nothing of it runs in the sandbox,
and nothing of the sandbox runs before it is done: bubblewrap waits.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from itertools import starmap

TYPE_CHECKING = False  # `typing` is too much to import
if TYPE_CHECKING:
    from collections.abc import Sequence

    WantedSocket = tuple[str, str, int]
    """`tcp` or `udp`, an address, which the namespace is given, and a port."""

_ENDED = "bubblewrap ended before its network was prepared"
_SECONDS = 10.0
_BACKLOG = 1024
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701  # NS_GET_USERNS
_GET_FLAGS, _IS_UP = 0x8913, 1
_INTERFACE = struct.Struct("16sH22x")
_LOOPBACK_INDEX = 1
_NEW_ADDRESS, _REQUEST_ACK_CREATE = 20, 0x0001 | 0x0004 | 0x0400
_NO_DUPLICATE_DETECTION, _LINK_EVENTS = 0x02, 0x0001
_MESSAGE = struct.Struct("=IHHII")
_ADDRESS, _ATTRIBUTE = struct.Struct("=BBBBI"), struct.Struct("=HH")
_ADDRESS_KINDS = (1, 2)  # IFA_ADDRESS, IFA_LOCAL
_NETLINK, _ROUTE = 16, 0  # not in `socket` where there is no Linux


def open_sockets(
    pid: int, wanted: "Sequence[WantedSocket]", library: ctypes.CDLL
) -> "list[socket.socket]":
    """Enter the network namespace of a process, for good, and open sockets there.

    Raises:
        OSError: it cannot be entered, or has no such address.
    """
    _enter(pid, library)
    with socket.socket(_NETLINK, socket.SOCK_RAW, _ROUTE) as events:
        events.bind((0, _LINK_EVENTS))
        events.settimeout(_SECONDS)
        while not _is_up(events):
            events.recv(65536)
    with socket.socket(_NETLINK, socket.SOCK_RAW, _ROUTE) as kernel:
        for address in dict.fromkeys(address for _, address, _ in wanted):
            _add_address(kernel, address)
    return list(starmap(_open, wanted))


def _enter(pid: int, library: ctypes.CDLL) -> None:
    try:
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.ESRCH, _ENDED) from None
    if _inode(network) == _inode("/proc/self/ns/net"):
        raise OSError(errno.EINVAL, "it has no network namespace of its own")
    # Bubblewrap may have entered a second user namespace, which has no rights in this network.
    owner = fcntl.ioctl(network, _GET_USER_NAMESPACE)
    steps = [(network, _NEW_NET)]
    if _inode(owner) != _inode("/proc/self/ns/user"):
        steps.insert(0, (owner, _NEW_USER))
    for descriptor, kind in steps:
        if library.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"its network namespace cannot be entered: {os.strerror(number)}")
    os.close(network)
    os.close(owner)


def _inode(namespace: "int | str") -> int:
    return os.stat(namespace).st_ino  # ruff: ignore[os-stat] - pathlib is too much to import


def _is_up(any_socket: socket.socket) -> bool:
    """Bubblewrap gives `lo` its first address, then sets it up; it fails if another did before."""
    _, flags = _INTERFACE.unpack(fcntl.ioctl(any_socket, _GET_FLAGS, _INTERFACE.pack(b"lo", 0)))
    return bool(flags & _IS_UP)


def _add_address(kernel: socket.socket, address: str) -> None:
    family = _family(address)
    packed = socket.inet_pton(family, address)
    body = _ADDRESS.pack(family, 8 * len(packed), _NO_DUPLICATE_DETECTION, 0, _LOOPBACK_INDEX)
    for kind in _ADDRESS_KINDS:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), kind) + packed
    size = _MESSAGE.size + len(body)
    kernel.send(_MESSAGE.pack(size, _NEW_ADDRESS, _REQUEST_ACK_CREATE, 1, 0) + body)
    (code,) = struct.unpack_from("=i", kernel.recv(4096), _MESSAGE.size)
    if code and -code != errno.EEXIST:
        raise OSError(-code, f"it cannot be given the address {address}: {os.strerror(-code)}")


def _open(kind: str, address: str, port: int) -> socket.socket:
    family = _family(address)
    opened = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    opened.bind((address, port))
    if kind == "tcp":
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.listen(_BACKLOG)
    return opened


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
