"""Tells of conversations that are to be read from the endpoint's cache, and are not.

Only the first requests of a conversation are compared. The marks for the cache move on with each
request, and are no difference.
"""

import re
from typing import Final
from weakref import WeakKeyDictionary

from aish.core.frozen import slotted
from aish.core.messages import History, StreamNotice, Usage

_TURNS: Final = 3
# Endpoints do not cache less.
_LEAST_TOKENS: Final = 1024
_MARK: Final = re.compile(rb',"(?:cache_control|prompt_cache_breakpoint)":\{[^{}]*\}')
_END: Final = b"]}"
_CHUNK: Final = 4096


@slotted
class _Seen:
    """The requests of a conversation so far; `difference` is of a turn from the one before."""

    turns: int = 0
    body: bytes = b""
    difference: tuple[int, int] | None = None


class CacheWatch:
    """Watches the conversations with one model; tells of the first that is never read."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[History, _Seen] = WeakKeyDictionary()
        self._is_over = False

    def note(self, history: History, sent: bytes, usage: Usage) -> StreamNotice | None:
        """An answered request; returns what is to be told."""
        if self._is_over:
            return None
        if usage.cached:
            # What was read once will be read again.
            self._is_over = True
            self._seen.clear()
            return None
        seen = self._seen.setdefault(history, _Seen())
        body = _MARK.sub(b"", sent)
        if seen.turns and seen.difference is None:
            at = first_difference(seen.body.removesuffix(_END), body)
            seen.difference = None if at is None else (seen.turns + 1, at)
        seen.turns, seen.body = seen.turns + 1, body
        if seen.turns <= _TURNS or (usage.input or 0) < _LEAST_TOKENS:
            return None
        self._is_over = True
        self._seen.clear()
        if seen.difference is None:
            why = "though each request begins with the whole one before it"
        else:
            turn, at = seen.difference
            why = f"request {turn} differs from the one before from byte {at:,} on"
        text = f"{seen.turns} turns of a conversation, and nothing read from the endpoint's cache"
        return StreamNotice("cache_unused", f"{text}: {why}")


def first_difference(before: bytes, after: bytes) -> int | None:
    """The first byte, counted from 0, in which `after` does not begin with `before`."""
    if after.startswith(before):
        return None
    for start in range(0, len(before), _CHUNK):
        one, other = before[start : start + _CHUNK], after[start : start + _CHUNK]
        if one != other:
            pairs = enumerate(zip(one, other, strict=False))
            return start + next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    return None
