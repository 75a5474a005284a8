"""Tasks: calls whose result a stateless client asks for later (H7).

A call that takes long becomes a task, on disk before its client hears of it. Each process that
shares the state folder answers about it; the one that makes the call follows it. After the end of
that process the run of a pipeline is resumed by another one, and any other call has failed.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from aish.core.errors import AishError, UsageError
from aish.core.events import rfc3339
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock, Progress
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolName
from aish.engine.plan.validation.names import SERVED
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RpcError,
    json_object,
)
from aish.serve.offer.active import Active
from aish.serve.records.audit import AuditError, AuditLog, Caller

if TYPE_CHECKING:
    # Most clients take no tasks.
    from aish.serve.calls.task_store import Task, TaskStore, Wishes

TASKS = "io.modelcontextprotocol/tasks"
"""The extension, in the capabilities of a request."""
TASK_MOVED = "notifications/tasks"
POLL_MS = 1000
"""How often clients are asked to poll."""
_FOLDER = "tasks"
_LOOK_SECONDS = 0.2
"""How often what other processes want of a task is looked for."""
_TELL_SECONDS = 0.5
"""How often what has changed of a task is told, or written down where it is only progress."""
_CLEAN_SECONDS = 60.0
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_SHOWN_ID = 8
_UNKNOWN = "unknown task, or one that has expired"
_LOST: Final = "the server ended while the call was under way; whether it took effect is not known"


class LiveCall(Protocol):
    """A call that is under way in this process."""

    @property
    def run(self) -> str | None:
        """The run of a pipeline, once it has begun."""
        ...

    @property
    def changed(self) -> anyio.Event:
        """Is set at the next change of what the call is waiting for, and at its end."""
        ...

    @property
    def message(self) -> str | None:
        """What was told of its progress last."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has ended; without a result it was cancelled."""
        ...

    @property
    def result(self) -> bytes | RpcError | None:
        """Its result as JSON, or its error."""
        ...

    @property
    def requests(self) -> JsonObject:
        """What its client is asked, by key."""
        ...

    def answered(self, responses: JsonObject) -> None:
        """Take answers of the client; those to nothing that is asked are ignored."""
        ...

    def cancel(self) -> None:
        """End it."""
        ...


