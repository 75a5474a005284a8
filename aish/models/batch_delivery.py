"""Requests to a model by batches of its provider: to everything above, a slow endpoint.

Requests are collected and submitted together; the batch is asked for until it has ended, and each
request gets its answer as if it had been sent alone. Recording, retries and limits are above this.

Nothing is submitted twice. What is to be submitted is in the journal before that, and the id of the
batch after it; a batch without an id is looked for before its requests are sent again. A request
that a resumed run sends again is known by its digest.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from hashlib import sha256
from itertools import count
from typing import TypeVar

import anyio
import httpx
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from aish.config.model import ModelEntry, ModelTimeout
from aish.core.events import (
    NOWHERE,
    BatchCollected,
    BatchPlanned,
    BatchSubmitted,
    Notice,
    rfc3339,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.phrases import counted, shorten
from aish.core.protocols import Emit, Park
from aish.journal.batches import RecordedBatch
from aish.models.dialect_choice import wire_of
from aish.models.endpoint_key import EndpointKey, TurnKey
from aish.models.headers import headers_of
from aish.models.retry import (
    BROKEN,
    AttemptError,
    RetryTiming,
    delay_before,
    judge_status,
    longest_wait,
    origin_of,
)
from aish.models.transport import CAP, background, body_of, in_words, open_client, read_start
from aish.net.renewed_secret import RenewedSecret
from aish.wire.batches.types import (
    UNREADABLE,
    BatchError,
    BatchInterface,
    BatchMark,
    BatchRequest,
    BatchResult,
    BatchState,
    ResultsReader,
)
from aish.wire.dialect import load_batches
from aish.wire.json_text import dump

IDLE_SECONDS = 2.0
"""A batch is submitted when so long no other request has come."""
FIRST_GAP, LONGEST_GAP = 0.5, 60.0
_SHARE = 50
"""Between two questions whether a batch has ended goes this part of the time it has taken."""
SETTLE_SECONDS = 10.0
"""How long a batch may need to appear in the list of a provider after its submission."""
_PATIENCE = 10
"""Times `retry.attempts`, for questions about a batch that is paid for."""
_DIGITS = 24
_MARGIN = 256
_SUCCESS = range(200, 300)
_SERVER_ERROR = 500
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
_FOREVER = 30 * 86_400.0
_JSON = {"content-type": "application/json"}
_MOST_UNTAKEN = 64
"""Answers that were handed out and not taken yet."""
_ABSENT, _CONFLICT, _GONE = 404, 409, 410
_NOT_OFFERED = frozenset({404, 405, 501})
"""Statuses of an endpoint that does not have this call of the interface."""
_LOOKS = 5
"""How often is asked for what is missing, as it may only be late: results, or a new batch."""
_INCOMPLETE = frozenset({"expired", "cancelled", "canceled", "failed"})
"""States of an end after which no more results come."""


@frozen
class _Refusal:
    """The answer to a call of the interface that was refused; `kind` is its content type."""

    status: int
    kind: str
    body: bytes


Decoded = TypeVar("Decoded")


class _CallError(Exception):
    """A call of the interface failed; `doubtful` says that it may have been carried out."""

    def __init__(
        self, failure: AttemptError, said: _Refusal | Exception, *, doubtful: bool
    ) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.said = said
        self.doubtful = doubtful

    @property
    def cause(self) -> Exception:
        return self if isinstance(self.said, _Refusal) else self.said

    @property
    def status(self) -> int | None:
        return self.said.status if isinstance(self.said, _Refusal) else None


@slotted
class _Waiting:
    """A request that waits for its answer, in the batch `of` under its number.

    `body` is empty once it has been submitted for good. `moved` is set when the run need not wait
    for the answer, or when it has come.
    """

    body: bytes
    digest: str
    answer: "asyncio.Future[httpx.Response]"
    of: "tuple[_Batch, int] | None" = None
    moved: asyncio.Event | None = None
    is_counted: bool = False


@slotted
class _Batch:
    """A batch: `waiting` are its requests that are waited for, by their numbers.

    `left` are those whose answers were not handed out yet. `held`: its provider works on it.
    `is_followed`: a task asks for it. `was_collected`: answers were handed out. `may_repeat` is as
    of `RecordedBatch`.
    """

    mark: BatchMark
    size: int
    began: float
    left: set[int]
    id: str | None = None
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    held: bool = False
    is_followed: bool = False
    was_collected: bool = False
    may_repeat: bool = False

    def answer(self, number: int, response: httpx.Response) -> bool:
        """Hand out an answer; false if nobody waits for it any more."""
        waiting = self.waiting.pop(number, None)
        if waiting is None or waiting.answer.done():
            return False
        waiting.answer.set_result(response)
        waiting.is_counted = True
        self.left.discard(number)
        self.was_collected = True
        return True

    def tell_held(self) -> None:
        self.held = True
        for waiting in self.waiting.values():
            if waiting.moved is not None:
                waiting.moved.set()


@frozen
class DeliveryPlace:
    """The model's name in a run, the id of the run, and all of its batches."""

    model: str
    run: str
    batches: list[RecordedBatch]
    emit: Emit


