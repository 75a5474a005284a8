"""The calls of clients as events, for programs that follow the server at the control API.

No event is made unless somebody follows. The audit log, which is written first, is what counts.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, cast

from aish.core.events import (
    DecisionLevel,
    Place,
    SessionClosed,
    SessionOpened,
    Stamped,
    ToolFinished,
    ToolStarted,
)
from aish.core.json import JsonObject
from aish.core.phrases import shorten
from aish.core.protocols import Clock, Emit
from aish.core.tools import ResultKind
from aish.policy.gate import Decision, Proposal
from aish.serve.records.audit import Caller

LONGEST_RESULT: Final = 16 << 10
"""How many characters of a result an event has."""
CallKind = ResultKind | Literal["cancelled", "failed", "input_required"]
"""How a call has ended; `failed` by a fault of ours, `input_required` to come again."""
_KINDS: Final[Mapping[CallKind, ResultKind]] = {
    "cancelled": "unknown",  # it may have taken effect
    "failed": "transport_error",
    "input_required": "ok",
}


class CallEvents:
    """Emits sessions and calls if they are followed, and notices in any case.

    `stage` stores a call that a rule stages; `is_followed` says whether anybody follows.
    """

    def __init__(
        self,
        emit: Emit,
        clock: Clock,
        mask: Callable[[str], str],
        stage: Callable[[Stamped], None],
        is_followed: Callable[[], bool],
    ) -> None:
        self.notify = emit
        self._is_followed = is_followed
        self._clock = clock
        self._mask = mask
        self._stage = stage

    def open_session(self, caller: Caller) -> None:
        if self._is_followed():
            self.notify(SessionOpened(caller.peer, _place(caller)))

    def close_session(self, caller: Caller) -> None:
        if self._is_followed():
            self.notify(SessionClosed(_place(caller)))

    def note_decision(self, proposal: Proposal, decision: Decision, level: DecisionLevel) -> None:
        """Emit the decision about a call before it is sent."""
        is_staged = decision.verdict == "staged"
        if not self._is_followed() and not is_staged:
            return
        event = decision.event(proposal, level)
        if is_staged:
            # Arguments with a secret are never staged, so there is nothing to mask.
            self._stage(Stamped(1, self._clock.now(), event))
        if self._is_followed():
            self.notify(event)

    def note_start(self, proposal: Proposal) -> None:
        if self._is_followed():
            self.notify(ToolStarted(proposal.place, str(proposal.tool.name)))

    def note_end(
        self, proposal: Proposal, kind: CallKind, result: JsonObject | None, seconds: float
    ) -> None:
        """Emit the end of a call; without a `result` it was cancelled."""
        if not self._is_followed():
            return
        self.notify(
            ToolFinished(
                place=proposal.place,
                tool=str(proposal.tool.name),
                kind=_KINDS.get(kind, cast("ResultKind", kind)),
                content="" if result is None else shorten(self._text(result), LONGEST_RESULT),
                full=None,
                seconds=seconds,
            )
        )

    def _text(self, result: JsonObject) -> str:
        """Return the text of a result, masked before it is cut."""
        blocks = result.get("content")
        rows = blocks if isinstance(blocks, list | tuple) else ()
        texts = [row.get("text") for row in rows if isinstance(row, Mapping)]
        return self._mask("\n".join(text for text in texts if isinstance(text, str)))


def _place(caller: Caller) -> Place:
    return Place(step=caller.client, client=caller.client, session=caller.session)
