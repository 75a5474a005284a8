"""Locks for writing: no two changes of one file overlap in this process.

A file is known by its folder's device and inode and by its own name, so that all packs, servers and
event loops of the process mean the same one. `lock_files` spans reading a file to replacing it.
Other processes are kept out by `folder_locks` only while a file is replaced; whatever they changed
before is then `changed`.
"""

import asyncio
import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import anyio.to_thread

from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import protection_error, writable
from aish.packs.workspace.workspace import Workspace
from aish.system.globs import comparable_name

Identity = tuple[int, int, str]
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]

_guard = threading.Lock()
_queues: dict[Identity, deque[_Waiter]] = {}
"""Files that are being changed, each with those that wait for it in order."""
_held: ContextVar[frozenset[Identity]] = ContextVar("held", default=frozenset())

_FOREIGN_SECONDS = 5.0
_PAUSE = 0.002
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL, errno.ENOSYS})


@asynccontextmanager
async def lock_files(place: Workspace, *paths: str) -> AsyncGenerator[None]:
    """Lock files for changes within this process; waiters get them in order.

    Raises:
        PackError: a path cannot be written, or its folder is not there.
    """

    def identities() -> set[Identity]:
        found: dict[Identity, str] = {}
        for path in paths:
            check_not_own(place, path)
            with place.folder.place_of(path) as (folder, name):
                found[_identity(folder, name)] = path
        # The same file may have another path, by a mount or where case does not matter.
        for own in place.own_files:
            if own.name and (identity := _identity_of(own)) in found:
                raise protection_error(found[identity])
        return set(found)

    outer = _held.get()
    held: list[Identity] = []
    token = None
    try:
        # In one order for everybody, so that two renames cannot wait for each other.
        for identity in sorted(await anyio.to_thread.run_sync(identities) - outer):
            await _acquire(identity)
            held.append(identity)
        token = _held.set(outer.union(held))
        yield
    finally:
        if token is not None:
            _held.reset(token)
        for identity in held:
            _release(identity)


def check_not_own(place: Workspace, path: str) -> None:
    """Check that a path is not a file that the run is made of, existing or not.

    Paths below such a file are refused too: no folder may take its place.
    """
    if not place.own_files:
        return
    below = writable(path, place.folder.deny_names)
    named = [comparable_name(part) for part in (*place.root.parts, *below)]
    for own in place.own_files:
        if named[: len(own.parts)] == [comparable_name(part) for part in own.parts]:
            raise protection_error(path)


def check_writing(folder: int, name: str, path: str) -> None:
    """Check that a file is only changed within `lock_files`.

    Raises:
        PackError: another folder has taken the place of the one that it was in.
    """
    identity, held = _identity(folder, name), _held.get()
    if identity in held:
        return
    if any(locked_name == identity[2] for _, _, locked_name in held):
        message = f"the folder of `{path}` was replaced by somebody else meanwhile; read it again"
        raise PackError("changed", message, path=path)
    raise RuntimeError("a file is changed outside of `lock_files`")


def _identity(folder: int, name: str) -> Identity:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino, comparable_name(name)


def _identity_of(path: Path) -> Identity | None:
    try:
        status = path.parent.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, comparable_name(path.name)


async def _acquire(identity: Identity) -> None:
    loop = asyncio.get_running_loop()
    mine: asyncio.Future[None] = loop.create_future()
    with _guard:
        queue = _queues.get(identity)
        if queue is None:
            _queues[identity] = deque()
            return
        queue.append((loop, mine))
    try:
        await mine
    except BaseException:
        with _guard:
            waits = (loop, mine) in queue
            if waits:
                queue.remove((loop, mine))
        if not waits:
            # It was handed over already.
            _release(identity)
        raise


def _release(identity: Identity) -> None:
    """Hand the file to the next one that still waits."""
    while True:
        with _guard:
            queue = _queues[identity]
            if not queue:
                del _queues[identity]
                return
            loop, future = queue.popleft()
        # A loop that was closed waits for nothing any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_hand_over, future)
            return


def _hand_over(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


@contextmanager
def folder_locks(folders: Sequence[int], path: str) -> Generator[None]:
    """Keep other processes that take this lock out of some folders, for a moment."""
    with ExitStack() as held:
        taken: set[tuple[int, int]] = set()
        for status, folder in sorted(((os.fstat(each), each) for each in folders), key=_order):
            if (status.st_dev, status.st_ino) not in taken:
                taken.add((status.st_dev, status.st_ino))
                held.enter_context(_folder_lock(folder, path))
        yield


def _order(row: tuple[os.stat_result, int]) -> tuple[int, int]:
    return row[0].st_dev, row[0].st_ino


@contextmanager
def _folder_lock(folder: int, path: str) -> Generator[None]:
    if not _lock_folder(folder, path):
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _lock_folder(folder: int, path: str) -> bool:
    """Lock a folder; return false if its file system has no locks for them."""
    until = time.monotonic() + _FOREIGN_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                message = f"`{path}` cannot be written: another program keeps its folder locked"
                raise PackError("unwritable", message, path=path) from None
            time.sleep(_PAUSE)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        else:
            return True