class BatchDelivery:
    """The batches of one model. `make_client` opens what takes the place of a connection."""

    def __init__(
        self,
        entry: ModelEntry,
        key: EndpointKey | None,
        headers: Mapping[str, str],
        place: DeliveryPlace,
        pace: RetryTiming,
        tasks: TaskGroup,
    ) -> None:
        self._entry = entry
        self._key = key
        self._headers = headers
        self._place = place
        self._pace = pace
        self._tasks = tasks
        self._wire = wire_of(entry)
        self._base = httpx.URL(entry.base_url or "")
        self._interface: BatchInterface = load_batches(self._wire)
        self._arrived = asyncio.Event()
        self._pending: deque[_Waiting] = deque()
        self._bytes = 0
        self._last = 0.0
        self._untaken = 0
        self._taken = asyncio.Event()
        self._batches: dict[int, _Batch] = {}
        self._known: dict[str, deque[tuple[_Batch, int]]] = {}
        for one in place.batches:
            if one.model == place.model and one.requests:
                mark, left = BatchMark(place.run, one.number), {n for n, _ in one.requests}
                batch = _Batch(mark, one.size, one.began, left, one.id, may_repeat=one.may_repeat)
                self._batches[one.number] = batch
                for number, digest in one.requests:
                    self._keep((batch, number), digest)
        tasks.start_soon(self._collect)

    def make_client(self, _: ModelEntry) -> httpx.AsyncBaseTransport:
        return _BatchClient(self)

    def tell_collected(self) -> None:
        """Note whose answers were handed out; only once they are all in the journal."""
        for number, batch in self._batches.items():
            if batch.was_collected:
                self._place.emit(BatchCollected(number, tuple(sorted(batch.left))))

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request, hours later."""
        waiting = _parse_request(await request.aread())
        park: Park | None = request.extensions.get("park")
        if park is not None:
            waiting.moved = moved = asyncio.Event()
            waiting.answer.add_done_callback(lambda _: moved.set())
        self._add(waiting)
        try:
            await _until_answered(waiting, park)
            response = await waiting.answer
        except BaseException:
            if waiting.is_counted:
                self._note_taken()
            raise
        else:
            if waiting.is_counted:
                # A new one: that with its content at hand counts as closed already.
                handed, status = _Handed(body_of(response), self._note_taken), response.status_code
                response = httpx.Response(status, headers=response.headers, stream=handed)
            return response
        finally:
            if waiting.of is not None and not waiting.answer.done():
                # Nobody waits any more; the same request gets this answer, if it is sent again.
                batch, number = waiting.of
                batch.waiting.pop(number, None)
                self._keep(waiting.of, waiting.digest)
            waiting.answer.cancel()

    def _note_taken(self) -> None:
        self._untaken -= 1
        self._taken.set()

    def _keep(self, of: tuple[_Batch, int], digest: str) -> None:
        self._known.setdefault(digest, deque()).append(of)

    def _add(self, waiting: _Waiting) -> None:
        if known := self._known.get(waiting.digest):
            waiting.of = batch, number = known.popleft()
            batch.waiting[number] = waiting
            if batch.id is not None and not batch.may_repeat:
                waiting.body = b""
            if batch.held and waiting.moved is not None:
                waiting.moved.set()
            if not batch.is_followed:
                batch.is_followed = True
                self._tasks.start_soon(self._go_on, batch)
            return
        self._pending.append(waiting)
        self._bytes += len(waiting.body) + _MARGIN
        self._last = asyncio.get_running_loop().time()
        self._arrived.set()

    async def _collect(self) -> None:
        """Submit what has come, whenever no more comes or a batch is full."""
        while True:
            await self._arrived.wait()
            while not self._is_full() and (left := self._idle_left()) > 0:
                self._arrived.clear()
                with anyio.move_on_after(left):
                    await self._arrived.wait()
            self._arrived.clear()
            if requests := self._take():
                self._tasks.start_soon(self._deliver, requests)
            if self._pending:
                self._arrived.set()

    def _idle_left(self) -> float:
        return self._last + IDLE_SECONDS - asyncio.get_running_loop().time()

    def _is_full(self) -> bool:
        bounds = self._interface
        return len(self._pending) >= bounds.most_requests or self._bytes >= bounds.most_bytes

    def _take(self) -> list[_Waiting]:
        """As many of the requests as a batch may have; those that nobody waits for are dropped."""
        taken: list[_Waiting] = []
        size = 0
        while self._pending and len(taken) < self._interface.most_requests:
            more = len(self._pending[0].body) + _MARGIN
            if taken and size + more > self._interface.most_bytes:
                break
            size += more
            self._bytes -= more
            waiting = self._pending.popleft()
            if not waiting.answer.done():
                taken.append(waiting)
        return taken

    # Submitting.

    async def _deliver(self, requests: list[_Waiting]) -> None:
        """Submit requests as a batch, and hand out its answers."""
        place, began = self._place, self._pace.clock.now()
        number = 1 + max((one.number for one in place.batches), default=0)
        digests = tuple(enumerate(one.digest for one in requests))
        size = len(requests)
        place.batches.append(RecordedBatch(number, place.model, size, digests, began))
        batch = _Batch(BatchMark(place.run, number), size, began, {*range(size)})
        batch.is_followed = True
        for index, waiting in enumerate(requests):
            waiting.of = batch, index
            batch.waiting[index] = waiting
        # Only the batch keeps them, and only until they are answered.
        requests.clear()
        try:
            words = " ".join(digest for _, digest in digests)
            place.emit(BatchPlanned(number, place.model, size, words))
            self._batches[number] = batch
            self._note_submitted(batch, await self._submit(batch, self._content(batch)))
        except _CallError as error:
            if not error.doubtful:
                self._forget(batch)
            self._fail_all(batch, self._without_batches(error))
        except Exception as error:  # ruff: ignore[blind-except] - raised again where it is waited for
            self._fail_all(batch, error)
        else:
            await self._follow(batch)

    def _content(self, batch: _Batch) -> bytes:
        interface = self._interface
        entries = []
        for number, waiting in batch.waiting.items():
            custom_id = batch.mark.custom_id(number)
            entries.append(interface.entry(BatchRequest(custom_id, json.loads(waiting.body))))
        return interface.opening + interface.separator.join(entries) + interface.ending

    async def _submit(self, batch: _Batch, content: bytes) -> BatchState:
        """Submit a batch; one that may have been created already is looked for first.

        Raises:
            _CallError: the provider does not take it.
        """
        for attempt in count(1):
            try:
                return await self._create(batch, content)
            except _CallError as error:
                delay = self._delay(error, attempt)
                if error.doubtful and (found := await self._look_for(batch)) is not None:
                    return found
                if not self._may_retry(error, attempt):
                    raise
                if not error.doubtful:
                    await self._pace.sleep(delay)
        raise AssertionError("it counts without end")

    def _may_retry(self, error: _CallError, attempt: int) -> bool:
        advice, policy = error.failure.advice, self._entry.retry
        is_soon = (advice.wait or 0.0) <= longest_wait(policy)
        return advice.retry and is_soon and attempt < policy.attempts

    async def _create(self, batch: _Batch, content: bytes) -> BatchState:
        upload, leaf = self._interface.upload, self._interface.leaf
        if upload is not None:
            file = {"file": (upload.file_name(batch.mark), content, "application/jsonl")}
            form = httpx.Request("POST", self._base, data=dict(upload.form), files=file)
            kind = form.headers["content-type"]
            try:
                answer = await self._call("POST", upload.leaf, await form.aread(), kind=kind)
                made = upload.creation(upload.decode(answer), batch.mark)
            except _CallError as error:
                error.doubtful = False  # a file alone is no batch
                raise
            except BatchError as error:
                raise _CallError(_broken(error), error, doubtful=False) from None
            content = dump(made).encode()
        try:
            return self._interface.decode_state(await self._call("POST", leaf, content))
        except BatchError as error:
            raise _CallError(_broken(error), error, doubtful=True) from None

    async def _look_for(self, batch: _Batch) -> BatchState | None:
        """Look for a batch that was perhaps submitted; lists may show a new one late.

        Raises:
            _CallError, BatchError: nobody can tell, and the batch stays in doubt.
        """
        pauses = (1.0, 2.0, 4.0, SETTLE_SECONDS - 7.0)
        try:
            for pause in (0.0, *pauses):
                await self._pace.sleep(pause)
                if (found := await self._find(batch)) is not None:
                    return found
        except _CallError as error:
            if error.status in _NOT_OFFERED:
                why = f"its list, or its results, cannot be read: {error.failure.message}"
                raise _doubt(why) from None
            error.doubtful = True  # it is about the question
            raise
        return None

    async def _find(self, batch: _Batch) -> BatchState | None:
        """The batch in the list of the provider; one in doubt is waited for."""
        known = {one.id for one in self._batches.values()} - {None}
        interface, cursor = self._interface, None
        seen: set[str | None] = set()
        while cursor not in seen:
            seen.add(cursor)
            query = interface.list_query(cursor)
            page = await self._get(interface.leaf, interface.decode_list, query)
            states, cursor = page
            for state in states:
                if state.id in known:
                    continue
                likeness = interface.match(state, batch.mark, batch.size, batch.began)
                if likeness == "yes" or (
                    likeness == "maybe" and await self._is_ours(batch, state.id)
                ):
                    return state
            if cursor is None:
                break
        return None

    async def _is_ours(self, batch: _Batch, id: str) -> bool:
        """Tell by the names in its results whether a batch is this one, once it has ended."""
        names = [batch.mark.custom_id(number) for number in range(batch.size)]
        for look in range(_LOOKS):
            if look:
                await self._pace.sleep(FIRST_GAP * 2 ** (look - 1))
            state = await self._until_ended(batch, id)
            has_others = False
            for place in state.results:
                has_some = await self._has_some(place, id, names)
                if has_some:
                    return True
                has_others = has_others or has_some is False
            if has_others or state.status in _INCOMPLETE:
                return False  # else nothing of it was answered
        raise _doubt(f"`{id}` may be the one, and has no results")

    async def _has_some(self, place: str, id: str, names: Sequence[str]) -> bool | None:
        """Tell whether a file has a result of these; none if it has no result at all."""
        for attempt in count(1):
            reader = ResultsReader(self._interface, names)
            try:
                async with self._open_results(place, id) as chunks:
                    async for chunk in chunks:
                        if reader.feed(chunk):
                            return True
                if reader.end():
                    return True
            except (_CallError, BatchError) as error:
                await self._wait_or_raise(error, attempt)
            else:
                return False if reader.foreign else None
        raise AssertionError("it counts without end")

    def _note_submitted(self, batch: _Batch, state: BatchState) -> None:
        """Write the id of a batch down; nothing that follows can lose it."""
        batch.id, number, place = state.id, batch.mark.ordinal, self._place
        for waiting in () if batch.may_repeat else batch.waiting.values():
            waiting.body = b""
        ends = None if state.ends_at is None else rfc3339(state.ends_at)
        place.emit(BatchSubmitted(number, place.model, batch.size, state.id, ends))
        by = "" if ends is None else f"; it ends by {ends[:16].replace('T', ' ')} UTC"
        origin = origin_of(self._entry.base_url)
        said = f"{origin} has {counted(batch.size, 'request')} as batch `{state.id}`{by}"
        place.emit(Notice(NOWHERE, "info", "batch_submitted", said))
        if not state.is_ended:
            batch.tell_held()

    # Collecting.

    async def _go_on(self, batch: _Batch) -> None:
        """Collect the answers of a batch of an earlier part of the run, once requests wait."""
        try:
            if batch.id is None and not await self._recover(batch):
                return
        except Exception as error:  # ruff: ignore[blind-except] - raised again where it is waited for
            batch.is_followed = False
            self._fail_all(batch, error)
            return
        await self._follow(batch)

    async def _recover(self, batch: _Batch) -> bool:
        """Look for a batch whose id was lost; false if its requests are submitted again."""
        try:
            state = await self._look_for(batch)
        except (_CallError, BatchError) as error:
            if not self._repeats(batch, error):
                raise
            return False
        if state is None:
            self._submit_again(batch)
            return False
        self._note_submitted(batch, state)
        return True

    def _submit_again(self, batch: _Batch) -> None:
        """Nobody has this batch: its requests are new ones."""
        self._forget(batch)
        waiting, batch.waiting = batch.waiting, {}
        for one in waiting.values():
            one.of = None
            self._add(one)

    def _forget(self, batch: _Batch) -> None:
        """Expect nothing more of a batch."""
        if self._batches.pop(batch.mark.ordinal, None) is None:
            return
        self._place.emit(BatchCollected(batch.mark.ordinal))
        for digest, known in self._known.items():
            self._known[digest] = deque(one for one in known if one[0] is not batch)

    def _repeats(self, batch: _Batch, error: Exception) -> bool:
        """Submit the requests of a batch that is not to be had again, if somebody allows that."""
        if not batch.may_repeat:
            return False
        said = f"{counted(batch.size, 'request')} may be paid again, as `--force` allows: {error}"
        self._place.emit(Notice(NOWHERE, "warning", "batch_repeated", said))
        self._submit_again(batch)
        return True

    async def _follow(self, batch: _Batch) -> None:
        """Hand out the answers, until no request waits for one of this batch."""
        assert batch.id is not None, "it was submitted"
        batch.is_followed = True
        try:
            while batch.waiting:
                state = await self._until_ended(batch, batch.id)
                # Requests of a resumed run come one after the other.
                await self._pace.sleep(0.0 if batch.held else IDLE_SECONDS)
                await self._hand_out(batch, state)
        except Exception as error:  # ruff: ignore[blind-except] - raised again where it is waited for
            known = self._in_words(batch, error)
            if known is error or not self._repeats(batch, known):
                self._fail_all(batch, known)
        finally:
            batch.is_followed = False

    def _in_words(self, batch: _Batch, error: Exception) -> Exception:
        """Say what became of a batch that its provider does not have."""
        status = error.status if isinstance(error, _CallError) else None
        if status == _GONE:
            self._forget(batch)
            return BatchError(f"the batch `{batch.id}` is gone at its provider", retryable=False)
        if status == _ABSENT:
            # Another account, or another place, has none of our batches either.
            said = (
                f"the provider says that it has no batch `{batch.id}`: are key and address those it"
                f" was submitted with? {_OR_FORCE}"
            )
            return _DoubtError(said, retryable=False)
        return error

    async def _until_ended(self, batch: _Batch, id: str) -> BatchState:
        began = asyncio.get_running_loop().time()
        while True:
            if batch.held:
                passed = asyncio.get_running_loop().time() - began
                await self._pace.sleep(min(LONGEST_GAP, FIRST_GAP + passed / _SHARE))
            leaf = self._interface.state_leaf(id)
            state = await self._get(leaf, self._interface.decode_state)
            if state.is_ended:
                return state
            batch.tell_held()

    async def _hand_out(self, batch: _Batch, state: BatchState) -> None:
        numbers = {batch.mark.custom_id(number): number for number in batch.waiting}
        reader = ResultsReader(self._interface, numbers)

        def hand(result: BatchResult) -> None:
            if batch.answer(numbers[result.custom_id], _response_of(result)):
                self._untaken += 1

        for look in range(_LOOKS):
            if look:
                # A file may break off between two rows, and be named only seconds after the end.
                await self._pace.sleep(FIRST_GAP * 2 ** (look - 1))
                state = await self._until_ended(batch, state.id)
            for place in state.results:
                await self._read(place, state.id, reader, hand)
            if not reader.missing or state.status in _INCOMPLETE:
                break
        for custom_id in tuple(reader.missing):
            hand(self._interface.missing_result(custom_id, state))

    async def _read(
        self, place: str, id: str, reader: ResultsReader, hand: Callable[[BatchResult], None]
    ) -> None:
        """Read a file of results; what was handed out before it broke off is not read again."""
        for attempt in count(1):
            reader.begin()
            try:
                async with self._open_results(place, id) as chunks:
                    async for chunk in chunks:
                        await self._pass_on(reader.feed(chunk), hand)
                await self._pass_on(reader.end(), hand)
            except (_CallError, BatchError) as error:
                await self._wait_or_raise(error, attempt)
            else:
                return

    async def _pass_on(
        self, results: Sequence[BatchResult], hand: Callable[[BatchResult], None]
    ) -> None:
        """Hand answers out no faster than they are taken: not all are in memory at once."""
        for result in results:
            hand(result)
            await checkpoint()
            while self._untaken >= _MOST_UNTAKEN:
                self._taken.clear()
                await self._taken.wait()

    def _fail_all(self, batch: _Batch, error: Exception) -> None:
        """Fail the requests of a batch; they may be sent again, and are not submitted again."""
        waiting, batch.waiting = batch.waiting, {}
        batch.is_followed = False
        is_held = batch.mark.ordinal in self._batches
        if is_held and self._entry.fallback and isinstance(error, _CallError):
            said = "a batch has, or may have, the request, so no other model is asked"
            error = _DoubtError(f"{error}: {said}; {_OR_FORCE}", retryable=False)
        for number, one in waiting.items():
            if is_held:
                self._keep((batch, number), one.digest)
            if one.answer.done():
                continue
            cause = error.cause if isinstance(error, _CallError) else error
            response = _refusal_of(cause)
            if response is None:
                one.answer.set_exception(cause)
            else:
                one.answer.set_result(response)

    def _without_batches(self, error: _CallError) -> _CallError:
        """The same error, with a word where the endpoint seems to have no batches."""
        if error.status not in _NOT_OFFERED or not isinstance(error.said, _Refusal):
            return error
        where = f"no batches at {self._url(self._interface.leaf)}"
        message = f"{where}; `--delivery single` sends each request alone: "
        message += shorten(error.said.body.decode("utf-8", "replace"), 200)
        body = dump({"type": "error", "error": {"type": "no_batches", "message": message}})
        said = _Refusal(error.said.status, _JSON["content-type"], body.encode())
        return _CallError(error.failure, said, doubtful=error.doubtful)

    # Calls of the interface.

    async def _get(
        self,
        leaf: str,
        decode: Callable[[JsonValue], Decoded],
        query: Mapping[str, str] | None = None,
    ) -> Decoded:
        """The answer to a question, asked patiently: what it is about is paid for."""
        for attempt in count(1):
            try:
                return decode(await self._call("GET", leaf, query=query))
            except (_CallError, BatchError) as error:
                await self._wait_or_raise(error, attempt, may_appear=query is None)
        raise AssertionError("it counts without end")

    async def _wait_or_raise(
        self, error: "_CallError | BatchError", attempt: int, *, may_appear: bool = True
    ) -> None:
        is_absent = isinstance(error, _CallError) and error.status == _ABSENT
        if may_appear and is_absent and attempt < _LOOKS:
            await self._pace.sleep(FIRST_GAP * 2 ** (attempt - 1))  # what is new may appear late
            return
        retries = error.failure.advice.retry if isinstance(error, _CallError) else error.retryable
        if not retries or attempt >= _PATIENCE * self._entry.retry.attempts:
            raise error
        await self._pace.sleep(self._delay(error, attempt))

    def _delay(self, error: "_CallError | BatchError", attempt: int) -> float:
        advice = error.failure.advice if isinstance(error, _CallError) else BROKEN
        return delay_before(attempt, advice, self._entry.retry, self._pace.chance())

    async def _call(
        self,
        method: str,
        leaf: str,
        content: bytes = b"",
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> JsonValue:
        """The JSON that the interface answers.

        Raises:
            _CallError: it answers with an error, or not at all.
            BatchError: the answer is no JSON.
        """
        url = self._url(leaf).copy_merge_params(dict(query or {}))
        async with self._exchange(method, url, content, kind) as response:
            data = bytearray()
            async for chunk in body_of(response):
                data += chunk
                if len(data) > CAP:
                    raise BatchError(f"an answer is larger than {CAP >> 20} MiB", retryable=False)
        try:
            value: JsonValue = json.loads(data)
        except ValueError:
            raise BatchError("an answer about a batch is no JSON") from None
        return value

    @asynccontextmanager
    async def _open_results(self, place: str, id: str) -> AsyncGenerator[httpx.AsyncByteStream]:
        """A file of results: a path below the address, or an address that the provider states.

        One of another origin is not asked for them: the provider itself is.

        Raises:
            _CallError: it cannot be read.
        """
        own = self._interface.results_leaf
        url = httpx.URL(place) if "://" in place else self._url(place)
        if own is not None and not self._is_own(url):
            url = self._url(own(id))
        async with self._exchange("GET", url) as response:
            yield body_of(response)

    def _url(self, leaf: str) -> httpx.URL:
        return self._base.copy_with(path=self._wire.path(self._base.path, leaf))

    def _is_own(self, url: httpx.URL) -> bool:
        base = self._base
        return (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: httpx.URL, content: bytes = b"", kind: str = "application/json"
    ) -> AsyncGenerator[httpx.Response]:
        """A response with a status of success.

        Each has a connection of its own: on one that is kept a request may be sent twice.

        Raises:
            _CallError: there is no such response.
        """
        key, timeout = TurnKey(self._key), self._entry.timeout
        read = timeout.turn if content else timeout.first_token
        limits = httpx.Timeout(connect=timeout.connect, read=read, write=read, pool=None).as_dict()
        while True:
            headers = {**(await key.headers() or self._headers), "content-type": kind}
            request = httpx.Request(
                method, url, headers=headers, content=content, extensions={"timeout": limits}
            )
            client = open_client(self._entry)
            try:
                response = await client.handle_async_request(request)
                status = response.status_code
                if status in _SUCCESS:
                    yield response
                    return
                body = await read_start(response)
            except httpx.HTTPError as error:
                is_doubtful = not isinstance(error, _UNSENT)
                raise _CallError(
                    in_words(error, self._entry), error, doubtful=is_doubtful
                ) from None
            finally:
                await client.aclose()
            now = self._pace.clock.now()
            advice = judge_status(status, response.headers, body.decode("utf-8", "replace"), now)
            failure = AttemptError(f"HTTP {status}", advice)
            if not await key.replace(failure, None):
                refusal = _Refusal(status, response.headers.get("content-type", ""), body)
                raise _CallError(failure, refusal, doubtful=status >= _SERVER_ERROR)


class _Handed(httpx.AsyncByteStream):
    """The body of an answer; tells when it was taken."""

    def __init__(self, body: httpx.AsyncByteStream, note_taken: Callable[[], None]) -> None:
        self._body = body
        self._note_taken: Callable[[], None] | None = note_taken

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._body)

    async def aclose(self) -> None:
        """Count the answer as taken, once."""
        note, self._note_taken = self._note_taken, None
        if note is not None:
            note()


class _BatchClient(httpx.AsyncBaseTransport):
    """A connection, to everything above; what it is asked is answered by a batch."""

    def __init__(self, delivery: BatchDelivery) -> None:
        self._delivery = delivery

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._delivery.ask(request)


def _parse_request(content: bytes) -> _Waiting:
    """Parse the content of a request, which waits for its answer from now on."""
    body = BatchRequest("_", json.loads(content)).checked_body()
    text = dump(body).encode("utf-8", "surrogatepass")
    digest = sha256(text).hexdigest()[:_DIGITS]
    return _Waiting(text, digest, asyncio.get_running_loop().create_future())


async def _until_answered(waiting: _Waiting, park: Park | None) -> None:
    """Wait for an answer, or by `park` as soon as the run need not wait for it."""
    if park is None or waiting.moved is None:
        return
    await waiting.moved.wait()
    if not waiting.answer.done():
        answered = asyncio.Event()
        waiting.answer.add_done_callback(lambda _: answered.set())
        await park(answered)


_OR_FORCE = "`--resume --retry-failed` asks again; with `--force`, its requests may be paid again"


class _DoubtError(BatchError):
    """Requests are perhaps paid for; no other model takes their place, as for a busy endpoint."""


def _doubt(why: str) -> _DoubtError:
    said = f"nobody knows whether a batch was made, and {why}; {_OR_FORCE}"
    return _DoubtError(said, retryable=False)


def _broken(error: BatchError) -> AttemptError:
    return AttemptError(error.message, BROKEN)


def _response_of(result: BatchResult) -> httpx.Response:
    """The response that the endpoint would have sent."""
    # As ASCII: half of a character, which models write, is legal in JSON alone.
    return httpx.Response(result.status, headers=_JSON, content=json.dumps(result.body).encode())


def _refusal_of(error: Exception) -> httpx.Response | None:
    """The response to each request of a batch that failed; it has been retried here already."""
    final = {"x-should-retry": "false"}
    if isinstance(error, _CallError) and isinstance(error.said, _Refusal):
        said = error.said
        headers = final | {"content-type": said.kind}
        return httpx.Response(said.status, headers=headers, content=said.body)
    if isinstance(error, BatchError):
        body = {"type": "error", "error": {"type": "api_error", "message": error.message}}
        status = _CONFLICT if isinstance(error, _DoubtError) else UNREADABLE
        return httpx.Response(status, headers=_JSON | final, content=dump(body).encode())
    return None


@asynccontextmanager
async def open_delivery(
    entry: ModelEntry,
    key: str | None,
    secret: RenewedSecret | None,
    place: DeliveryPlace,
    pace: RetryTiming,
) -> AsyncGenerator[BatchDelivery]:
    """The batches of a model, for a run; `key` or `secret` is that of the model."""
    made = None if secret is None else EndpointKey(entry, secret)
    async with background() as tasks:
        delivery = BatchDelivery(entry, made, headers_of(entry, key), place, pace, tasks)
        yield delivery  # ruff: ignore[fallible-context-manager] - if a run is cut off, answers may be lost
        delivery.tell_collected()


def waits_for_days(entry: ModelEntry) -> ModelEntry:
    """The entry without deadlines of an answer: those of the provider hold."""
    connect = entry.timeout.connect
    return replace(entry, timeout=ModelTimeout(connect, _FOREVER, _FOREVER, _FOREVER))
