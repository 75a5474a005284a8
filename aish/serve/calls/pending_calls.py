"""Calls of stateless clients that outlive a request: between answers, and as tasks.

A server that requests something during a call keeps the call open. A stateless client gets the
request as the result `input_required`, and answers with its next request, which carries the sealed
`requestState`. Requests of a stateless server are forwarded unchanged if possible: then nothing is
held here, and the state of the server is inside ours.

A long call becomes a task, which is written to disk before its client gets the id. Each process
that shares the state folder can answer requests about it; the process that makes the call updates
it. After that process has ended, another one resumes the run of a pipeline, and any other call
counts as failed.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from aish.core.errors import AishError, UsageError
from aish.core.events import rfc3339
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock, Progress
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolName
from aish.engine.plan.validation.names import SERVED
from aish.mcp.client.server_requests import ELICITATION, NO_CALL, Call, OnProgress
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RpcError,
    json_object,
)
from aish.serve.calls.client_requests import (
    check_answer,
    default_answer,
    pages_in,
    params_for_client,
)
from aish.serve.calls.request_state import STATE_SECONDS, RequestSeal
from aish.serve.offer.active import Active
from aish.serve.records.audit import AuditError, AuditLog, Caller
from aish.serve.state import ServeState

if TYPE_CHECKING:
    # Most clients take no tasks.
    from aish.serve.calls.task_store import Task, TaskStore

INPUT_REQUIRED: Final = "input_required"
REQUESTS = "inputRequests"
RESPONSES = "inputResponses"
STATE = "requestState"
_USED = "`requestState` was used already: call again without it"
_GONE = "the call that this belongs to is over: call again without `requestState`"
_MOST_HELD = 16
"""Calls of one client that may wait for its answers."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension, in the capabilities of a request."""
TASK_MOVED = "notifications/tasks"
_POLL_MS = 1000
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

Report = Callable[[Progress], None]
Make = Callable[[Call, "PendingCall"], Awaitable[bytes]]
"""Makes a request to a server, for its owner: the JSON of the result."""


@slotted
class _Question:
    """A request of a server to the client, until it is answered."""

    method: str
    params: JsonObject
    answered: anyio.Event
    answer: JsonObject | None = None


