"""Secrets in requests: the part repeated from the last one is not searched again.

Each request of a conversation contains all earlier messages. Searching the whole of it each time
would slow down long runs, and their replay more.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache

from aish.cassettes.format.json_tokens import Scalar, text_edits
from aish.core.frozen import frozen
from aish.core.text_diff import equal_start

Spans = Callable[[str], Iterable[tuple[int, int, str]]]
"""Finds secrets in a text: start, end, what comes in their place."""

# Longer than any secret in any encoding.
_NEAR = 1 << 13


@frozen
class _Harmless:
    """A text without secrets, the ends of its strings, and the number of secrets known."""

    text: str
    ends: list[int]
    known: int


class Repeated:
    """Redacts the requests of one run; stores the last harmless one for each address."""

    def __init__(self) -> None:
        self._last: dict[str, _Harmless] = {}

    def clean_body(self, text: str, address: str, known: int, spans: Spans) -> str:
        """The body of a request without secrets.

        `known` distinguishes what could be found before from what can be found now.
        """
        last = self._last.get(address)
        start, ends = _search_start(text, last) if last and last.known == known else (0, [])
        rest = text[start:]
        remainder = _within_strings(rest, spans, ends, start)
        remainder = mask_spans(remainder, spans(remainder))
        if remainder is rest or remainder == rest:
            if len(text) > _NEAR:
                self._last[address] = _Harmless(text, ends, known)
            return text
        return text[:start] + remainder


def mask_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """The text with all matches replaced."""
    pieces: list[str] = []
    end = 0
    for start, stop, tag in spans:
        pieces += (text[end:start], tag)
        end = stop
    return "".join((*pieces, text[end:])) if end else text


def _search_start(text: str, last: _Harmless) -> tuple[int, list[int]]:
    """The position to begin at, after the end of a string, and the ends of strings before it."""
    place = bisect_right(last.ends, equal_start(last.text, text) - _NEAR)
    ends = last.ends[:place]
    return (ends[-1] if ends else 0), ends


def _within_strings(text: str, spans: Spans, ends: list[int], start: int) -> str:
    """The text without secrets that only show in the decoded strings of its JSON."""
    pieces: list[str] = []
    place = 0
    for string in _string().finditer(text):
        ends.append(start + string.end())
        if "\\u" in string[0] and (new := _read(string[0], spans)) is not None:
            pieces += (text[place : string.start()], new)
            place = string.end()
    return "".join((*pieces, text[place:])) if place else text


def _read(string: str, spans: Spans) -> str | None:
    """The JSON string with its secrets replaced; `None` if it has none."""
    try:
        value: str = json.loads(string, strict=False)
    except ValueError:
        return None
    whole = Scalar(1, len(string) - 1, is_text=True)
    edits = text_edits(string, whole, spans(value))
    clean = mask_spans(string, ((edit.start, edit.end, edit.text) for edit in edits))
    return None if clean == string else clean


@cache
def _string() -> re.Pattern[str]:
    return re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
