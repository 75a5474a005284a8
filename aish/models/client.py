"""A model behind an endpoint: encode, send, decode, and try again where that may help (L8)."""

from asyncio import get_running_loop
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from aish.config.models import ModelEntry
from aish.models import smollm2
from aish.models.failure import AttemptError, origin_of, refuses_schema_beside_tools
from aish.models.headers import check_base_url, headers_of
from aish.models.pace import Cooldowns, Pace
from aish.models.retry import MAX_HINT, Advice, delay_before, judge_code
from aish.models.transport import MakeClient, Transport, open_client
from aish.system.secrets import Secrets
from aish.vocab.deltas import Delta, Finish, Retrying, StreamNotice, Withdrawn
from aish.vocab.protocols import ModelRequest
from aish.wire.chat_decode import ChatDecoder
from aish.wire.chat_encode import Dialect, Encoder
from aish.wire.errors import InBandError, MalformedToolCallError, StreamError

_NOTICED_SECONDS = 1.0
_NOT_BOTH = "no schema together with tools; asking again without it"

# These take tool-call ids of nine letters and digits only (quirk 42).
_SHORT_IDS = frozenset({"api.mistral.ai", "codestral.mistral.ai"})


class ChatModel:
    """`vocab.protocols.Model` over `POST {base_url}/chat/completions`."""

    def __init__(
        self,
        entry: ModelEntry,
        transport: Transport,
        *,
        secrets: Secrets,
        pace: Pace,
        cooldowns: Cooldowns,
    ) -> None:
        self._entry = entry
        self._transport = transport
        self._secrets = secrets
        self._pace = pace
        self._origin = origin_of(entry.base_url)
        self._cooldown = cooldowns.of(self._origin)
        self._encoder = Encoder(_dialect(entry))
        self._schema_with_tools = entry.json_schema != "without_tools"

    @property
    def alias(self) -> str:
        """The name in the pipeline file."""
        return self._entry.alias

    @property
    def enforces_schema(self) -> bool:
        """`json_schema` of the entry."""
        return self._entry.json_schema is not False

    @property
    def schema_with_tools(self) -> bool:
        """As the entry says, until the endpoint says otherwise."""
        return self._schema_with_tools

    @property
    def sees_images(self) -> bool:
        """`vision` of the entry."""
        return self._entry.vision

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn. Who leaves before the end closes it (`contextlib.aclosing`).

        Raises:
            UnavailableError: the endpoint stayed out of reach, or refused the credentials.
            StepFailedError: the endpoint refused the request, or its answer is unusable.
        """
        turn_ends = get_running_loop().time() + self._entry.timeout.turn
        if request.tools and not self._schema_with_tools:
            request = replace(request, schema=None)
        body = self._encoder.body(request)
        attempt = 0
        while True:
            while (wait := self._cooling(turn_ends)) > 0:
                if wait > _NOTICED_SECONDS:
                    yield [StreamNotice("cooldown", f"waiting {wait:.0f} s for {self._origin}")]
                await self._pace.sleep(wait)
            attempt += 1
            shown = False
            decoder = _decoder(request)
            exchange = self._transport.send(body, turn_ends)
            try:
                while batch := await exchange.deltas(decoder):
                    shown = True
                    yield batch if type(batch[-1]) is not Finish else self._signed(batch)
            except (AttemptError, StreamError) as error:
                failure = self._as_attempt(error)
            else:
                return
            finally:
                await exchange.aclose()
            if shown:
                yield [Withdrawn(failure.message)]
            if self._is_refused_beside_tools(failure, request):
                self._schema_with_tools = False
                request = replace(request, schema=None)
                body = self._encoder.body(request)
                yield [StreamNotice("schema_apart", f"{self._origin}: {_NOT_BOTH}")]
                continue
            delay = self._delay_after(failure, attempt, turn_ends)
            yield [Retrying(self._origin, attempt + 1, delay, failure.message)]
            await self._pace.sleep(delay)

    def _is_refused_beside_tools(self, failure: AttemptError, request: ModelRequest) -> bool:
        """Whether the endpoint says that it takes tools or a schema, and not both (B9)."""
        both = request.schema is not None and bool(request.tools) and self.enforces_schema
        return both and refuses_schema_beside_tools(failure)

    def _delay_after(self, failure: AttemptError, attempt: int, turn_ends: float) -> float:
        """Seconds until the next try; raises the final error where there is none."""
        advice, policy = failure.advice, self._entry.retry
        delay = delay_before(attempt, advice, policy, self._pace.chance())
        if advice.cools:
            self._cooldown.hold(self._pace.clock.monotonic() + delay)
        if not advice.retry:
            raise failure.final(self.alias)
        if advice.wait is not None and advice.wait > MAX_HINT:
            raise failure.final(self.alias, f" (it asks to wait {advice.wait:.0f} s)")
        if attempt >= policy.attempts:
            raise failure.final(self.alias, f" (after {attempt} tries)" if attempt > 1 else "")
        if self._is_too_late(delay, turn_ends):
            raise failure.final(self.alias, " (and there is no time left for another try)")
        return delay

    def _cooling(self, turn_ends: float) -> float:
        """Seconds that the endpoint's cool-down still asks for; raises where that is too long."""
        wait = self._cooldown.until - self._pace.clock.monotonic()
        if wait <= 0:
            return 0.0
        if wait > MAX_HINT * 2 or self._is_too_late(wait, turn_ends):
            said = f"{self._origin} has asked for a pause of {wait:.0f} s"
            raise AttemptError(said, Advice(retry=False)).final(self.alias)
        return wait + self._pace.chance() * min(wait, 1.0)

    @staticmethod
    def _is_too_late(delay: float, turn_ends: float) -> bool:
        """Whether a deadline, the step's or the turn's, would pass while waiting."""
        ends = min(turn_ends, anyio.current_effective_deadline())
        return get_running_loop().time() + delay >= ends

    def _signed(self, deltas: list[Delta]) -> list[Delta]:
        """With `Finish` saying who answered."""
        return [
            replace(delta, model=self.alias) if isinstance(delta, Finish) else delta
            for delta in deltas
        ]

    def _as_attempt(self, error: AttemptError | StreamError) -> AttemptError:
        """Either failure as one, with the secrets masked (L7)."""
        if isinstance(error, AttemptError):
            error.message = self._secrets.mask(error.message)
            return error
        message = self._secrets.mask(error.message)
        if isinstance(error, InBandError):
            advice = judge_code(error.code, retryable=error.retryable)
        else:
            found = error.retryable and not isinstance(error, MalformedToolCallError)
            advice = Advice(retry=error.retryable, unavailable=found)
        return AttemptError(message, advice)


