"""Listening sockets: files that only their owner reaches, ports, and who connects."""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.net.listen.addresses import Address, unix_address
from aish.system.file_lock import PATIENCE, take
from aish.system.files import lacks_descriptors, private_folder, runtime_folder
from aish.system.platform.peers import bind_private, read_credentials, socket_name

_PRIVATE = 0o600
_PRIVATE_FOLDER = 0o700
_BACKLOG = 128
PAUSE_SECONDS = 0.1
"""Time until it is looked again whether there are descriptors."""
_CLIENT_GONE = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
_NO_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Listener:
    """An open socket that listens, and its real address: the port is never 0."""

    address: Address
    socket: socket.socket


@frozen
class PeerCredentials:
    """Credentials of a client of a socket file, from the kernel; -1 if it has none."""

    pid: int
    uid: int


def default_address(name: str) -> Address:
    """The address of a socket in the user's runtime folder, which is created if missing.

    Raises:
        UsageError: the folder is not private, or its path is too long.
    """
    folder = runtime_folder()
    try:
        private_folder(folder)
    except OSError as error:
        said = f"`{folder}` cannot be made: {error.strerror}"
        raise UsageError(said, hint="set `XDG_RUNTIME_DIR` to a private folder") from error
    return unix_address(folder / f"{name}.sock")


@contextmanager
def listen_on(addresses: Iterable[Address]) -> Generator[tuple[Listener, ...]]:
    """Sockets that listen on the addresses; socket files are removed at the end.

    Raises:
        UsageError: one of them cannot be opened; none is left open.
    """
    with ExitStack() as stack:
        yield tuple([stack.enter_context(_open_listener(address)) for address in addresses])


def remove_dead_sockets(addresses: JsonValue) -> None:
    """Remove socket files of this user, in private folders, to which nobody listens any more.

    `addresses` are those of a process that was killed, as a file has them; all else is left alone.
    """
    for address in addresses if isinstance(addresses, list) else ():
        kind, _, path = str(address).partition(":")
        with contextlib.suppress(OSError, UsageError, ValueError):
            if kind == "unix" and Path(path).is_socket():
                _remove_dead_socket(Path(path))


def _remove_dead_socket(path: Path) -> None:
    folder = _open_folder(path)
    try:
        take(folder, path.parent, PATIENCE)
        _remove_dead(path, folder)
    finally:
        os.close(folder)


def credentials(connection: socket.socket) -> PeerCredentials:
    """Read from the kernel who opened a connection over a socket file."""
    try:
        return PeerCredentials(*read_credentials(connection))
    except OSError:
        return PeerCredentials(-1, -1)


async def accept_connections(
    listener: Listener, report: Callable[[Exception], None]
) -> AsyncGenerator[socket.socket]:
    """The connections that clients open, until the socket is of no use any more.

    Where descriptors or memory are missing it waits for them, and `report` is told once.
    """
    loop = asyncio.get_running_loop()
    is_reported = False
    while True:
        try:
            connection, _ = await loop.sock_accept(listener.socket)
        except OSError as error:
            if error.errno in _CLIENT_GONE:
                continue
            lacking = lacks_descriptors(error) or error.errno in _NO_MEMORY
            if not lacking or not is_reported:
                report(error)
            if not lacking:
                return
            is_reported = True
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        is_reported = False
        yield connection


@contextmanager
def _open_listener(address: Address) -> Generator[Listener]:
    if address.path is None:
        with _tcp_socket(address) as opened:
            port = opened.getsockname()[1]
            yield Listener(replace(address, port=port), opened)
        return
    folder = _open_folder(address.path)
    try:
        with _unix_socket(address.path, folder) as opened:
            inode = _inode(address.path.name, folder)
            try:
                yield Listener(address, opened)
            finally:
                if _inode(address.path.name, folder) == inode:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(address.path.name, dir_fd=folder)
    finally:
        os.close(folder)


def _tcp_socket(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # Connections inherit TCP_NODELAY. asyncio sets it only where the protocol is told, and an
    # answer in two writes would wait 40 ms for the client's acknowledgement of the first.
    options = [(socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.IPPROTO_TCP, socket.TCP_NODELAY)]
    if family == socket.AF_INET6:
        options.append((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        for level, option in options:
            opened.setsockopt(level, option, 1)
        opened.bind((address.host, address.port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        hint = "port 0 takes any free one" if error.errno == errno.EADDRINUSE else None
        said = f"cannot listen on `{address}`: {error.strerror}"
        raise UsageError(said, hint=hint) from error
    except BaseException:
        opened.close()
        raise
    opened.setblocking(False)
    return opened


def _open_folder(path: Path) -> int:
    """The folder of a socket file: of this user, closed to others, and no link; made if missing."""
    folder = path.parent
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(_PRIVATE_FOLDER)
            folder.chmod(_PRIVATE_FOLDER)  # whatever the umask took away
        held = os.open(folder, _FOLDER)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise UsageError(f"`{folder}` is a link or no folder") from error
        raise UsageError(f"`{folder}` cannot be used: {error.strerror}") from error
    status = os.fstat(held)
    problem = None
    if status.st_uid != os.geteuid():
        problem = UsageError(f"`{folder}` belongs to another user")
    elif stat.S_IMODE(status.st_mode) != _PRIVATE_FOLDER:
        said = f"`{folder}` is open to others, and a socket needs a folder of its own"
        problem = UsageError(said, hint=f"choose another folder, or `chmod 700 {folder}`")
    if problem is not None:
        os.close(held)
        raise problem
    return held


def _unix_socket(path: Path, folder: int) -> socket.socket:
    """A socket file in an open folder; replaces an existing one only if nobody answers."""
    take(folder, path.parent, PATIENCE)
    try:
        _remove_dead(path, folder)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind_private(opened, path, folder)
            os.chmod(path.name, _PRIVATE, dir_fd=folder)
            opened.listen(_BACKLOG)
        except OSError as error:
            opened.close()
            raise UsageError(f"cannot listen on `{path}`: {error.strerror}") from error
        except BaseException:
            opened.close()
            raise
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
    opened.setblocking(False)
    return opened


def _remove_dead(path: Path, folder: int) -> None:
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a socket"
        raise UsageError(f"`{path}` is {kind}, and is not replaced", hint="choose another path")
    if status.st_uid != os.geteuid():
        raise UsageError(f"`{path}` is a socket of another user", hint="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(socket_name(path, folder))
    if result != errno.ECONNREFUSED:
        said = f"another process listens on `{path}`"
        raise UsageError(said, hint="end it, or choose another path")
    os.unlink(path.name, dir_fd=folder)


def _inode(name: str, folder: int) -> tuple[int, int] | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
