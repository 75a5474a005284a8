"""Calls of stateless clients that go on between the requests in which the client answers (H8).

A server that asks something on the way of a call keeps the call open. A stateless client is asked
by the result of its request, `input_required`, and answers with the next one, which carries the
sealed `requestState`. What a stateless server asks is passed on as it is where that can be: then
nothing is held, and the state of the server is in ours.
"""

from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Final

import anyio
from anyio.abc import TaskGroup

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock, Progress
from aish.mcp.client.server_requests import ELICITATION, OnProgress
from aish.mcp.protocol.messages import INTERNAL_ERROR, INVALID_PARAMS, RpcError, json_object
from aish.serve.calls.client_requests import checked_answer, passed_on, unanswered, wanted_pages
from aish.serve.calls.request_state import STATE_SECONDS, RequestSeal
from aish.serve.records.audit import Caller
from aish.serve.state import ServeState

INPUT_REQUIRED: Final = "input_required"
REQUESTS = "inputRequests"
RESPONSES = "inputResponses"
STATE = "requestState"
_USED = "`requestState` was used already: call again without it"
_GONE = "the call that this belongs to is over: call again without `requestState`"
_MOST_HELD = 16
"""Calls of one client that may wait for its answers."""

Report = Callable[[Progress], None]
Make = Callable[["StatelessOwner", Report], Awaitable[bytes]]
"""Makes the call: the JSON of its result."""


@slotted
class _Question:
    """What a server asked, until it has its answer."""

    method: str
    params: JsonObject
    answered: anyio.Event
    answer: JsonObject | None = None


