"""A model whose endpoint may pause a turn, as `/v1/messages` does: the turn is continued.

The parts of a turn are joined to one, so that nothing above knows of pauses but what each part has
used: an answer is whole or none, and a run that is resumed asks for the whole again.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    Finish,
    History,
    Paused,
    ReasoningPiece,
    TextPiece,
    Withdrawn,
)
from aish.core.protocols import ModelRequest
from aish.models.fallback import Fallbacks
from aish.wire.messages.decode import CONTENT

_PAUSE: Final = "pause_turn"
_MOST_PAUSES: Final = 32
"""An endpoint that pauses without end is not asked without end; `limits.turns` may be lower."""


@frozen
class _Beginning:
    """The parts of a turn so far; `finish` is the end of the last one."""

    said: tuple[TextPiece | ReasoningPiece, ...] = ()
    blocks: tuple[JsonValue, ...] = ()
    finish: Finish | None = None
    pauses: int = 0

    def plus(self, part: Sequence[Delta], finish: Finish) -> "_Beginning":
        """The turn with another part."""
        said = [delta for delta in part if isinstance(delta, TextPiece | ReasoningPiece)]
        text = _text(said)
        plain = ({"type": "text", "text": text},) if text.strip() else ()
        kept = [delta.fields[CONTENT] for delta in part if isinstance(delta, Extras)]
        blocks = kept[-1] if kept and isinstance(kept[-1], list) else plain
        return _Beginning((*self.said, *said), (*self.blocks, *blocks), finish, self.pauses + 1)

    def continue_in(self, request: ModelRequest) -> ModelRequest:
        """The request with the turn so far at its end, for the endpoint to go on with."""
        if self.finish is None:
            return request
        origin = self.finish.origin or self.finish.model
        turn = AssistantTurn(_text(self.said), extras={CONTENT: self.blocks}, origin=origin)
        history = History([*request.history.turns, turn])
        # What was said so far is nowhere else, so the task that has it waits.
        return replace(request, history=history, suspends=False, pending=None)


class _Part:
    """A part of a turn while it arrives, after the parts before."""

    def __init__(self, before: _Beginning) -> None:
        self._before = before
        self._deltas: list[Delta] = []
        self._finish: Finish | None = None

    def take(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """The deltas of a batch to be told: its end only if it is the end of the turn."""
        for delta in batch:
            if isinstance(delta, Withdrawn):
                self._deltas.clear()
            self._deltas.append(delta)
        last = batch[-1]
        if isinstance(last, Finish):
            self._finish = last
            return self._last(batch, last)
        return self._with_beginning(batch)

    def after(self) -> _Beginning | None:
        """The turn so far, if it is to be continued."""
        finish = self._finish
        is_paused = finish is not None and self._is_paused(finish)
        return self._before.plus(self._deltas, finish) if finish and is_paused else None

    def _last(self, batch: Sequence[Delta], finish: Finish) -> Sequence[Delta]:
        before, is_paused = self._before, self._is_paused(finish)
        if before.finish is None and not is_paused:
            return batch
        told = self._with_beginning(batch[:-1])
        told = [delta for delta in told if not isinstance(delta, Extras)]
        if is_paused:
            return [*told, Paused(finish)]
        blocks = list(before.plus(self._deltas, finish).blocks)
        kept = [] if finish.reason == "refusal" else [Extras({CONTENT: blocks})]
        return [*told, *kept, finish]

    def _is_paused(self, finish: Finish) -> bool:
        is_paused = (finish.reason, finish.raw) == ("other", _PAUSE)
        return is_paused and self._before.pauses < _MOST_PAUSES

    def _with_beginning(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """A batch, after whose withdrawals the parts before are said again."""
        said = self._before.said
        if not said:
            return batch
        again = ([delta, *said] if isinstance(delta, Withdrawn) else [delta] for delta in batch)
        return list(chain.from_iterable(again))


def _text(said: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in said if isinstance(delta, TextPiece))


class PausableModel(Fallbacks):
    """A model whose turns are continued where its endpoint pauses them."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn, in as many requests as the endpoint wants; see `ChatModel.stream`."""
        (model,) = self._models
        turn: _Beginning | None = _Beginning()
        while turn is not None:
            part = _Part(turn)
            batches = model.stream(turn.continue_in(request))
            try:
                async for batch in batches:
                    yield part.take(batch)
            except AishError as error:
                if turn.said:
                    yield [Withdrawn(error.message)]
                raise
            finally:
                if isinstance(batches, AsyncGenerator):
                    await batches.aclose()
            turn = part.after()