class Tasks:
    """The tasks of all clients, as far as this process knows them."""

    def __init__(
        self,
        folder: Path,
        active: Active,
        audit: AuditLog,
        clock: Clock,
        tasks: TaskGroup,
        report: Callable[[Exception], None],
        answering: Callable[[anyio.CancelScope], AbstractContextManager[None]],
        *,
        is_live: bool,
    ) -> None:
        self._folder = folder / _FOLDER
        self._active = active
        self._audit = audit
        self._clock = clock
        self._tasks = tasks
        self._report = report
        self._answering = answering
        self._is_live = is_live
        self._store: TaskStore | None = None
        self._live: dict[str, LiveCall] = {}
        self._is_watching = False

    async def serve(self) -> None:
        """Take over what an earlier process has left, and delete what has expired."""
        while True:
            if self._store is not None or self._folder.is_dir():
                try:
                    self._look_after(self._opened())
                except (OSError, UsageError) as error:
                    self._report(error)  # a full disk, or what is there is not ours
            await anyio.sleep(_CLEAN_SECONDS)

    def _look_after(self, store: "TaskStore") -> None:
        for task in tuple(store.orphans()) if self._is_live else ():
            self._take_over(task)
        store.clean()

    def close(self) -> None:
        """Give up the tasks that are left: another process takes them over."""
        if self._store is not None:
            self._store.close()

    def create(self, caller: Caller, tool: Tool, call: LiveCall) -> JsonObject | None:
        """The task of a call, as its client is told of it; `None` if there are too many."""
        from aish.serve.calls.task_store import NoRoomError

        try:
            task = self._opened().create(caller.client, str(tool.name), call.run)
        except NoRoomError:
            return None
        except (OSError, UsageError) as error:
            self._report(error)  # a full disk: the client waits for the result instead
            return None
        self._note(caller, task)
        self._follow(task, call)
        return {"resultType": "task", **shown(task)}

    async def get(self, client: str, id: JsonValue) -> JsonObject:
        """A task of a client with its result, error or questions.

        Raises:
            RpcError: there is none.
        """
        task = self._found(client, id)
        about = shown(task)
        match task.status:
            case "completed":
                result = await to_thread.run_sync(self._opened().result, task.id)
                if result is None:
                    raise RpcError(INVALID_PARAMS, _UNKNOWN)
                return {**about, "result": result}
            case "failed":
                return {**about, "error": task.error}
            case "input_required":
                return {**about, "inputRequests": task.requests}
            case "working" | "cancelled":
                return about

    def knows(self, client: str, id: str) -> bool:
        """Whether this is a task of a client."""
        try:
            self._found(client, id)
        except RpcError:
            return False
        return True

    async def tell(
        self, client: str, ids: Sequence[str], moved: Callable[[JsonObject], None]
    ) -> None:
        """Tell of each change of these tasks, until all of them have ended."""
        last: dict[str, JsonObject] = {}
        while ids:
            for id in tuple(ids):
                try:
                    now = await self.get(client, id)
                except RpcError:  # it has expired
                    ids = [one for one in ids if one != id]
                    continue
                if now != last.get(id):
                    last[id] = now
                    moved(now)
                if now["status"] in _ENDED:
                    ids = [one for one in ids if one != id]
            await anyio.sleep(_TELL_SECONDS)

    def update(self, client: str, id: JsonValue, responses: JsonObject) -> None:
        """Give answers of a client to its task.

        Raises:
            RpcError: there is none, or an answer is not valid.
        """
        task = self._found(client, id)
        live = self._live.get(task.id)
        if live is not None:
            live.answered(responses)
        elif not task.has_ended:
            self._opened().wish_answered(task, responses)

    def cancel(self, client: str, id: JsonValue) -> None:
        """End a task of a client, unless it has ended.

        Raises:
            RpcError: there is none.
        """
        task = self._found(client, id)
        live = self._live.get(task.id)
        if live is not None:
            live.cancel()
        elif not task.has_ended:
            self._opened().wish_cancelled(task)

    def _opened(self) -> "TaskStore":
        if self._store is None:
            from aish.serve.calls.task_store import TaskStore

            self._store = TaskStore(self._folder, self._clock)
        return self._store

    def _found(self, client: str, id: JsonValue) -> "Task":
        task = None
        if self._store is not None or self._folder.is_dir():
            task = self._opened().get(id, client)
        if task is None:
            raise RpcError(INVALID_PARAMS, _UNKNOWN)
        return task if self._live.get(task.id) is not None else self._take_over(task)

    def _take_over(self, task: "Task") -> "Task":
        """Go on with a task if its process is gone; how it is now."""
        # Beside a cassette nothing goes on that is not in it.
        taken = self._opened().take_over(task) if self._is_live else None
        if taken is None:
            return task
        name = ToolName(*taken.tool.split("__", 1))
        if name.server != SERVED or taken.run is None:
            error: JsonObject = {"code": INTERNAL_ERROR, "message": _LOST}
            found = self._opened().changed(taken, status="failed", error=error, message=_LOST)
            self._note(None, found)
            return found
        live = _ResumedRun(taken.run, anyio.Event(), anyio.CancelScope())
        self._note(None, taken)
        self._follow(taken, live)
        self._tasks.start_soon(self._resume, live, name, taken.run)
        return taken

    async def _resume(self, live: "_ResumedRun", name: ToolName, run: str) -> None:
        try:
            with live.scope:
                result = await self._active.now.tools.resume(name, run, live.report)
                live.result = json.dumps(result).encode("ascii")
        except AishError as error:
            mask = self._active.now.plan.secrets.mask
            said = f"run {run} cannot be resumed: {mask(error.message)}"
            live.result = RpcError(INTERNAL_ERROR, safe_utf8(said))
        except Exception as error:  # ruff: ignore[blind-except] - a fault of ours ends one task
            self._report(error)
            live.result = RpcError(INTERNAL_ERROR, "the server has failed at this task")
        live.is_over = True
        live.changed.set()

    def _follow(self, task: "Task", live: LiveCall) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._tasks.start_soon(self._watch)
        self._live[task.id] = live
        self._tasks.start_soon(partial(self._followed, task, live))

    async def _watch(self) -> None:
        """Look for what other processes want of the tasks of this one: for all at once."""
        is_readable = True
        while self._live:
            try:
                for wishes in self._opened().wishes(self._live):
                    _grant(wishes, self._live[wishes.id])
                is_readable = True
            except OSError as error:
                if is_readable:
                    self._report(error)
                is_readable = False
            await anyio.sleep(_LOOK_SECONDS)
        self._is_watching = False

    async def _followed(self, task: "Task", live: LiveCall) -> None:
        """Keep what is on disk of a task as its call is, until that has ended."""
        store = self._opened()
        is_written = True
        with anyio.CancelScope() as scope, self._answering(scope):
            while True:
                changed = live.changed
                try:
                    task = await self._as_now(store, task, live)
                    is_written = True
                except OSError as error:
                    # A full disk: it is tried again, as a client still waits for the result.
                    if is_written:
                        self._report(error)
                    is_written = False
                if task.has_ended:
                    break
                with anyio.move_on_after(_TELL_SECONDS):
                    await changed.wait()
        del self._live[task.id]
        if task.has_ended:
            self._note(None, task)

    async def _as_now(self, store: "TaskStore", task: "Task", live: LiveCall) -> "Task":
        """The task with the state of its call, written down if that is another one."""
        secrets = self._active.now.plan.secrets
        if live.is_over:
            found = live.result
            if found is None:
                return store.changed(
                    task, status="cancelled", requests=None, run=live.run, message=None
                )
            if isinstance(found, RpcError):
                said = secrets.mask(found.message)
                error = {"code": found.code, "message": said}
                return store.changed(
                    task, status="failed", error=error, message=said, requests=None
                )
            # A large one takes long to read, to write and to sync.
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(store.keep_result, task.id, found, secrets.mask_json)
            return store.changed(
                task,
                status="completed",
                requests=None,
                run=live.run,
                message=None,
            )
        requests = secrets.mask_json(live.requests)
        message = live.message and secrets.mask(live.message)
        status = "input_required" if requests else "working"
        wanted: dict[str, Any] = {
            "status": status,
            "requests": requests or None,
            "run": live.run,
        }
        is_same = all(getattr(task, name) == value for name, value in wanted.items())
        is_told = task.message == message or self._clock.now() < task.updated + _TELL_SECONDS
        if is_same and is_told:
            return task
        return store.changed(task, **wanted, message=message)

    def _note(self, caller: Caller | None, task: "Task") -> None:
        """Write down that a task was made, taken over, or has ended."""
        try:
            self._audit.note(
                "task",
                caller,
                task=task.id[:_SHOWN_ID],
                tool=task.tool,
                status=task.status,
                run=task.run,
            )
        except AuditError as error:
            self._report(error)