class PendingCall:
    """A call of a stateless client, which is asked by results.

    `offered` are the kinds of requests that the client supports. `continuation` is sent to a server
    with the repeated call: the answers, and the server's own state. `is_passed` says whether
    requests of a stateless server may be forwarded in the result, which is possible only if nobody
    was asked about the call, because it is decided again. `fills_forms` says whether the client can
    be asked about the call itself. A finished call without a `result` was cancelled.
    """

    def __init__(
        self,
        client: str,
        session: str,
        offered: JsonObject,
        seal: RequestSeal,
        *,
        fills_forms: bool = False,
    ) -> None:
        self.client = client
        self.session = session
        self.offered = offered
        self.fills_forms = fills_forms
        self.continuation: JsonObject = {}
        self.is_passed = False
        self.is_task = False
        """Its requests are answered already: the client hears of questions when it asks."""
        self.is_cancelled = False
        """The client does not want the call any more."""
        self.is_over = False
        self.result: bytes | RpcError | None = None
        self.run: str | None = None
        """The run of a pipeline that the call has begun."""
        self.message: str | None = None
        """The latest message about its progress."""
        self.on_progress: Report | None = None
        """Hears of progress; set while a request waits for the call."""
        self.changed = anyio.Event()
        """Is set at the next change of what the client is asked, and at the end."""
        self._seal = seal
        self._questions: dict[str, _Question] = {}
        self._number = 0
        self._round = 0

    # Most calls are answered by the request that makes them, and need neither.

    @cached_property
    def id(self) -> str:
        return token_hex(16)

    @cached_property
    def scope(self) -> anyio.CancelScope:
        return anyio.CancelScope()

    def capabilities(self) -> JsonObject:
        return self.offered

    def client_params(self, server: str, method: str, params: JsonObject) -> JsonObject | None:
        fields = params_for_client(server, method, params, self.offered)
        # This era has no such key: the client comes back with the state instead.
        return fields and {key: value for key, value in fields.items() if key != "elicitationId"}

    def is_given(self, requests: Mapping[str, JsonObject]) -> bool:
        is_passed = self.is_passed and not self.is_task
        return is_passed and bool(requests) and all(map(self._takes, requests.values()))

    async def ask(self, method: str, params: JsonObject, on_progress: OnProgress) -> JsonObject:
        del on_progress  # there is none in this era
        self._number += 1
        key = f"{method.partition('/')[0]}-{self._number}"
        self._questions[key] = question = _Question(method, params, anyio.Event())
        self.note_change()
        try:
            with anyio.move_on_after(STATE_SECONDS):
                await question.answered.wait()
        finally:
            del self._questions[key]
            self.note_change()
        if question.answer is None:
            self.scope.cancel()
            return default_answer(method)
        return question.answer

    def note_run(self, run: str) -> None:
        self.run = run
        self.note_change()

    def relay(self, server: str, result: JsonObject) -> JsonObject:
        """Return an `input_required` of a stateless server for the client."""
        requests = {
            key: {
                **json_object(asked),
                "params": self.client_params(
                    server, str(json_object(asked).get("method")), _params(asked)
                ),
            }
            for key, asked in json_object(result.get(REQUESTS)).items()
        }
        sealed = self._seal.seal({"server": result.get(STATE)})
        return {**result, REQUESTS: requests, STATE: sealed}

    def pages(self, server: str, error: RpcError) -> JsonObject | None:
        """Return the pages that a stateless server wants opened first; `None` if it may not ask.

        The client answers that it has opened them, and the call is made again.
        """
        pages = pages_in(error) if self.is_passed else []
        requests: JsonObject = {
            f"page-{number}": {"method": ELICITATION, "params": page}
            for number, page in enumerate(pages, 1)
            if self.client_params(server, ELICITATION, page) is not None
        }
        return {"resultType": INPUT_REQUIRED, REQUESTS: requests} if requests else None

    @property
    def requests(self) -> JsonObject:
        """The requests that the client has not answered, by key."""
        return {
            key: {"method": one.method, "params": one.params} for key, one in self._open().items()
        }

    def report(self, progress: Progress) -> None:
        """Send progress to the request that waits for the call, if there is one."""
        self.message = progress.message
        if self.on_progress is not None:
            self.on_progress(progress)

    def cancel(self) -> None:
        """Cancel the call for its client."""
        self.is_cancelled = True
        self.scope.cancel()

    @property
    def is_told(self) -> bool:
        """True if there is a result or a question for the client."""
        return self.result is not None or bool(self._open())

    async def until_told(self, *, at_run: bool = False) -> None:
        """Wait for a result or question for the client; `at_run` also for a pipeline's run."""
        while not (self.is_told or (at_run and self.run is not None)):
            await self.changed.wait()

    def input_required(self) -> JsonObject:
        """Return the result that asks the client; it answers with its next request."""
        self._round += 1
        state = self._seal.seal({"call": self.id, "round": self._round})
        return {"resultType": INPUT_REQUIRED, REQUESTS: self.requests, STATE: state}

    def answer(self, number: JsonValue, responses: JsonObject) -> None:
        """Accept the client's answers; missing ones are requested again.

        Raises:
            RpcError: this round is already answered, or an answer is invalid.
        """
        if self.on_progress is not None or number != self._round:
            raise RpcError(INVALID_PARAMS, _USED)
        self.take_answers(responses)

    def take_answers(self, responses: JsonObject) -> None:
        """Accept answers to open requests; others are ignored.

        Raises:
            RpcError: an answer is not valid.
        """
        answers = {
            key: check_answer(question.method, responses[key])
            for key, question in self._open().items()
            if key in responses
        }
        for key, answer in answers.items():
            self._questions[key].answer = answer
            self._questions[key].answered.set()

    def note_change(self) -> None:
        """Wake those who follow the call."""
        self.changed.set()
        self.changed = anyio.Event()

    def _takes(self, asked: JsonObject) -> bool:
        return self.client_params("", str(asked.get("method")), _params(asked)) is not None

    def _open(self) -> dict[str, _Question]:
        return {key: one for key, one in self._questions.items() if not one.answered.is_set()}


ResumeRun = Callable[[str, ToolName, str, Report], Awaitable[JsonObject]]
"""The result of the interrupted run of a pipeline, by its client, its tool and its id."""


@frozen
class TaskTerms:
    """Conditions for a task: after `after` seconds, or `at_once` when a run begins."""

    tool: Tool
    after: float
    at_once: bool


def _params(asked: JsonValue) -> JsonObject:
    return json_object(json_object(asked).get("params"))


