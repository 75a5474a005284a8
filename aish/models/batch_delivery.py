"""Requests to a model by batches of its provider: to everything above, a slow endpoint.

Requests are collected and submitted together; the batch is asked for until it has ended, and each
request gets its answer as if it had been sent alone. Recording, retries and limits are above this.
What is to be submitted waits in a file.

Nothing is submitted twice. What is to be submitted is in the journal before that, and the id of the
batch after it; a batch without an id is looked for before its requests are sent again. A request
that a resumed run sends again is known by its digest.
"""

import asyncio
import json
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import field, replace
from hashlib import sha256
from itertools import count

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
from aish.core.phrases import counted
from aish.core.protocols import Emit, Hold, Park, PendingAnswer, PendingError
from aish.journal.batches import RecordedBatch
from aish.models.batch_calls import (
    FIRST_GAP,
    INCOMPLETE,
    JSON,
    LOOKS,
    OR_FORCE,
    BatchCalls,
    CallError,
    Content,
    DoubtError,
    refusal_of,
)
from aish.models.batch_search import SETTLE_PAUSES, LostBatch, look_for
from aish.models.endpoint_key import EndpointKey
from aish.models.headers import headers_of
from aish.models.retry import RetryTiming, origin_of
from aish.models.transport import background, body_of
from aish.net.renewed_secret import RenewedSecret
from aish.system.spool import Spool, Spooled
from aish.wire.batches.types import (
    BatchError,
    BatchMark,
    BatchRequest,
    BatchResult,
    BatchState,
    ResultsReader,
    plain_body,
)

IDLE_SECONDS = 2.0
"""A batch is submitted when so long no other request has come."""
_LOOKS_IDLE = 10
"""Looks for another request in that time. What is late is looked at so often all the same, so that
a process that is behind submits no half of a round."""
_DIGITS = 24
_MARGIN = 256
_FOREVER = 30 * 86_400.0
_MOST_UNTAKEN = 64
"""Answers that were handed out and not taken yet."""
_ABSENT, _GONE = 404, 410


class _Waiting:
    """A request that waits for its answer, in the batch `of` under its number.

    `body` is empty once it has been submitted for good. `moved` is set when the run need not wait
    for the answer, or when it has come. One that no task waits for is a `PendingAnswer`.
    """

    __slots__ = (
        "answer", "attempts", "body", "delivery", "digest", "hold", "is_counted", "moved", "of",
        "size",
    )  # fmt: skip

    def __init__(self, delivery: "BatchDelivery", body: Spooled, size: int, digest: str) -> None:
        self.delivery = delivery
        self.body = body
        self.size = size
        self.digest = digest
        self.answer: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()
        self.of: tuple[_Batch, int] | None = None
        self.moved: asyncio.Event | None = None
        self.is_counted = False
        self.hold: Hold | None = None
        self.attempts = (0, 0, 0)

    def on_answer(self, call: Callable[[], None]) -> None:
        self.answer.add_done_callback(lambda _: call())

    def drop(self) -> None:
        self.delivery.leave(self)
        if self.hold is not None:
            self.hold.close(begun=False)


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
    """The model's name in a run, the id of the run, and all of its batches.

    `note_idle` is told how many more or fewer tasks wait for one.
    """

    model: str
    run: str
    batches: list[RecordedBatch]
    emit: Emit
    note_idle: Callable[[int], None] = lambda _: None


