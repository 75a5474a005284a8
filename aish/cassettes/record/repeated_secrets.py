"""Secrets in requests: what a request repeats of the last one is not searched again (C8, C11).

Each request of a conversation holds all that was said before it. To search the whole of it each
time would make a long run slow, and its replay slower.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache

from aish.cassettes.format.edits import Edit
from aish.cassettes.format.json_tokens import Scalar, text_edits
from aish.core.frozen import frozen
from aish.core.text_diff import shared_start

Spans = Callable[[str], Iterable[tuple[int, int, str]]]
"""Finds secrets in a text: start, end, what comes in their place."""

# Longer than any secret, however its letters are spelled.
_NEAR = 1 << 13


@frozen
class _Harmless:
    """A text without secrets, where its strings end, and how many secrets were known."""

    text: str
    ends: list[int]
    known: int


class Repeated:
    """Cleans the requests of one run; knows the last harmless one to each address."""

    def __init__(self) -> None:
        self._last: dict[str, _Harmless] = {}

    def cleaned(self, text: str, address: str, known: int, spans: Spans) -> str:
        """The body of a request without secrets.

        `known` tells apart what could be found before from what can be found now.
        """
        last = self._last.get(address)
        start, ends = _unsearched(text, last) if last and last.known == known else (0, [])
        rest = text[start:]
        found = _within_strings(rest, spans, ends, start)
        found = masked(found, spans(found))
        if found is rest or found == rest:
            if len(text) > _NEAR:
                self._last[address] = _Harmless(text, ends, known)
            return text
        return text[:start] + found


def masked(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """The text with everything replaced that was found."""
    pieces: list[str] = []
    end = 0
    for start, stop, tag in spans:
        pieces += (text[end:start], tag)
        end = stop
    return "".join((*pieces, text[end:])) if end else text


def _unsearched(text: str, last: _Harmless) -> tuple[int, list[int]]:
    """Where to begin, after the end of a string, and where strings end before that."""
    place = bisect_right(last.ends, shared_start(last.text, text) - _NEAR)
    ends = last.ends[:place]
    return (ends[-1] if ends else 0), ends


def _within_strings(text: str, spans: Spans, ends: list[int], start: int) -> str:
    """The text without what only shows once the strings of its JSON are read."""
    pieces: list[str] = []
    place = 0
    for string in _string().finditer(text):
        ends.append(start + string.end())
        if "\\u" in string[0] and (new := _read(string[0], spans)) is not None:
            pieces += (text[place : string.start()], new)
            place = string.end()
    return "".join((*pieces, text[place:])) if place else text


def _read(string: str, spans: Spans) -> str | None:
    """A string of JSON without secrets, if there are any in it."""
    try:
        said: str = json.loads(string, strict=False)
    except ValueError:
        return None
    whole = Scalar(1, len(string) - 1, is_text=True)
    clean = _without(string, text_edits(string, whole, spans(said)))
    return None if clean == string else clean


def _without(text: str, edits: Iterable[Edit]) -> str:
    return masked(text, ((edit.start, edit.end, edit.text) for edit in edits))


@cache
def _string() -> re.Pattern[str]:
    return re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
