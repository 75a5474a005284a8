"""Tasks on disk: calls that clients ask about later, in a folder that processes may share.

A task is a file, with another one for its result. Only its own process changes it; another process
takes it over once a lock shows that the first one has ended. Other processes write their commands,
answers or a cancellation, to files beside it.
"""

import json
import os
import re
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, get_args

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock
from aish.system.file_lock import BeingWrittenError, hold_lock, is_written, take
from aish.system.files import atomic_write, open_new, open_own, private_folder, write_private

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
KEPT_SECONDS = 24 * 3600.0
"""How long a task is kept after its end."""
MOST_TASKS = 1024
MOST_OF_CLIENT = 128
MOST_BYTES = 1 << 30
"""Of all tasks together; the oldest that have ended are deleted before there are more."""
_LISTED_SECONDS = 1.0
"""How old may be what is known of the tasks of other processes."""
_ID_LENGTH = 32
_ID = re.compile(r"[0-9a-f]{32}\Z")
_FILE = re.compile(r"([0-9a-f]{32})\.json\Z")
_BESIDE = frozenset({".cancel", ".answer", ".result"})
_STATUSES = frozenset(get_args(TaskStatus))
_LOCK = "tasks.lock"
_PATIENCE = 5.0


class TooManyTasksError(Exception):
    """Too many tasks are running."""


@frozen
class Task:
    """A task as it is on disk; times are seconds since the epoch.

    `owner` is the process that it belongs to, `run` the run of a pipeline. `requests` are the open
    requests to the client. A finished task has a result or an `error`, or was cancelled.
    """

    id: str
    client: str
    tool: str
    owner: str
    status: TaskStatus
    created: float
    updated: float
    run: str | None = None
    message: str | None = None
    requests: JsonObject | None = None
    error: JsonObject | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def expires(self) -> float | None:
        """The time when it may be deleted; `None` before it has ended."""
        return self.updated + KEPT_SECONDS if self.has_ended else None


_FIELDS = tuple(field.name for field in fields(Task))


@frozen
class _TaskFile:
    """The task in a file with this signature; `None` if the file has no task."""

    signature: tuple[int, ...]
    task: Task | None
    size: int


