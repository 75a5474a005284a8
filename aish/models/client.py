"""A model behind an endpoint: encode, send, decode, and retry where that may help.

A turn is tried until an answer, a limit or its deadline; an entry's dialect holds the
endpoint's peculiarities and its name for the model.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from aish.config.model import BATCH, ModelEntry
from aish.core.errors import AishError
from aish.core.frozen import replace
from aish.core.messages import Delta, Finish, Retrying, Served, StreamNotice, Withdrawn
from aish.core.phrases import duration
from aish.core.protocols import Hold, Meter, ModelRequest, PendingAnswer, PendingError
from aish.core.tools import MediaKinds
from aish.core.wires import LONG_CACHES
from aish.models import smollm2
from aish.models.dialect_choice import dialect_of, wire_of
from aish.models.endpoint_key import EndpointKey, TurnKey
from aish.models.headers import check_base_url, headers_of
from aish.models.retry import (
    CROWDED,
    EMPTY_HINT,
    LONGEST_JITTER,
    PAGE_HINT,
    UNFINISHED_HINT,
    Advice,
    AttemptError,
    RetryTiming,
    delay_before,
    error_of_malformed,
    hint_in_band,
    is_malformed,
    is_page,
    judge_code,
    longest_wait,
    origin_of,
    refuses_cache_marks,
    refuses_own_thoughts,
    refuses_schema,
    refuses_schema_beside_tools,
    refuses_usage,
)
from aish.models.throttle import Slot, Throttles
from aish.models.transport import MakeClient, ModelTransport, background, open_client
from aish.net.renewed_secret import RenewedSecret
from aish.system.secrets.secrets import Secrets
from aish.wire.answer_stream import AnswerStream
from aish.wire.dialect import load_decoder, load_encoder, sets_marks, without_marks
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    MalformedToolCallError,
    StreamError,
    UnfinishedStreamError,
)
from aish.wire.in_band import NOT_AN_ANSWER

if TYPE_CHECKING:
    from aish.models.cache_watch import CacheWatch

SPARED = 4
"""How many refusals for load alone are forgiven for each try that the file allows."""

Got = TypeVar("Got")
CheckServed = Callable[[str, Served | None], AishError | None]
"""Compares what answered under an alias with what the lock pins; the error if that differs."""


class Turn:
    """State kept between the attempts of one turn; `ends` is in the loop's time."""

    __slots__ = (
        "_answers",
        "_loop",
        "_spared",
        "body",
        "ends",
        "failures",
        "key",
        "pending",
        "request",
        "tries",
    )

    def __init__(
        self,
        request: ModelRequest,
        body: bytes,
        entry: ModelEntry,
        answers: int = 0,
        key: EndpointKey | None = None,
    ) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._spared = SPARED * entry.retry.attempts
        self.request = request
        self.body = body
        self.ends = self._loop.time() + entry.timeout.turn
        self.key = TurnKey(key)
        self.tries = 0
        self.failures = 0
        self.pending = request.pending
        """An answer to the body that was sent before, and the reservation for it."""
        if self.pending is not None:
            self.tries, self.failures, self._spared = self.pending.attempts

    def waits(self) -> Mapping[str, object]:
        """The way in which the answer to the next attempt is waited for, as in its request."""
        request, pending, self.pending = self.request, self.pending, None
        return {"park": request.park, "suspends": request.suspends, "pending": pending}

    def suspend(self, pending: PendingAnswer, hold: Hold | None) -> None:
        """Keep with an answer what is needed to go on with it."""
        pending.hold = hold
        pending.attempts = (self.tries - 1, self.failures, self._spared)

    async def await_untimed(self, wanted: Awaitable[Got]) -> Got:
        """Await something whose time does not count for the turn."""
        since = self._loop.time()
        got = await wanted
        self.ends += self._loop.time() - since
        return got

    def is_too_late(self, delay: float) -> bool:
        """Return true if a deadline, the step's or the turn's, would pass while waiting."""
        ends = min(self.ends, anyio.current_effective_deadline())
        return self._loop.time() + delay >= ends

    def count_failure(self, advice: Advice, *, beside_others: bool, answers: int = 0) -> None:
        """Count a failed attempt; `answers` is how many the endpoint has given, to any request.

        A rejection while other requests are in flight means that the endpoint is busy, not that it
        is broken: up to a limit, such attempts do not count. One that says when to ask again never
        counts while the endpoint answers others: then only time is a limit.
        """
        answered, self._answers = answers > self._answers, answers
        if advice.wait and answered:
            return
        if advice.cools and beside_others and self._spared:
            self._spared -= 1
        else:
            self.failures += 1