@slotted
class _ResumedRun:
    """A run of an earlier process that goes on in this one."""

    run: str | None
    changed: anyio.Event
    scope: anyio.CancelScope
    message: str | None = None
    is_over: bool = False
    result: bytes | RpcError | None = None
    requests: JsonObject = field(default_factory=dict)

    def report(self, progress: Progress) -> None:
        """The run tells of a finished step or item."""
        self.message = progress.message

    def answered(self, responses: JsonObject) -> None:
        """There is nothing to answer."""

    def cancel(self) -> None:
        """End it as SIGTERM does."""
        self.scope.cancel()


def _grant(wishes: "Wishes", live: LiveCall) -> None:
    """Do what other processes want of a task."""
    if wishes.is_cancelled:
        live.cancel()
    for responses in wishes.answers:
        try:
            live.answered(responses)
        except RpcError:
            continue  # not a valid answer: the question stays open


def shown(task: "Task") -> JsonObject:
    """A task as clients see it, without its result."""
    about: dict[str, JsonValue] = {
        "taskId": task.id,
        "status": task.status,
        "createdAt": rfc3339(task.created),
        "lastUpdatedAt": rfc3339(task.updated),
        "ttlMs": None if task.expires is None else round((task.expires - task.created) * 1000),
        "pollIntervalMs": POLL_MS,
    }
    if task.message is not None:
        about["statusMessage"] = task.message
    return about


def takes_tasks(capabilities: JsonObject) -> bool:
    """Whether a request declares the extension."""
    return isinstance(json_object(capabilities.get("extensions")).get(TASKS), dict)


def require_tasks(capabilities: JsonObject) -> None:
    """Refuse a request that is about tasks and does not declare the extension.

    Raises:
        RpcError: it does not.
    """
    if not takes_tasks(capabilities):
        data: JsonObject = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise RpcError(MISSING_CAPABILITY, "missing required client capability", data)