class TaskStore:
    """The tasks in a folder, for one process."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = private_folder(folder)
        self._clock = clock
        self.owner = token_hex(16)
        """Names this process in the tasks that belong to it."""
        self._own_file = self._folder / f"{self.owner}.owner"
        self._known: dict[str, _TaskFile] = {}
        self._listed: float | None = None
        self._lock = partial(hold_lock, self._folder / _LOCK)
        with self._lock(_PATIENCE):
            self._held = open_new(self._own_file)
            take(self._held, self._own_file)

    def close(self) -> None:
        """Release the tasks of this process, so that another one may take them over."""
        self._own_file.unlink(missing_ok=True)
        os.close(self._held)

    def create(self, client: str, tool: str, run: str | None) -> Task:
        """Create a task of this process, on disk before this returns.

        Raises:
            TooManyTasksError: there are too many.
            OSError: it cannot be written.
        """
        self._make_room(client)
        now = self._clock.now()
        task = Task(token_hex(16), client, tool, self.owner, "working", now, now, run)
        self.write(task)
        return task

    def keep_result(self, id: str, result: bytes, mask: Callable[[JsonValue], JsonValue]) -> None:
        """Write the masked result of a task, before the task ends; call this in a thread.

        Raises:
            OSError: it cannot be written.
        """
        data = json.dumps(mask(json.loads(result)), separators=(",", ":")).encode("ascii")
        atomic_write(self._result(id), data)

    def result(self, id: str) -> JsonObject | None:
        """Return the result of a completed task, if it is there; call this in a thread."""
        return _object_in(self._result(id))

    def write(self, task: Task) -> None:
        """Write the state of a task; its result has to be written before.

        Raises:
            OSError: it cannot be written.
        """
        row = {"v": 1, **{name: getattr(task, name) for name in _FIELDS}}
        atomic_write(self._path(task.id), json.dumps(row).encode("ascii"))
        self._read(task.id)

    def update(self, task: Task, **changes: Any) -> Task:
        """Change the task and write it."""
        now = max(self._clock.now(), task.updated)
        new_task = replace(task, updated=now, **changes)
        self.write(new_task)
        return new_task

    def get(self, id: JsonValue, client: str) -> Task | None:
        """Return a task of a client; `None` if it is unknown, expired, or another client's."""
        if not isinstance(id, str) or not _ID.match(id):
            return None
        task = self._read(id)
        if task is None or task.client != client:
            return None
        if self._is_expired(task):
            self._delete(id)
            return None
        return task

    def put_cancel(self, task: Task) -> None:
        """Ask the process of a task to cancel it."""
        with suppress(FileExistsError):
            write_private(self._folder / f"{task.id}.cancel", b"")

    def put_answers(self, task: Task, responses: JsonObject) -> None:
        """Pass the answers of a client to the process of its task."""
        data = json.dumps(responses).encode("ascii")
        beside = self._folder / f"{task.id}.{token_hex(8)}"
        atomic_write(beside.with_name(f"{beside.name}.answer"), data)

    def take_commands(self, ids: Container[str]) -> Iterator[tuple[str, JsonObject | None]]:
        """Return and remove commands for these tasks: answers, or `None` for a cancellation."""
        for name in sorted(self._names()):
            id, path = name[:_ID_LENGTH], self._folder / name
            if id in ids and path.suffix in {".cancel", ".answer"}:
                responses = None if path.suffix == ".cancel" else _object_in(path) or {}
                path.unlink(missing_ok=True)
                yield id, responses

    def take_over(self, task: Task) -> Task | None:
        """Make the task one of this process if its own process has ended, and return it."""
        if task.has_ended or task.owner == self.owner:
            return None
        # One that another process is about to take over is that process's.
        with suppress(BeingWrittenError), self._lock(0.0):
            now = self._read(task.id)
            if now is None or now.has_ended or self._is_alive(now.owner):
                return None
            taken = replace(now, owner=self.owner)
            self.write(taken)
            return taken
        return None

    def orphans(self) -> Iterator[Task]:
        """Yield unfinished tasks whose process has ended."""
        self._list()
        under_way = [
            known.task
            for known in self._known.values()
            if known.task is not None and not known.task.has_ended
        ]
        gone = {owner for owner in {task.owner for task in under_way} if not self._is_alive(owner)}
        yield from (task for task in under_way if task.owner in gone)

    def clean(self) -> None:
        """Delete expired tasks, and the oldest ones beyond the limits."""
        self._list()
        self._make_room(None)
        with suppress(BeingWrittenError), self._lock(0.0):
            for path in tuple(self._folder.iterdir()):
                if path.suffix == ".owner":
                    is_left = not self._is_alive(path.stem)
                else:
                    is_left = path.suffix in _BESIDE and not self._path(path.name[:32]).exists()
                if is_left:
                    path.unlink(missing_ok=True)

    def _make_room(self, client: str | None) -> None:
        """Delete the oldest finished tasks until there is room for one more of a client."""
        if self._listed is None or self._clock.monotonic() >= self._listed + _LISTED_SECONDS:
            self._list()
        ended: list[tuple[float, str, str, int]] = []
        under_way, of_client, size = 0, 0, 0
        for id, known in tuple(self._known.items()):
            task = known.task
            if task is None:
                continue
            if self._is_expired(task):
                self._delete(id)
                continue
            size += known.size
            if task.has_ended:
                ended.append((task.updated, id, task.client, known.size))
            else:
                under_way += 1
                of_client += task.client == client
        if client is not None and (under_way >= MOST_TASKS or of_client >= MOST_OF_CLIENT):
            raise TooManyTasksError
        count = under_way + len(ended)
        mine = of_client + sum(owner == client for _, _, owner, _ in ended)
        for _, id, owner, length in sorted(ended):
            is_needed = owner == client and mine >= MOST_OF_CLIENT
            if is_needed or count >= MOST_TASKS or size > MOST_BYTES:
                self._delete(id)
                count, size, mine = count - 1, size - length, mine - (owner == client)

    def _is_expired(self, task: Task) -> bool:
        return task.expires is not None and task.expires <= self._clock.now()

    def _is_alive(self, owner: str) -> bool:
        if owner == self.owner:
            return True
        try:
            descriptor = open_own(self._folder / f"{owner}.owner")
        except (FileNotFoundError, UsageError):
            return False
        try:
            return is_written(descriptor)
        finally:
            os.close(descriptor)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def _list(self) -> None:
        """Load tasks that other processes have created, changed or deleted."""
        ids = {match[1] for name in self._names() if (match := _FILE.match(name))}
        for id in self._known.keys() | ids:
            self._read(id)
        self._listed = self._clock.monotonic()

    def _read(self, id: str) -> Task | None:
        """Return the task with this id; its file is read only if it has changed."""
        try:
            status = self._path(id).lstat()
            signature = (status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size)
            known = self._known.get(id)
            if known is not None and known.signature == signature:
                return known.task
            task = _decode(_content(self._path(id)))
        except FileNotFoundError:
            self._known.pop(id, None)
            return None
        except (ValueError, KeyError, TypeError, UsageError):
            task = None  # damaged, or planted: no task of ours
        task = task if task is None or task.id == id else None
        self._known[id] = _TaskFile(signature, task, self._size(id))
        return task

    def _delete(self, id: str) -> None:
        self._known.pop(id, None)
        self._path(id).unlink(missing_ok=True)
        self._result(id).unlink(missing_ok=True)

    def _size(self, id: str) -> int:
        with suppress(FileNotFoundError):
            return self._result(id).stat().st_size
        return 0

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _result(self, id: str) -> Path:
        return self._folder / f"{id}.result"


def _content(path: Path) -> bytes:
    with os.fdopen(open_own(path), "rb") as file:
        return file.read()


def _object_in(path: Path) -> JsonObject | None:
    try:
        value = json.loads(_content(path))
    except (FileNotFoundError, ValueError, UsageError):
        return None
    return value if isinstance(value, dict) else None


def _decode(data: bytes) -> Task:
    """Decode the task in a file.

    Raises:
        ValueError, KeyError, TypeError: there is none.
    """
    row = json.loads(data)
    if row["v"] != 1 or row["status"] not in _STATUSES or not _ID.match(row["id"]):
        raise ValueError(row["status"])
    return Task(**{name: row[name] for name in _FIELDS})
