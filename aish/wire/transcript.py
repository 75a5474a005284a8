"""The encoded messages of one history, kept so that only new turns are encoded.

Two things wait: what tools said in the form of L13, or showed, goes out in one user message and
its round may still go on; thinking is echoed while the model's own chain of tool calls goes on
and is taken back when a person speaks again (quirk 59). Each costs a turn once.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import assert_never

from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import Media
from aish.wire.call_ids import numbered_id, short_id
from aish.wire.content import REASONING_FIELDS
from aish.wire.json_text import dump
from aish.wire.messages import (
    Message,
    assistant_message,
    text_message,
    told_result,
    tool_message,
)


class Transcript:
    """Encodes turns as they are added; `origin` is the endpoint that may see its own extras."""

    __slots__ = (
        "_chain", "_encoded", "_first", "_ids", "_last", "_origin", "_parts", "_short_ids",
        "_shown", "_taken", "_told", "_tool_role", "_turns", "_vision",
    )  # fmt: skip

    def __init__(self, *, origin: str, tool_role: bool, vision: bool, short_ids: bool) -> None:
        self._origin = origin
        self._tool_role = tool_role
        self._vision = vision
        self._short_ids = short_ids
        self._parts: list[bytes] = []
        self._encoded = 0
        self._turns: Sequence[Turn] = ()
        self._first: Turn | None = None
        self._last: Turn | None = None
        self._taken: set[str] = set()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        self._chain: list[tuple[int, Message]] = []
        self._told: list[str] = []
        self._shown: list[Media] = []

    def fits(self, turns: Sequence[Turn]) -> bool:
        """Whether `turns` begin with those already encoded.

        They do not where they are in another list: a conversation that was shortened (L19).
        """
        count = self._encoded
        return count == 0 or (
            turns is self._turns
            and len(turns) >= count
            and turns[0] is self._first
            and turns[count - 1] is self._last
        )

    def messages(self, turns: Sequence[Turn]) -> list[bytes]:
        """The messages of all turns; all but the first begin with a comma."""
        for turn in turns[self._encoded :]:
            self._add(turn)
        if turns:
            self._turns = turns
            self._encoded, self._first, self._last = len(turns), turns[0], turns[-1]
        if self._told:
            return [*self._parts, self._spelled(self._told_message())]
        return self._parts

    def _add(self, turn: Turn) -> None:
        match turn:
            case SystemTurn():
                self._settle()
                self._put(text_message("system", turn.text))
            case UserTurn():
                self._take_back_thinking()
                self._put(self._told_message(turn))
            case AssistantTurn():
                self._settle()
                self._add_assistant(turn)
            case ToolTurn():
                self._add_result(turn)
            case _:
                assert_never(turn)

    def _add_assistant(self, turn: AssistantTurn) -> None:
        ids = self._wire_ids(turn) if self._tool_role else ()
        same_origin = bool(turn.origin) and turn.origin == self._origin
        message = assistant_message(turn, ids, same_origin=same_origin)
        if any(name in message for name in REASONING_FIELDS):
            plain = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
            if ids:
                self._chain.append((len(self._parts), plain))
            else:
                message = plain
        self._put(message)

    def _wire_ids(self, turn: AssistantTurn) -> tuple[str, ...]:
        """An id for each call that no other call of the history has (quirks 39, 40, 42)."""
        self._ids.clear()
        ids = []
        for call in turn.calls:
            make = short_id if self._short_ids else numbered_id
            id = make(call.id, self._taken)
            self._taken.add(id)
            self._ids[call.id].append(id)
            ids.append(id)
        return tuple(ids)

    def _add_result(self, turn: ToolTurn) -> None:
        if self._tool_role:
            ids = self._ids.get(turn.call_id)
            self._put(tool_message(ids.popleft() if ids else turn.call_id, turn.content))
        else:
            self._told.append(told_result(turn.tool, turn.content))
        if self._vision and turn.media:
            if self._tool_role:
                self._told.append(f"[media from {turn.tool}]")
            self._shown.extend(turn.media)

    def _told_message(self, turn: UserTurn | None = None) -> Message:
        """What tools told, and the user turn that follows: never two user messages in a row."""
        if turn is None:
            return text_message("user", "\n\n".join(self._told), self._shown)
        text = "\n\n".join([*self._told, turn.text])
        media = [*self._shown, *(turn.media if self._vision else ())]
        self._told, self._shown = [], []
        return text_message("user", text, media)

    def _settle(self) -> None:
        """Put what tools told where it belongs: their round is over."""
        if self._told:
            self._put(self._told_message())
            self._told, self._shown = [], []

    def _take_back_thinking(self) -> None:
        for index, message in self._chain:
            self._parts[index] = self._spelled(message, first=index == 0)
        self._chain.clear()

    def _put(self, message: Message) -> None:
        self._parts.append(self._spelled(message, first=not self._parts))

    @staticmethod
    def _spelled(message: Message, *, first: bool = False) -> bytes:
        text = dump(message).encode("utf-8", "replace")
        return text if first else b"," + text
