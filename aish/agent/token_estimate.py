"""How many tokens a request will have, as well as that can be known before it is sent (L19).

What the endpoint counted last time is believed; what it has not counted yet is taken to have a
token in four bytes. Whole numbers throughout: a replay has to come to the same.
"""

from collections.abc import Sequence

from aish.core.messages import AssistantTurn, ToolTurn, Turn, Usage, UserTurn
from aish.core.protocols import AnswerSchema
from aish.core.tools import Tool
from aish.wire.json_text import dump

BYTES_PER_TOKEN = 4

# No text has fewer tokens. Who says so has counted what was not in a cache, and nothing else.
_BYTES_AT_MOST = 8

# Endpoints bill an image by its size in pixels, which its bytes do not tell: about 1,500 tokens.
_IMAGE = 6_000
_AROUND_TURN = 40
_AROUND_TOOL = 80


def weigh(turn: Turn) -> int:
    """Bytes that a turn has in a request, more or less."""
    match turn:
        case AssistantTurn():
            calls = sum(
                _AROUND_TOOL + _size(call.name) + _size(call.arguments) + _fields(call.extras)
                for call in turn.calls
            )
            return _AROUND_TURN + _size(turn.text) + calls + _fields(turn.extras)
        case ToolTurn():
            return _AROUND_TURN + _size(turn.content) + _IMAGE * len(turn.media)
        case UserTurn():
            return _AROUND_TURN + _size(turn.text) + _IMAGE * len(turn.media)
        case _:
            return _AROUND_TURN + _size(turn.text)


def weigh_rest(tools: Sequence[Tool], schema: AnswerSchema | None) -> int:
    """Bytes of what a request has beside its turns."""
    shown = sum(
        _AROUND_TOOL + _size(tool.wire) + _size(tool.description) + _fields(tool.input_schema)
        for tool in tools
    )
    return shown + (_fields(schema.schema) if schema else 0)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _fields(fields: object) -> int:
    return _size(dump(fields)) if fields else 0


class TokenEstimator:
    """Knows the weight of each turn of a history, and what an endpoint made of them."""

    def __init__(self) -> None:
        self._weights: list[int] = []
        self._counted = 0
        self._old = 0
        self._new = 0
        # As many tokens for so many bytes, the last time.
        self._tokens = 1
        self._bytes = BYTES_PER_TOKEN

    def add(self, turns: Sequence[Turn]) -> None:
        """Weigh the turns that were added since."""
        for turn in turns[len(self._weights) :]:
            weight = weigh(turn)
            self._weights.append(weight)
            self._new += weight

    def tokens(self, rest: int) -> int:
        """The tokens of a request with all turns; `rest` are the bytes beside them."""
        known = (self._old + rest) * self._tokens // self._bytes
        return known + -(-self._new // BYTES_PER_TOKEN)

    def heard(self, usage: Usage, rest: int) -> None:
        """Take what an endpoint counted in the request with all turns so far."""
        weight = self._old + self._new + rest
        if usage.input is None or usage.input * _BYTES_AT_MOST < weight:
            return
        self._old, self._new = self._old + self._new, 0
        self._counted = len(self._weights)
        self._tokens, self._bytes = usage.input, max(1, weight)

    def put(self, at: int, turn: Turn) -> None:
        """A turn has taken the place of another."""
        weight = weigh(turn)
        self._change(at, weight - self._weights[at])
        self._weights[at] = weight

    def drop(self, begin: int, end: int) -> None:
        """The turns from `begin` to `end` are gone."""
        for at in range(begin, end):
            self._change(at, -self._weights[at])
        del self._weights[begin:end]
        self._counted -= max(0, min(end, self._counted) - begin)

    def _change(self, at: int, by: int) -> None:
        if at < self._counted:
            self._old += by
        else:
            self._new += by