class StatelessOwner:
    """A client of the stateless era as the owner of a call: it is asked by a result.

    `offered` is what it can be asked for. `continuation` is what a server gets again with the call:
    the answers, and its own state. `is_passed` says whether what a stateless server asks may be
    passed on in the result: only if nobody was asked about the call, as it is decided about anew.
    `fills_forms` says whether it can be asked about the call itself (H10).
    """

    def __init__(
        self, client: str, offered: JsonObject, seal: RequestSeal, *, fills_forms: bool
    ) -> None:
        self.client = client
        self.offered = offered
        self.fills_forms = fills_forms
        self.continuation: JsonObject = {}
        self.is_passed = False
        self.is_task = False
        """Its requests are answered already: it is told of questions when it asks."""
        self.is_cancelled = False
        """The client does not want the call any more."""
        self.run: str | None = None
        """The run of a pipeline that the call has begun."""
        self.questions: dict[str, _Question] = {}
        self.changed = anyio.Event()
        self.on_silence: Callable[[], None] = lambda: None
        """Hears that the client has not come back in time."""
        self._seal = seal
        self._number = 0

    def capabilities(self) -> JsonObject:
        """What it can be asked for."""
        return self.offered

    def asked(self, server: str, method: str, params: JsonObject) -> JsonObject | None:
        """The params of a server's request as it gets them."""
        found = passed_on(server, method, params, self.offered)
        # This era has no such key: the client comes back with the state instead.
        return found and {key: value for key, value in found.items() if key != "elicitationId"}

    def is_given(self, requests: Mapping[str, JsonObject]) -> bool:
        """Whether these requests of a stateless server go to it in the result of the call."""
        is_passed = self.is_passed and not self.is_task
        return is_passed and bool(requests) and all(map(self._takes, requests.values()))

    async def ask(self, method: str, params: JsonObject, on_progress: OnProgress) -> JsonObject:
        """Its answer to a request: it gets it in a result, and answers in its next request.

        Raises:
            RpcError: it does not answer.
        """
        del on_progress  # there is none in this era
        self._number += 1
        key = f"{method.partition('/')[0]}-{self._number}"
        self.questions[key] = question = _Question(method, params, anyio.Event())
        self._note()
        try:
            with anyio.move_on_after(STATE_SECONDS):
                await question.answered.wait()
        finally:
            del self.questions[key]
            self._note()
        if question.answer is None:
            self.on_silence()
            return unanswered(method)
        return question.answer

    def begun(self, run: str) -> None:
        """The call has begun the run of a pipeline."""
        self.run = run
        self._note()

    def required(self, server: str, result: JsonObject) -> JsonObject:
        """An `input_required` of a stateless server as the client gets it."""
        requests = {
            key: {
                **json_object(asked),
                "params": self.asked(server, str(json_object(asked).get("method")), _params(asked)),
            }
            for key, asked in json_object(result.get(REQUESTS)).items()
        }
        sealed = self._seal.seal({"server": result.get(STATE)})
        return {**result, REQUESTS: requests, STATE: sealed}

    def pages(self, server: str, error: RpcError) -> JsonObject | None:
        """Pages that have to be opened first, as a stateless server asks for them; `None` if none.

        What comes back of the client is that it has opened them: the call is made again.
        """
        pages = wanted_pages(error) if self.is_passed else []
        requests: JsonObject = {
            f"page-{number}": {"method": ELICITATION, "params": page}
            for number, page in enumerate(pages, 1)
            if self.asked(server, ELICITATION, page) is not None
        }
        return {"resultType": INPUT_REQUIRED, REQUESTS: requests} if requests else None

    def _takes(self, asked: JsonObject) -> bool:
        return self.asked("", str(asked.get("method")), _params(asked)) is not None

    def _note(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


@frozen
class TaskTerms:
    """When a call becomes a task: after so many seconds, or `at_once`, when it has begun a run.

    `create` makes the task of a call: what its client gets; `None` if there are too many.
    """

    after: float
    at_once: bool
    create: "Callable[[_HeldCall], JsonObject | None]"


def _params(asked: JsonValue) -> JsonObject:
    return json_object(json_object(asked).get("params"))


class _HeldCall:
    """A call that goes on, and what its client is asked meanwhile."""

    def __init__(self, owner: StatelessOwner, session: str, seal: RequestSeal) -> None:
        self.id = token_hex(16)
        self.session = session
        self.owner = owner
        self.scope = anyio.CancelScope()
        owner.on_silence = self.scope.cancel
        self.is_awaited = False
        self.result: bytes | RpcError | None = None
        self.is_over = False
        """It has ended; without a result it was cancelled."""
        self._seal = seal
        self._round = 0
        self._report: Report | None = None
        self.message: str | None = None
        """What was told of its progress last."""

    @property
    def run(self) -> str | None:
        """The run of a pipeline, once it has begun."""
        return self.owner.run

    @property
    def changed(self) -> anyio.Event:
        """Is set at the next change of what the client is asked, and at the end."""
        return self.owner.changed

    @property
    def requests(self) -> JsonObject:
        """What the client is asked and has not answered, by key."""
        return {
            key: {"method": one.method, "params": one.params} for key, one in self._open().items()
        }

    def cancel(self) -> None:
        """End it."""
        self.owner.is_cancelled = True
        self.scope.cancel()

    def report(self, progress: Progress) -> None:
        """Tell of progress on the way of the request that waits for the call, if one does."""
        self.message = progress.message
        if self._report is not None:
            self._report(progress)

    async def next(self, report: Report, terms: TaskTerms | None) -> bytes | JsonObject:
        """The result of the call, or what the client is asked before there is one, or a task.

        Raises:
            RpcError: the call ended with an error.
        """
        self._report, self.is_awaited = report, True
        self._round += 1
        try:
            task = None if terms is None else await self._as_task(terms)
            if task is not None:
                return task
            await self._until_told(at_run=False)
        except anyio.get_cancelled_exc_class():
            self.scope.cancel()
            raise
        finally:
            self._report, self.is_awaited = None, False
        if isinstance(self.result, RpcError):
            raise self.result
        if self.result is not None:
            return self.result
        state = self._seal.seal({"call": self.id, "round": self._round})
        return {"resultType": INPUT_REQUIRED, REQUESTS: self.requests, STATE: state}

    def answer(self, number: JsonValue, responses: JsonObject) -> None:
        """Take the client's answers; those that are missing are asked for again.

        Raises:
            RpcError: it has answered this round already, or an answer is not valid.
        """
        if self.is_awaited or number != self._round:
            raise RpcError(INVALID_PARAMS, _USED)
        self.answered(responses)

    def answered(self, responses: JsonObject) -> None:
        """Take answers to what is asked; others are ignored.

        Raises:
            RpcError: an answer is not valid.
        """
        found = {
            key: checked_answer(one.method, responses[key])
            for key, one in self._open().items()
            if key in responses
        }
        for key, given in found.items():
            self.owner.questions[key].answer = given
            self.owner.questions[key].answered.set()

    @property
    def _is_told(self) -> bool:
        """Whether there is a result, or a question, for the client."""
        return self.result is not None or bool(self._open())

    async def _as_task(self, terms: TaskTerms) -> JsonObject | None:
        """What the client is told of the task that the call is now; `None` if it is none."""
        with anyio.move_on_after(terms.after):
            await self._until_told(at_run=terms.at_once)
        task = None if self._is_told else terms.create(self)
        self.owner.is_task = task is not None
        return task

    async def _until_told(self, *, at_run: bool) -> None:
        """Wait for something to tell the client; `at_run` also for the run of a pipeline."""
        while not (self._is_told or (at_run and self.run is not None)):
            await self.owner.changed.wait()

    def _open(self) -> dict[str, _Question]:
        questions = self.owner.questions.items()
        return {key: one for key, one in questions if not one.answered.is_set()}


class HeldCalls:
    """Makes the calls of stateless clients that can be asked, and keeps those that wait."""

    def __init__(
        self,
        tasks: TaskGroup,
        state: ServeState,
        clock: Clock,
        report: Callable[[Exception], None],
    ) -> None:
        self._tasks = tasks
        self._state = state
        self._clock = clock
        self._report = report
        self._held: dict[str, _HeldCall] = {}

    async def make(
        self,
        caller: Caller,
        subject: JsonValue,
        params: JsonObject,
        offered: JsonObject,
        report: Report,
        make: Make,
        terms: TaskTerms | None = None,
        *,
        fills_forms: bool = False,
    ) -> bytes | JsonObject:
        """The result of a request that may be the first of a call, or one with answers.

        `subject` is what the request is about, `offered` what servers can ask the client for;
        `fills_forms` says whether it can be asked about the call itself. The result is JSON, or
        what its client is asked for; with `terms` it may be a task.

        Raises:
            RpcError: the `requestState` of the request is not valid, or the call has failed.
        """
        seal = RequestSeal(self._state, self._clock, caller.client, subject)
        owner = StatelessOwner(caller.client, offered, seal, fills_forms=fills_forms)
        sent = params.get(STATE)
        responses = json_object(params.get(RESPONSES))
        if not all(isinstance(one, Mapping) for one in responses.values()):
            raise RpcError(INVALID_PARAMS, f"each value of `{RESPONSES}` has to be an object")
        content = {} if sent is None else seal.open(sent)
        if "call" in content:
            held = self._held.get(str(content["call"]))
            if held is None:
                raise RpcError(INVALID_PARAMS, _GONE)
            held.answer(content.get("round"), responses)
            return await self._next(held, report, terms)
        if sent is not None or RESPONSES in params:
            continuation: dict[str, JsonValue] = {}
            if RESPONSES in params:
                continuation[RESPONSES] = responses
            if content.get("server") is not None:
                continuation[STATE] = content["server"]
            owner.continuation = continuation
        if not offered and terms is None and not fills_forms:
            return await make(owner, report)
        mine = [one for one in self._held.values() if one.owner.client == caller.client]
        if sum(not one.is_awaited for one in mine) >= _MOST_HELD:
            said = f"busy: {_MOST_HELD} calls wait for answers of this client already"
            raise RpcError(INTERNAL_ERROR, said)
        held = _HeldCall(owner, caller.session, seal)
        self._held[held.id] = held
        self._tasks.start_soon(self._run, held, make)
        return await self._next(held, report, terms)

    def end(self, session: str) -> None:
        """Cancel the calls that a session began."""
        for held in tuple(self._held.values()):
            if held.session == session:
                held.scope.cancel()
                self._held.pop(held.id)

    async def _next(
        self, held: _HeldCall, report: Report, terms: TaskTerms | None
    ) -> bytes | JsonObject:
        try:
            found = await held.next(report, terms)
        except BaseException:
            self._held.pop(held.id, None)
            raise
        if isinstance(found, bytes) or held.owner.is_task:
            self._held.pop(held.id, None)
        return found

    async def _run(self, held: _HeldCall, make: Make) -> None:
        try:
            with held.scope:
                held.result = await make(held.owner, held.report)
        except RpcError as error:
            held.result = error
        except Exception as error:  # ruff: ignore[blind-except] - a fault of ours ends one call
            self._report(error)
            held.result = RpcError(INTERNAL_ERROR, "the server has failed at this request")
        held.is_over = True
        held.owner.changed.set()
        if held.result is None:
            self._held.pop(held.id, None)  # cancelled: nobody waits for it
            return
        if not held.is_awaited and not held.owner.is_task:
            # Its client is asked something that is not needed any more, and may still come back.
            await anyio.sleep(STATE_SECONDS)
            self._held.pop(held.id, None)