_NOTICED_SECONDS = 1.0
_SIGNED = b'"signature":'
_ANEW = " anew"
_ASKS_USAGE = b'"stream_options":{"include_usage":true}'
_NOT_BOTH = "no schema together with tools; retrying without it"


class ChatModel:
    """`core.protocols.Model` over an endpoint, on the wire of its entry."""

    def __init__(
        self,
        entry: ModelEntry,
        transport: ModelTransport,
        *,
        secrets: Secrets,
        pace: RetryTiming,
        throttles: Throttles,
        meter: Meter | None = None,
        key: EndpointKey | None = None,
    ) -> None:
        self.check_served: CheckServed | None = None
        """Asked about each answer."""
        self._entry = entry
        self._meter = meter
        self._key = key
        self._transport = transport
        self._secrets = secrets
        self._pace = pace
        self._origin = origin_of(entry.base_url)
        self._throttle = throttles.of(self._origin)
        wire = wire_of(entry)
        self._make_encoder, self._make_decoder = load_encoder(wire), load_decoder(wire)
        self._encoder = self._make_encoder(dialect_of(entry))
        self._schema_with_tools = entry.json_schema != "without_tools"
        self._most_tools = smollm2.TOOLS if entry.embedded == smollm2.NAME else None
        self._told_of_tools = False
        self._cache_watch: CacheWatch | None = None

    @property
    def alias(self) -> str:
        return self._entry.alias

    @property
    def enforces_schema(self) -> bool:
        return self._entry.json_schema is not False

    @property
    def schema_with_tools(self) -> bool:
        """As the entry says, until the endpoint refuses."""
        return self._schema_with_tools

    @property
    def nulls_for_absent(self) -> bool:
        dialect = self._encoder.dialect
        return dialect.json_schema and dialect.wire.nulls_for_absent

    @property
    def media_kinds(self) -> MediaKinds:
        return self._encoder.dialect.media_kinds

    async def stream(  # ruff: ignore[complex-structure] - one attempt from its slot to its end
        self, request: ModelRequest
    ) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn. A caller that stops early must close it (`contextlib.aclosing`).

        Raises:
            BudgetError: a limit of the run or of the step would be exceeded.
            UnavailableError: the endpoint is unreachable, or refused the credentials.
            StepFailedError: the endpoint refused the request, or its answer is unusable.
            PendingError: the answer comes after hours, and the request `suspends`.
        """
        request, remark = self._fit(request)
        if remark is not None:
            yield [remark]
        # What was sent before is encoded again only if it has to be sent again.
        body = b"" if request.pending is not None else self._encoder.body(request)
        turn = Turn(request, body, self._entry, self._throttle.answers, self._key)
        while True:
            hold = await self._reserve(turn)
            slot, has_begun = None, False
            try:
                slot = await self._take_slot(turn)
                while (wait := self._cooldown(turn)) > 0:
                    if wait > _NOTICED_SECONDS:
                        yield [StreamNotice("cooldown", f"waiting {wait:.0f} s for {self._origin}")]
                    await self._pace.sleep(wait)
                headers = await turn.await_untimed(turn.key.headers()) if self._key else None
                slot.mark_sent()
                turn.tries += 1
                decoder = self._decoder(turn.request)
                decoder.limit = self._encoder.max_tokens(turn.request)
                request.received.source = decoder
                request.received.in_batch = self._entry.delivery == BATCH
                exchange = self._transport.send(turn.body, turn.ends, headers, turn.waits())
                try:
                    while batch := await exchange.deltas(decoder):
                        has_begun = True
                        yield self._finish(batch, hold, turn)
                except (AttemptError, StreamError) as error:
                    # A cancelled turn may receive a truncated answer just before the cancellation.
                    await checkpoint_if_cancelled()
                    failure = self._on_error(error, turn, slot)
                    turn.body = turn.body or self._encoder.body(turn.request)
                except PendingError as error:
                    turn.suspend(error.pending, hold)
                    hold = None
                    raise
                else:
                    slot.mark_answered()
                    turn.key.note_accepted()
                    return
                finally:
                    await exchange.aclose()
            finally:
                self._over(slot, hold, begun=has_begun)
            if has_begun:
                yield [Withdrawn(failure.message)]
            recorded = exchange.recorded_again
            renewed = await turn.await_untimed(turn.key.replace(failure, recorded))
            adapted = self._adapt(failure, turn, renewed=renewed)
            if adapted is not None:
                yield adapted
                continue
            retrying = self._again(failure, turn, recorded)
            yield [*self._news(), retrying]
            await self._pace.sleep(retrying.delay)

    async def _take_slot(self, turn: Turn) -> Slot:
        slot = self._throttle.take()
        return await turn.await_untimed(self._throttle.slot()) if slot is None else slot

    def _fit(self, request: ModelRequest) -> tuple[ModelRequest, StreamNotice | None]:
        """The request adapted to the endpoint and the model; omitted tools are reported once."""
        if request.tools and not self._schema_with_tools:
            request = replace(request, schema=None)
        most = self._most_tools
        if most is None or len(request.tools) <= most:
            return request, None
        from aish.models.embedded import fewer_tools, notice_of  # only if there are too many

        tools = fewer_tools(request, most)
        remark = None if self._told_of_tools else notice_of(self.alias, request.tools, tools)
        self._told_of_tools = True
        return replace(request, tools=tools), remark

    def _on_error(self, error: AttemptError | StreamError, turn: Turn, slot: Slot) -> AttemptError:
        """Count a failed attempt, while its slot is still held."""
        failure = self._as_attempt(error)
        if isinstance(error, UnfinishedStreamError) and slot.is_unfinished_again():
            failure.advice = CROWDED
        answers = self._throttle.answers
        if self._key is None or not failure.advice.refuses_key:
            turn.count_failure(failure.advice, beside_others=slot.beside_others, answers=answers)
        if failure.advice.overload:
            slot.mark_refused()
        return failure

    def _adapt(self, failure: AttemptError, turn: Turn, *, renewed: bool) -> Sequence[Delta] | None:
        """Leave out of the request what the endpoint refuses, if that is known.

        Returns what is said of the next attempt, that with a `renewed` key too; `None` for none.
        """
        if renewed:
            return [Retrying(self._origin, turn.tries + 1, 0.0, failure.message)]
        if self._is_refused_beside_tools(failure, turn.request):
            self._schema_with_tools = False
            turn.request = replace(turn.request, schema=None)
            turn.body = self._encoder.body(turn.request)
            return [StreamNotice("schema_apart", f"{self._origin}: {_NOT_BOTH}")]
        if self._is_schema_refused(failure, turn.request):
            apart = replace(self._encoder.dialect, json_schema=False, schema_in_words=True)
            self._encoder = self._make_encoder(apart)
            turn.body = self._encoder.body(turn.request)
            message = "the answer schema is refused; it is described in words instead"
            return [StreamNotice("schema_refused", f"{self._origin}: {message}")]
        if (left_out := self._leave_out(failure, turn)) is not None:
            return [left_out]
        is_own = "stream_options" in {**self._entry.params, **turn.request.params}
        if _ASKS_USAGE in turn.body and not is_own and refuses_usage(failure):
            is_known = not self._encoder.dialect.usage
            self._encoder = self._make_encoder(replace(self._encoder.dialect, usage=False))
            turn.body = self._encoder.body(turn.request)
            message = f"{self._origin}: no token counts in streams; retrying without them"
            again = Retrying(self._origin, turn.tries + 1, 0.0, message)
            return [again if is_known else StreamNotice("usage_refused", message)]
        return None

    def _leave_out(self, failure: AttemptError, turn: Turn) -> StreamNotice | None:
        """Leave out what only helps an endpoint, if it refuses that; what is said of it."""
        if refuses_own_thoughts(failure) and self._leave_out_thoughts(turn):
            code, message = "thoughts_refused", "it does not take back what it thought"
        elif refuses_cache_marks(failure) and self._leave_out_marks(turn):
            code, message = "cache_refused", "it takes no marks for its cache"
        else:
            return None
        return StreamNotice(code, f"{self._origin}: {message}; retrying without that")

    def _leave_out_thoughts(self, turn: Turn) -> bool:
        """Encode a turn without the thoughts of earlier answers; false if it has none.

        Signed ones are taken back from now on: an answer that goes on after a tool needs its own.
        """
        is_signed = _SIGNED in turn.body
        body = self._encoder.body(turn.request)
        if body == turn.body:  # else another turn was refused meanwhile
            origin = self._encoder.dialect.origin
            origin = origin + _ANEW if is_signed and not origin.endswith(_ANEW) else ""
            encoder = self._make_encoder(replace(self._encoder.dialect, origin=origin))
            body = encoder.body(turn.request)
            if body == turn.body:
                return False
            self._encoder = encoder
        turn.body = body
        return True

    def _leave_out_marks(self, turn: Turn) -> bool:
        """Encode a turn without marks for a cache, and all later ones; false if it has none."""
        unmarked = without_marks(self._encoder.dialect)
        if unmarked != self._encoder.dialect:
            self._encoder = self._make_encoder(unmarked)
        body = self._encoder.body(turn.request)
        is_without = body != turn.body
        turn.body = body
        return is_without

    def _is_refused_beside_tools(self, failure: AttemptError, request: ModelRequest) -> bool:
        """Return true if the endpoint reports that it supports tools or a schema, not both."""
        both = request.schema is not None and bool(request.tools) and self.enforces_schema
        return both and refuses_schema_beside_tools(failure)

    def _is_schema_refused(self, failure: AttemptError, request: ModelRequest) -> bool:
        """Return true if the endpoint refuses a schema that is sent without being asked for."""
        dialect = self._encoder.dialect
        is_sent = request.schema is not None and dialect.json_schema and dialect.wire.json_schema
        return is_sent and refuses_schema(failure)

    def _again(
        self, failure: AttemptError, turn: Turn, recorded: Callable[[], bool] | None
    ) -> Retrying:
        """The next attempt; raises the final error if there is none.

        A replay repeats the recorded decision, which depended on other requests at that time.
        """
        advice, policy = failure.advice, self._entry.retry
        delay = delay_before(max(1, turn.failures), advice, policy, self._pace.chance())
        if advice.cools:
            self._throttle.hold(self._pace.clock.monotonic() + delay)
        if not advice.retry:
            raise failure.final(self.alias)
        if (wait := advice.wait or 0.0) > longest_wait(policy) and not (recorded and recorded()):
            allowed = f"`retry.max_delay` allows {duration(longest_wait(policy))}"
            raise failure.final(self.alias, f" (it asks to wait {duration(wait)}, and {allowed})")
        last = turn.failures >= policy.attempts if recorded is None else not recorded()
        if last:
            tries = f" (after {turn.tries} tries)" if turn.tries > 1 else ""
            raise failure.final(self.alias, tries)
        if turn.is_too_late(delay):
            raise failure.final(self.alias, " (and there is no time left to retry)")
        return Retrying(self._origin, turn.tries + 1, delay, failure.message)

    def _news(self) -> Sequence[Delta]:
        notice = self._throttle.news(self._pace.clock.monotonic())
        return () if notice is None else [notice]

    def _cooldown(self, turn: Turn) -> float:
        """Remaining seconds of the endpoint's cool-down; raises if that is too long."""
        wait = self._throttle.until - self._pace.clock.monotonic()
        if wait <= 0 or turn.pending is not None:
            return 0.0
        longest = longest_wait(self._entry.retry) + LONGEST_JITTER
        if (wait > longest and self._pace.waits) or turn.is_too_late(wait):
            message = f"{self._origin} has asked for a pause of {duration(round(wait))}"
            raise AttemptError(message, Advice(retry=False)).final(self.alias)
        return wait + self._pace.chance() * min(wait, 1.0)

    async def _reserve(self, turn: Turn) -> Hold | None:
        if turn.pending is not None:
            return turn.pending.hold
        if self._meter is None:
            return None
        request, most = turn.request, self._encoder.max_tokens(turn.request)
        place, size = request.place, len(turn.body)
        return await turn.await_untimed(self._meter.reserve(place, self.alias, size, most))

    def _decoder(self, request: ModelRequest) -> AnswerStream:
        return self._make_decoder(
            place=request.place,
            known_tools=frozenset(tool.wire for tool in request.tools),
            required={tool.wire: bool(tool.input_schema.get("required")) for tool in request.tools},
            mask=self._secrets.mask,
            finish_optional=self._entry.finish == "optional",
        )

    @staticmethod
    def _over(slot: Slot | None, hold: Hold | None, *, begun: bool) -> None:
        """End an attempt: release its slot and the unused part of its reservation."""
        if slot is not None:
            slot.free()
        if hold is not None:
            hold.close(begun=begun)

    def _finish(self, deltas: list[Delta], hold: Hold | None, turn: Turn) -> list[Delta]:
        finish = deltas[-1]
        if type(finish) is not Finish:
            return deltas
        origin = self._encoder.dialect.origin
        # What is taken back no more is not for another wire with the alias either.
        apart = "" if origin == self.alias else origin or f"{self.alias} {self._entry.api}"
        written = finish.long_written
        if written is None and self._encoder.dialect.cache in LONG_CACHES:
            # Then all of it is: so our marks say.
            written = finish.usage.cache_written
        finish = replace(finish, model=self.alias, origin=apart, long_written=written)
        if self.check_served is not None:
            finish = replace(finish, unpinned=self.check_served(self.alias, finish.served))
        news = [*self._news(), *self._watch_cache(turn, finish)]
        return [*deltas[:-1], *news, finish if hold is None else hold.settle(finish)]

    def _watch_cache(self, turn: Turn, finish: Finish) -> Iterator[StreamNotice]:
        if self._cache_watch is None and sets_marks(self._encoder.dialect):
            from aish.models.cache_watch import CacheWatch  # only where something is marked

            self._cache_watch = CacheWatch()
        if self._cache_watch is not None and turn.body:
            history = turn.request.history
            notice = self._cache_watch.note(history, turn.body, finish.usage)
            if notice is not None:
                yield notice

    def _as_attempt(self, error: AttemptError | StreamError) -> AttemptError:
        """Converts both kinds of failure to one, with secrets masked."""
        if isinstance(error, AttemptError):
            error.message = self._secrets.mask(error.message)
            return error
        message = self._secrets.mask(error.message)
        hint = PAGE_HINT if is_page(error.message.removeprefix(NOT_AN_ANSWER)) else None
        if isinstance(error, EmptyStreamError):
            hint = EMPTY_HINT
        elif isinstance(error, UnfinishedStreamError):
            hint = UNFINISHED_HINT.format(self.alias)
        if isinstance(error, InBandError):
            if is_malformed(error.message):
                return error_of_malformed(message)
            hint = hint or hint_in_band(error.message)
            advice = judge_code(
                error.code, retryable=error.retryable, told=error.advice, now=self._pace.clock.now()
            )
        else:
            is_unavailable = error.retryable and not isinstance(error, MalformedToolCallError)
            advice = Advice(retry=error.retryable, unavailable=is_unavailable)
        return AttemptError(message, advice, hint)


@asynccontextmanager
async def open_model(
    entry: ModelEntry,
    key: str | None,
    *,
    secrets: Secrets,
    pace: RetryTiming | None = None,
    throttles: Throttles | None = None,
    make_client: MakeClient = open_client,
    meter: Meter | None = None,
    secret: RenewedSecret | None = None,
) -> AsyncGenerator[ChatModel]:
    """A model client; `entry` has all variables expanded, `key` is the value of `key_env`.

    `secret` is a key that is made, in its place.

    Models opened with the same `throttles` share the limits of their endpoints. `meter` is
    asked before each request and notified of each answer.

    Raises:
        UsageError: `base_url` or a header cannot be used.
    """
    check_base_url(entry)
    headers = headers_of(entry, key)
    pace = pace or RetryTiming()
    async with background() as tasks:
        transport = ModelTransport(
            entry,
            headers,
            mask=secrets.mask,
            now=pace.clock.now,
            tasks=tasks,
            make_client=make_client,
        )
        try:
            yield ChatModel(
                entry,
                transport,
                secrets=secrets,
                pace=pace,
                throttles=throttles or Throttles(),
                meter=meter,
                key=None if secret is None else EndpointKey(entry, secret),
            )
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()