class PendingCalls:
    """Makes the calls of stateless clients, keeps pending ones, and answers requests about tasks.

    `answering` registers the scopes of what has to end with the server. Unless `is_live`, a
    cassette is replayed, and no task of another process is taken over.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        state: ServeState,
        active: Active,
        audit: AuditLog,
        clock: Clock,
        on_fault: Callable[[Exception], None],
        answering: Callable[[anyio.CancelScope], AbstractContextManager[None]],
        *,
        is_live: bool,
    ) -> None:
        self._tasks = tasks
        self._state = state
        self._active = active
        self._audit = audit
        self._clock = clock
        self._on_fault = on_fault
        self._answering = answering
        self.resume: ResumeRun | None = None
        """Goes on with the run of a task."""
        self._is_live = is_live
        self._held: dict[str, PendingCall] = {}
        self._folder = state.path / _FOLDER
        self._store: TaskStore | None = None
        self._followed: dict[str, PendingCall] = {}
        """The calls under way in this process that are tasks."""
        self._is_watching = False

    async def make(
        self,
        caller: Caller,
        subject: JsonValue,
        params: JsonObject,
        offered: JsonObject,
        about: Call,
        make: Make,
        terms: TaskTerms | None = None,
        *,
        fills_forms: bool = False,
    ) -> bytes | JsonObject:
        """Make a call, or continue one with the client's answers, and return its result.

        `subject` identifies the request, `offered` are the kinds of requests that the client
        supports, and `fills_forms` says whether the client can be asked about the call itself. The
        result is JSON, or the requests to the client; with `terms` it may be a task.

        Raises:
            RpcError: the `requestState` of the request is not valid, or the call has failed.
        """
        seal = RequestSeal(self._state, self._clock, caller.client, subject)
        sent, responses = params.get(STATE), json_object(params.get(RESPONSES))
        if not all(isinstance(response, Mapping) for response in responses.values()):
            raise RpcError(INVALID_PARAMS, f"each value of `{RESPONSES}` has to be an object")
        content = {} if sent is None else seal.open(sent)
        if "call" in content:
            held = self._held.get(str(content["call"]))
            if held is None:
                raise RpcError(INVALID_PARAMS, _GONE)
            held.answer(content.get("round"), responses)
            return await self._next(held, caller, about, terms)
        call = PendingCall(caller.client, caller.session, offered, seal, fills_forms=fills_forms)
        if RESPONSES in params:
            call.continuation = {RESPONSES: responses}
        if content.get("server") is not None:
            call.continuation = {**call.continuation, STATE: content["server"]}
        if not offered and terms is None and not fills_forms:
            return await make(about, call)
        others = (other for other in self._held.values() if other.client == caller.client)
        if sum(other.on_progress is None for other in others) >= _MOST_HELD:
            message = f"busy: {_MOST_HELD} calls wait for answers of this client already"
            raise RpcError(INTERNAL_ERROR, message)
        self._held[call.id] = call
        self._tasks.start_soon(self._run, call, about, make)
        return await self._next(call, caller, about, terms)

    def end(self, session: str) -> None:
        """Cancel the calls that a session began, except for tasks."""
        for call in tuple(self._held.values()):
            if call.session == session:
                call.scope.cancel()
                del self._held[call.id]

    async def _next(
        self, call: PendingCall, caller: Caller, about: Call, terms: TaskTerms | None
    ) -> bytes | JsonObject:
        """Wait for the answer to a request about the call.

        Raises:
            RpcError: the call ended with an error.
        """
        call.on_progress = about.on_progress or (lambda _: None)
        is_held = False
        try:
            result = await self._until_told(call, caller, terms)
            is_held = result is None
        except anyio.get_cancelled_exc_class():
            call.scope.cancel()
            raise
        finally:
            call.on_progress = None
            if not is_held:
                self._held.pop(call.id, None)
        return call.input_required() if result is None else result

    async def _until_told(
        self, call: PendingCall, caller: Caller, terms: TaskTerms | None
    ) -> bytes | JsonObject | None:
        """Wait for the result of a call or its task; `None` if its client is asked first."""
        if terms is not None:
            with anyio.move_on_after(terms.after):
                await call.until_told(at_run=terms.at_once)
            task = None if call.is_told else self._create(caller, terms.tool, call)
            if task is not None:
                return task
        await call.until_told()
        if isinstance(call.result, RpcError):
            raise call.result
        return call.result

    async def _run(self, call: PendingCall, about: Call, make: Make) -> None:
        try:
            with call.scope:
                call.result = await make(replace(about, on_progress=call.report), call)
        except RpcError as error:
            call.result = error
        except Exception as error:  # ruff: ignore[blind-except] - a fault of ours ends one call
            self._on_fault(error)
            call.result = RpcError(INTERNAL_ERROR, "the server has failed at this request")
        call.is_over = True
        call.note_change()
        is_awaited = call.on_progress is not None or call.is_task
        if call.result is not None and not is_awaited:
            # Its client is asked something that is not needed any more, and may still come back.
            await anyio.sleep(STATE_SECONDS)
        self._held.pop(call.id, None)

    async def serve_tasks(self) -> None:
        """Take over the tasks of ended processes, and delete expired ones."""
        while True:
            if self._store is not None or self._folder.is_dir():
                try:
                    store = self._open_store()
                    for task in tuple(store.orphans()) if self._is_live else ():
                        self._take_over(task)
                    store.clean()
                except (OSError, UsageError) as error:
                    self._on_fault(error)  # a full disk, or what is there is not ours
            await anyio.sleep(_CLEAN_SECONDS)

    def close(self) -> None:
        """Release the remaining tasks, so that another process takes them over."""
        if self._store is not None:
            self._store.close()

    async def task(self, client: str, id: JsonValue) -> JsonObject:
        """Return a task of a client with its result, error or questions.

        Raises:
            RpcError: there is none.
        """
        task = self._task_of(client, id)
        about = _task_row(task)
        match task.status:
            case "completed":
                result = await to_thread.run_sync(self._open_store().result, task.id)
                if result is None:
                    raise RpcError(INVALID_PARAMS, _UNKNOWN)
                return {**about, "result": result}
            case "failed":
                return {**about, "error": task.error}
            case "input_required":
                return {**about, "inputRequests": task.requests}
            case "working" | "cancelled":
                return about

    def has_task(self, client: str, id: str) -> bool:
        with suppress(RpcError):
            self._task_of(client, id)
            return True
        return False

    async def tell_of_tasks(
        self, client: str, ids: Sequence[str], moved: Callable[[JsonObject], None]
    ) -> None:
        """Yield each change of these tasks until all have ended."""
        last: dict[str, JsonObject] = {}
        while ids:
            for id in tuple(ids):
                try:
                    now = await self.task(client, id)
                except RpcError:  # it has expired
                    ids = [other for other in ids if other != id]
                    continue
                if now != last.get(id):
                    last[id] = now
                    moved(now)
                if now["status"] in _ENDED:
                    ids = [other for other in ids if other != id]
            await anyio.sleep(_TELL_SECONDS)

    def update_task(self, client: str, id: JsonValue, responses: JsonObject) -> None:
        """Pass answers of a client to its task.

        Raises:
            RpcError: there is none, or an answer is invalid.
        """
        task = self._task_of(client, id)
        if (call := self._followed.get(task.id)) is not None:
            call.take_answers(responses)
        elif not task.has_ended:
            self._open_store().put_answers(task, responses)

    def cancel_task(self, client: str, id: JsonValue) -> None:
        """Cancel a task of a client, unless it has ended.

        Raises:
            RpcError: there is none.
        """
        task = self._task_of(client, id)
        if (call := self._followed.get(task.id)) is not None:
            call.cancel()
        elif not task.has_ended:
            self._open_store().put_cancel(task)

    def _create(self, caller: Caller, tool: Tool, call: PendingCall) -> JsonObject | None:
        """Make a task of a call, and return it for the client; `None` if there are too many."""
        from aish.serve.calls.task_store import TooManyTasksError

        try:
            task = self._open_store().create(caller.client, str(tool.name), call.run)
        except TooManyTasksError:
            return None
        except (OSError, UsageError) as error:
            self._on_fault(error)  # a full disk: the client waits for the result instead
            return None
        call.is_task = True
        self._note(caller, task)
        self._follow(task, call)
        return {"resultType": "task", **_task_row(task)}

    def _open_store(self) -> "TaskStore":
        if self._store is None:
            from aish.serve.calls.task_store import TaskStore

            self._store = TaskStore(self._folder, self._clock)
        return self._store

    def _task_of(self, client: str, id: JsonValue) -> "Task":
        task = None
        if self._store is not None or self._folder.is_dir():
            task = self._open_store().get(id, client)
        if task is None:
            raise RpcError(INVALID_PARAMS, _UNKNOWN)
        return task if task.id in self._followed else self._take_over(task)

    def _take_over(self, task: "Task") -> "Task":
        # Beside a cassette nothing goes on that is not in it.
        taken = self._open_store().take_over(task) if self._is_live else None
        if taken is None:
            return task
        name, run = ToolName(*taken.tool.split("__", 1)), taken.run
        if name.server != SERVED or run is None:
            error: JsonObject = {"code": INTERNAL_ERROR, "message": _LOST}
            lost = self._open_store().update(taken, status="failed", error=error, message=_LOST)
            self._note(None, lost)
            return lost

        async def resume(about: Call, owner: PendingCall) -> bytes:
            del about
            assert self.resume is not None, "it is set before anything is served"
            try:
                result = await self.resume(taken.client, name, run, owner.report)
            except AishError as error:
                mask = self._active.now.plan.secrets.mask
                message = f"run {run} cannot be resumed: {mask(error.message)}"
                raise RpcError(INTERNAL_ERROR, safe_utf8(message)) from error
            return json.dumps(result).encode("ascii")

        seal = RequestSeal(self._state, self._clock, taken.client, None)
        call = PendingCall(taken.client, "", {}, seal)
        call.run, call.is_task = run, True
        self._note(None, taken)
        self._follow(taken, call)
        self._tasks.start_soon(self._run, call, NO_CALL, resume)
        return taken

    def _follow(self, task: "Task", call: PendingCall) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._tasks.start_soon(self._watch)
        self._followed[task.id] = call
        self._tasks.start_soon(partial(self._write_changes, task, call))

    async def _watch(self) -> None:
        """Watch for commands of other processes to all tasks of this one."""
        is_readable = True
        while self._followed:
            try:
                self._handle_commands(self._open_store())
                is_readable = True
            except OSError as error:
                if is_readable:
                    self._on_fault(error)
                is_readable = False
            await anyio.sleep(_LOOK_SECONDS)
        self._is_watching = False

    def _handle_commands(self, store: "TaskStore") -> None:
        for id, responses in store.take_commands(self._followed):
            if responses is None:
                self._followed[id].cancel()
                continue
            with suppress(RpcError):  # not a valid answer: the question stays open
                self._followed[id].take_answers(responses)

    async def _write_changes(self, task: "Task", call: PendingCall) -> None:
        store = self._open_store()
        is_written = True
        with anyio.CancelScope() as scope, self._answering(scope):
            while True:
                changed = call.changed
                try:
                    task = await self._write_state(store, task, call)
                    is_written = True
                except OSError as error:
                    # A full disk: it is tried again, as a client still waits for the result.
                    if is_written:
                        self._on_fault(error)
                    is_written = False
                if task.has_ended:
                    break
                with anyio.move_on_after(_TELL_SECONDS):
                    await changed.wait()
        del self._followed[task.id]
        if task.has_ended:
            self._note(None, task)

    async def _write_state(self, store: "TaskStore", task: "Task", call: PendingCall) -> "Task":
        """Return the task with the current state of its call, and write it if it has changed."""
        secrets = self._active.now.plan.secrets
        result = call.result
        if isinstance(result, RpcError):
            text = secrets.mask(result.message)
            error = {"code": result.code, "message": text}
            return store.update(task, status="failed", error=error, message=text, requests=None)
        if call.is_over:
            if result is not None:
                # A large one takes long to read, to write and to sync.
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(store.keep_result, task.id, result, secrets.mask_json)
            status = "cancelled" if result is None else "completed"
            return store.update(task, status=status, requests=None, run=call.run, message=None)
        requests = secrets.mask_json(call.requests)
        message = call.message and secrets.mask(call.message)
        values: dict[str, Any] = {
            "status": "input_required" if requests else "working",
            "requests": requests or None,
            "run": call.run,
        }
        is_same = all(getattr(task, name) == value for name, value in values.items())
        is_told = task.message == message or self._clock.now() < task.updated + _TELL_SECONDS
        return task if is_same and is_told else store.update(task, **values, message=message)

    def _note(self, caller: Caller | None, task: "Task") -> None:
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
            self._on_fault(error)


def _task_row(task: "Task") -> JsonObject:
    """Return a task for clients, without its result."""
    about: dict[str, JsonValue] = {
        "taskId": task.id,
        "status": task.status,
        "createdAt": rfc3339(task.created),
        "lastUpdatedAt": rfc3339(task.updated),
        "ttlMs": None if task.expires is None else round((task.expires - task.created) * 1000),
        "pollIntervalMs": _POLL_MS,
    }
    if task.message is not None:
        about["statusMessage"] = task.message
    return about


def takes_tasks(capabilities: JsonObject) -> bool:
    """Return true if a request declares the extension."""
    return isinstance(json_object(capabilities.get("extensions")).get(TASKS), dict)


def require_tasks(capabilities: JsonObject) -> None:
    """Check that a request about tasks declares the extension.

    Raises:
        RpcError: it does not.
    """
    if not takes_tasks(capabilities):
        data: JsonObject = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise RpcError(MISSING_CAPABILITY, "missing required client capability", data)