@asynccontextmanager
async def open_model(
    entry: ModelEntry,
    key: str | None,
    *,
    secrets: Secrets,
    pace: Pace | None = None,
    cooldowns: Cooldowns | None = None,
    make_client: MakeClient = open_client,
) -> AsyncGenerator[ChatModel]:
    """A model to talk to; `entry` has everything expanded, `key` is the value behind `key_env`.

    Models opened with the same `cooldowns` share those of their endpoints (L8).

    Raises:
        UsageError: `base_url` or a header cannot be used.
    """
    check_base_url(entry)
    headers = headers_of(entry, key)
    pace = pace or Pace()
    async with _background() as tasks:
        transport = Transport(
            entry,
            headers,
            mask=secrets.mask,
            now=pace.clock.now,
            tasks=tasks,
            make_client=make_client,
        )
        try:
            yield ChatModel(
                entry, transport, secrets=secrets, pace=pace, cooldowns=cooldowns or Cooldowns()
            )
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()


@asynccontextmanager
async def _background() -> AsyncGenerator[TaskGroup]:
    """For tasks that never fail: what the body raises comes out as it is, not in a group."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:  # ruff: ignore[blind-except] - raised again below
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _dialect(entry: ModelEntry) -> Dialect:
    params = {**smollm2.PARAMS, **entry.params} if entry.embedded else entry.params
    return Dialect(
        model=entry.model or (smollm2.NAME if entry.embedded else entry.alias),
        params=params,
        usage=entry.usage,
        json_schema=entry.json_schema is not False,
        tool_role=entry.tool_role,
        vision=entry.vision,
        # As `Finish.model`, which the loop writes into the turns.
        origin=entry.alias,
        short_ids=urlsplit(entry.base_url or "").hostname in _SHORT_IDS,
    )


def _decoder(request: ModelRequest) -> ChatDecoder:
    return ChatDecoder(
        place=request.place,
        known_tools=frozenset(tool.wire for tool in request.tools),
        required={tool.wire: bool(tool.input_schema.get("required")) for tool in request.tools},
    )