class BatchDelivery:
    """The batches of one model. `make_client` opens what takes the place of a connection."""

    def __init__(
        self, entry: ModelEntry, calls: BatchCalls, place: DeliveryPlace, tasks: TaskGroup
    ) -> None:
        self._entry = entry
        self._calls = calls
        self._place = place
        self._pace = calls.pace
        self._tasks = tasks
        self._interface = calls.interface
        self._arrived = asyncio.Event()
        self._arrivals = 0
        self._pending: deque[_Waiting] = deque()
        self._bytes = 0
        self._spool = Spool()
        self._untaken = 0
        self._taken = asyncio.Event()
        self._batches: dict[int, _Batch] = {}
        self._known: dict[str, list[tuple[_Batch, int]]] = {}
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

    def close(self) -> None:
        self._spool.close()

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request, hours later.

        Raises:
            PendingError: it is not there yet, and nobody waits for it.
        """
        pending: PendingAnswer | None = request.extensions.get("pending")
        if isinstance(pending, _Waiting):
            return await self._answer_to(pending, None)
        waiting = self._parse_request(await request.aread())
        park: Park | None = request.extensions.get("park")
        if park is not None:
            waiting.moved = moved = asyncio.Event()
            waiting.answer.add_done_callback(lambda _: moved.set())
        self._add(waiting)
        if request.extensions.get("suspends"):
            raise PendingError(waiting)
        self._place.note_idle(1)
        try:
            return await self._answer_to(waiting, park)
        finally:
            self._place.note_idle(-1)

    async def _answer_to(self, waiting: _Waiting, park: Park | None) -> httpx.Response:
        try:
            await _until_answered(waiting, park)
            response = await waiting.answer
        except BaseException:
            self.leave(waiting)
            raise
        self._free(waiting)
        if waiting.is_counted:
            # A new one: that with its content at hand counts as closed already.
            handed, status = _Handed(body_of(response), self._note_taken), response.status_code
            response = httpx.Response(status, headers=response.headers, stream=handed)
        return response

    def leave(self, waiting: _Waiting) -> None:
        """Nobody waits any more; the same request gets the answer, if it is sent again."""
        if waiting.is_counted:
            self._note_taken()
        elif waiting.of is not None and not waiting.answer.done():
            batch, number = waiting.of
            batch.waiting.pop(number, None)
            self._keep(waiting.of, waiting.digest)
        self._free(waiting)
        if not waiting.answer.cancel() and not waiting.answer.cancelled():
            waiting.answer.exception()  # it counts as seen

    def _note_taken(self) -> None:
        self._untaken -= 1
        self._taken.set()

    def _keep(self, of: tuple[_Batch, int], digest: str) -> None:
        self._known.setdefault(digest, []).append(of)

    def _free(self, waiting: _Waiting) -> None:
        """The body of a request is not needed any more."""
        self._spool.free(waiting.body)
        waiting.body = b""

    def _parse_request(self, content: bytes) -> _Waiting:
        """Parse the content of a request, which waits for its answer from now on."""
        body = plain_body(content)
        digest = sha256(body).hexdigest()[:_DIGITS]
        return _Waiting(self, self._spool.put(body), len(body), digest)

    def _add(self, waiting: _Waiting) -> None:
        self._arrivals += 1
        if known := self._known.get(waiting.digest):
            waiting.of = batch, number = known.pop(0)
            if not known:
                del self._known[waiting.digest]
            batch.waiting[number] = waiting
            if batch.id is not None and not batch.may_repeat:
                self._free(waiting)
            if batch.held and waiting.moved is not None:
                waiting.moved.set()
            if not batch.is_followed:
                batch.is_followed = True
                self._tasks.start_soon(self._go_on, batch)
            return
        self._pending.append(waiting)
        self._bytes += waiting.size + _MARGIN
        self._arrived.set()

    async def _collect(self) -> None:
        """Submit what has come, whenever no more comes or a batch is full."""
        while True:
            await self._arrived.wait()
            await self._until_idle()
            self._arrived.clear()
            if requests := self._take():
                self._tasks.start_soon(self._deliver, requests)
            if self._pending:
                self._arrived.set()

    async def _until_idle(self) -> None:
        """Wait until no other request comes, or a batch is full."""
        looks = 0
        while not self._is_full() and looks < _LOOKS_IDLE:
            arrivals = self._arrivals
            await self._pace.sleep(IDLE_SECONDS / _LOOKS_IDLE)
            looks = looks + 1 if arrivals == self._arrivals else 0

    def _is_full(self) -> bool:
        bounds = self._interface
        return len(self._pending) >= bounds.most_requests or self._bytes >= bounds.most_bytes

    def _take(self) -> list[_Waiting]:
        """As many of the requests as a batch may have; those that nobody waits for are dropped."""
        taken: list[_Waiting] = []
        size = 0
        while self._pending and len(taken) < self._interface.most_requests:
            more = self._pending[0].size + _MARGIN
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
        size = len(requests)
        # What the run has submitted itself is in `_batches`.
        place.batches.append(RecordedBatch(number, place.model, size, (), began))
        batch = _Batch(BatchMark(place.run, number), size, began, {*range(size)})
        batch.is_followed = True
        bodies: list[tuple[Spooled, int]] = []
        for index, waiting in enumerate(requests):
            waiting.of = batch, index
            batch.waiting[index] = waiting
            bodies.append((waiting.body, waiting.size))
            waiting.body = b""
        # Only the batch keeps them, and only until they are answered.
        requests.clear()
        try:
            words = " ".join(waiting.digest for waiting in batch.waiting.values())
            place.emit(BatchPlanned(number, place.model, size, words))
            self._batches[number] = batch
            self._note_submitted(batch, await self._submit(batch, bodies))
        except CallError as error:
            if not error.doubtful:
                self._forget(batch)
            self._fail_all(batch, self._calls.without_batches(error))
        except Exception as error:  # ruff: ignore[blind-except] - raised again where it is waited for
            self._fail_all(batch, error)
        finally:
            for body, _ in bodies:
                self._spool.free(body)
            bodies.clear()
        if batch.id is not None:
            await self._follow(batch)

    def _content(self, mark: BatchMark, bodies: Sequence[tuple[Spooled, int]]) -> Content:
        """All requests of a batch as they are submitted, read from their file."""
        interface = self._interface

        def entry(number: int, body: bytes) -> bytes:
            return interface.entry(BatchRequest(mark.custom_id(number), body))

        def pieces() -> Iterator[bytes]:
            for number, (body, _) in enumerate(bodies):
                yield interface.separator if number else interface.opening
                yield entry(number, self._spool.read(body))
            yield interface.ending

        size = sum(len(entry(number, b"")) + size for number, (_, size) in enumerate(bodies))
        size += len(interface.opening) + len(interface.ending)
        return Content(size + len(interface.separator) * (len(bodies) - 1), pieces)

    async def _submit(self, batch: _Batch, bodies: Sequence[tuple[Spooled, int]]) -> BatchState:
        """Submit a batch; one that may have been created already is looked for first.

        Raises:
            CallError: the provider does not take it.
        """
        content = self._content(batch.mark, bodies)
        for attempt in count(1):
            try:
                return await self._calls.create(content, batch.mark)
            except CallError as error:
                delay = self._calls.delay(error, attempt)
                if error.doubtful and (found := await self._look_for(batch)) is not None:
                    return found
                if not self._calls.may_retry(error, attempt):
                    raise
                if not error.doubtful:
                    await self._pace.sleep(delay)
        raise AssertionError("it counts without end")

    async def _look_for(self, batch: _Batch) -> BatchState | None:
        whole, origin = round(sum(SETTLE_PAUSES)), origin_of(self._entry.base_url)
        said = f"it is unknown whether a batch of {counted(batch.size, 'request')} was created;"
        said += f" the list of {origin} is searched for {whole} s"
        self._place.emit(Notice(NOWHERE, "info", "batch_searched", said))
        known = {one.id for one in self._batches.values()}
        lost = LostBatch(batch.mark, batch.size, batch.began, known, batch.tell_held)
        return await look_for(lost, self._calls)

    def _note_submitted(self, batch: _Batch, state: BatchState) -> None:
        """Write the id of a batch down; nothing that follows can lose it."""
        batch.id, number, place = state.id, batch.mark.ordinal, self._place
        for waiting in () if batch.may_repeat else batch.waiting.values():
            self._free(waiting)
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
        except (CallError, BatchError) as error:
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
        for digest, known in tuple(self._known.items()):
            known[:] = [one for one in known if one[0] is not batch]
            if not known:
                del self._known[digest]

    def _repeats(self, batch: _Batch, error: Exception) -> bool:
        """Submit the requests of a batch that is not to be had again, if somebody allows that."""
        if not batch.may_repeat:
            return False
        why = str(error).removesuffix(OR_FORCE).rstrip("; ")
        said = f"{counted(batch.size, 'request')} may be paid again, as `--force` allows: {why}"
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
                if not batch.held:
                    await self._until_idle()  # requests of a resumed run come one by one
                await self._hand_out(batch, state)
        except Exception as error:  # ruff: ignore[blind-except] - raised again where it is waited for
            known = self._in_words(batch, error)
            if known is error or not self._repeats(batch, known):
                self._fail_all(batch, known)
        finally:
            batch.is_followed = False

    def _in_words(self, batch: _Batch, error: Exception) -> Exception:
        """Say what became of a batch that its provider does not have."""
        status = error.status if isinstance(error, CallError) else None
        if status == _GONE:
            self._forget(batch)
            return BatchError(f"the batch `{batch.id}` is gone at its provider", retryable=False)
        if status == _ABSENT:
            # Another account, or another place, has none of our batches either.
            said = (
                f"the provider says that it has no batch `{batch.id}`: are key and address those it"
                f" was submitted with? {OR_FORCE}"
            )
            return DoubtError(said, retryable=False)
        return error

    async def _until_ended(self, batch: _Batch, id: str) -> BatchState:
        def tell_held() -> None:
            if not batch.held:
                origin = origin_of(self._entry.base_url)
                said = f"{origin} works on batch `{id}`, which is waited for"
                self._place.emit(Notice(NOWHERE, "info", "batch_awaited", said))
            batch.tell_held()

        return await self._calls.until_ended(id, tell_held, is_held=batch.held)

    async def _hand_out(self, batch: _Batch, state: BatchState) -> None:
        numbers = {batch.mark.custom_id(number): number for number in batch.waiting}
        reader = ResultsReader(self._interface, numbers)

        def hand(result: BatchResult) -> None:
            if batch.answer(numbers[result.custom_id], _response_of(result)):
                self._untaken += 1

        for look in range(LOOKS):
            if look:
                # A file may break off between two rows, and be named only seconds after the end.
                await self._pace.sleep(FIRST_GAP * 2 ** (look - 1))
                state = await self._until_ended(batch, state.id)
            for place in state.results:
                async with aclosing(self._calls.read(place, state.id, reader)) as pieces:
                    async for results in pieces:
                        await self._pass_on(results, hand)
            if not reader.missing or state.status in INCOMPLETE:
                break
        missing = (self._interface.missing_result(name, state) for name in tuple(reader.missing))
        await self._pass_on(missing, hand)

    async def _pass_on(
        self, results: Iterable[BatchResult], hand: Callable[[BatchResult], None]
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
        if is_held and self._entry.fallback and isinstance(error, CallError):
            said = "a batch has, or may have, the request, so no other model is asked"
            error = DoubtError(f"{error}: {said}; {OR_FORCE}", retryable=False)
        for number, one in waiting.items():
            if is_held:
                self._keep((batch, number), one.digest)
            if one.answer.done():
                continue
            cause = error.cause if isinstance(error, CallError) else error
            response = refusal_of(cause)
            if response is None:
                one.answer.set_exception(cause)
            else:
                one.answer.set_result(response)


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


async def _until_answered(waiting: _Waiting, park: Park | None) -> None:
    """Wait for an answer, or by `park` as soon as the run need not wait for it."""
    if park is None or waiting.moved is None:
        return
    await waiting.moved.wait()
    if not waiting.answer.done():
        answered = asyncio.Event()
        waiting.answer.add_done_callback(lambda _: answered.set())
        await park(answered)


def _response_of(result: BatchResult) -> httpx.Response:
    """The response that the endpoint would have sent."""
    # As ASCII: half of a character, which models write, is legal in JSON alone.
    return httpx.Response(result.status, headers=JSON, content=json.dumps(result.body).encode())


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
        calls = BatchCalls(entry, made, headers_of(entry, key), pace)
        delivery = BatchDelivery(entry, calls, place, tasks)
        with closing(delivery):
            yield delivery  # ruff: ignore[fallible-context-manager] - if a run is cut off, answers may be lost
            delivery.tell_collected()


def waits_for_days(entry: ModelEntry) -> ModelEntry:
    """The entry without deadlines of an answer: those of the provider hold."""
    connect = entry.timeout.connect
    return replace(entry, timeout=ModelTimeout(connect, _FOREVER, _FOREVER, _FOREVER))
