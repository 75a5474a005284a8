"""Assembles a model's stream into one turn, and emits its deltas as events.

One event per batch: pieces that arrive together are emitted together.
"""

from collections.abc import Sequence
from dataclasses import field

from aish.core.errors import StepFailedError
from aish.core.events import (
    AnswerPurpose,
    Asked,
    Event,
    Fallback,
    Notice,
    Place,
    ReasoningDelta,
    Retry,
    TextDelta,
    TextWithdrawn,
    TurnFinished,
    TurnProgress,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject
from aish.core.messages import (
    Delta,
    Extras,
    FellBack,
    Finish,
    Paused,
    ReasoningPiece,
    Retrying,
    StreamNotice,
    TextPiece,
    Usage,
    Withdrawn,
    add_usage,
)
from aish.core.protocols import Clock, Emit, Every, Model, ModelRequest
from aish.core.tools import ToolCall
from aish.system.clock import call_every

TELL_SECONDS = 10.0
"""How often a turn that takes long is told of."""


@frozen
class Assembled:
    """A complete turn of a model; `first_token` counts seconds from the request.

    `usage` is of all its parts, where its endpoint has paused it, and `asked` of the first one.
    `finish` has the counts of the last one: those before have been told already.
    """

    text: str
    calls: tuple[ToolCall, ...]
    extras: JsonObject
    finish: Finish
    first_token: float | None
    seconds: float
    asked: Usage = Usage()
    usage: Usage = Usage()

    def tell(
        self,
        emit: Emit,
        place: Place,
        alias: str,
        purpose: AnswerPurpose = "answer",
        calls: Sequence[Asked] = (),
    ) -> None:
        """Emit the event of the turn, whose model is `alias` if no other one has answered.

        Raises:
            LockDiffersError: its model is not one that the lock pins; it is paid for anyway.
        """
        finish = self.finish
        emit(
            TurnFinished(
                place=place,
                model=finish.model or alias,
                finish=finish.reason,
                text=self.text,
                calls=tuple(calls),
                usage=finish.usage,
                first_token_seconds=self.first_token,
                seconds=self.seconds,
                cost_usd=finish.cost_usd,
                purpose=purpose,
                served=finish.served,
            )
        )
        if finish.unpinned is not None:
            raise finish.unpinned


async def assemble(
    model: Model,
    request: ModelRequest,
    place: Place,
    emit: Emit,
    clock: Clock,
    every: Every = call_every,
    begun: float | None = None,
) -> Assembled:
    """Ask `model` and assemble its answer, reporting progress periodically.

    `begun` is when it was asked, if that was before.

    Raises:
        UnavailableError: the endpoint is unreachable, or refused the credentials.
        StepFailedError: the endpoint refused the request, or its answer is unusable.
        PendingError: the answer comes after hours, and the request `suspends`.
    """
    assembly = Assembly(place, emit, clock, clock.monotonic() if begun is None else begun)

    def tell() -> None:
        if request.received.in_batch:
            stop_telling()
            return
        seconds = clock.monotonic() - assembly.begun
        emit(TurnProgress(place, model.alias, request.received.tokens, seconds))

    stop_telling = every(TELL_SECONDS, tell)
    stream = model.stream(request)
    try:
        async for batch in stream:
            assembly.add(batch)
    except Exception:
        assembly.withdraw()
        raise
    finally:
        stop_telling()
        # An unfinished generator would hold its connection until garbage collection.
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    return assembly.result(model.alias)


def without_text(emit: Emit) -> Emit:
    """Forward everything but text: such an answer is not the output of the step."""

    def forward(event: Event) -> None:
        if not isinstance(event, TextDelta | ReasoningDelta | TextWithdrawn):
            emit(event)

    return forward


@slotted
class Assembly:
    """A turn being assembled. Text is collected in a list and joined once."""

    place: Place
    emit: Emit
    clock: Clock
    begun: float
    _first: float | None = None
    _text: list[str] = field(default_factory=list)
    _shown: bool = False
    _calls: list[ToolCall] = field(default_factory=list)
    _extras: JsonObject = field(default_factory=dict)
    _finish: Finish | None = None
    _asked: Usage | None = None
    _used: Usage | None = None

    def add(self, batch: Sequence[Delta]) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        for delta in batch:
            if isinstance(delta, TextPiece):
                if thoughts:
                    self._think(thoughts)
                texts.append(delta.text)
            elif isinstance(delta, ReasoningPiece):
                if texts:
                    self._say(texts)
                thoughts.append(delta.text)
            else:
                if texts:
                    self._say(texts)
                if thoughts:
                    self._think(thoughts)
                self._take(delta)
        if thoughts:
            self._think(thoughts)
        if texts:
            self._say(texts)

    def withdraw(self) -> None:
        """Void everything so far."""
        if self._shown:
            self.emit(TextWithdrawn(self.place, "".join(self._text)))
        self._shown = False
        self._text.clear()
        self._calls.clear()
        self._extras = {}
        self._finish = None
        self._first = None

    def _tell_part(self, finish: Finish) -> None:
        """Tell at once what a part of a turn has used: it is paid for, whatever comes of it."""
        seconds = self.clock.monotonic() - self.begun
        part = Assembled("", (), {}, finish, None, seconds)
        self._asked = self._asked or finish.usage
        self._used = add_usage(self._used, finish.usage)
        part.tell(self.emit, self.place, finish.model, "paused")

    def result(self, alias: str) -> Assembled:
        """The turn, once the stream has ended.

        Raises:
            StepFailedError: the stream ended without a finish, which is never a success.
        """
        if self._finish is None:
            self.withdraw()
            raise StepFailedError("the answer is incomplete", where=f"model `{alias}`")
        return Assembled(
            text="".join(self._text),
            calls=tuple(self._calls),
            extras=self._extras,
            finish=self._finish,
            first_token=self._first,
            seconds=self.clock.monotonic() - self.begun,
            asked=self._asked or self._finish.usage,
            usage=add_usage(self._used, self._finish.usage),
        )

    def _say(self, texts: list[str]) -> None:
        text = texts[0] if len(texts) == 1 else "".join(texts)
        texts.clear()
        if text:
            self._mark_first()
            self._text.append(text)
            self._shown = True
            self.emit(TextDelta(self.place, text))

    def _think(self, thoughts: list[str]) -> None:
        text = "".join(thoughts)
        thoughts.clear()
        if text:
            self._mark_first()
            self._shown = True
            self.emit(ReasoningDelta(self.place, text))

    def _mark_first(self) -> None:
        if self._first is None:
            self._first = self.clock.monotonic() - self.begun

    def _take(self, delta: Delta) -> None:
        match delta:
            case ToolCall():
                self._mark_first()
                self._calls.append(delta)
            case Extras(fields):
                self._extras = {**self._extras, **fields}
            case Finish():
                self._finish = delta
            case Paused(part):
                self._tell_part(part)
            case Withdrawn():
                self.withdraw()
            case _:
                self._tell(delta)

    def _tell(self, delta: Delta) -> None:
        match delta:
            case Retrying(endpoint, attempt, delay, reason):
                self.emit(Retry(self.place, endpoint, attempt, delay, reason))
            case FellBack(source, target, reason):
                self._asked = None
                self.emit(Fallback(self.place, source, target, reason))
            case StreamNotice(code, text):
                self.emit(Notice(self.place, "warning", code, text))
            case _:
                raise AssertionError(f"no such delta: {delta!r}")
