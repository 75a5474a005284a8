"""The structured content of a result as `tool.finished` tells it, and back.

It often says what the result's text says: what stands in the text is named there by its place, so
that a journal holds it once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from aish.agent.turn_json import ReadFile
from aish.config.documents import parse_json
from aish.core.events import TextSpan
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import safe_utf8

# What holds the structured content of a call, where it is no file.
CONTENT = "content"
STEP_OUTPUT = "output"

# A shorter text is no longer than what says where it is.
_SHORTEST = 64
# Texts further down, and those after so much was looked through, are told as they are (X6).
_DEEPEST = 16
_MOST_SEARCHED = 64 * 1024 * 1024


@frozen
class Structured:
    """Structured content as it is told: `place` is what holds it where `value` does not.

    At the path of each span the text of the result that it names comes before what is there.
    """

    value: JsonValue = None
    place: str | None = None
    spans: tuple[TextSpan, ...] = ()


def structured_to_event(
    structured: JsonValue,
    text: str,
    full: str | None,
    *,
    limit: int,
    keep: Callable[[bytes], str | None],
    mask: Callable[[str], str],
) -> Structured:
    """How to tell it beside `text`, which the file `full` has or, without one, the event.

    What is longer than `limit` all the same is given to `keep`.
    """
    dumped = json.dumps(structured, ensure_ascii=False)
    if _is_same(text, dumped):
        return Structured(place=CONTENT if full is None else full)
    texts = _Texts(text, mask)
    rest = texts.taken_out(structured)
    spans = tuple(texts.spans)
    if spans:
        dumped = json.dumps(rest, ensure_ascii=False)
    if len(dumped) <= limit:
        return Structured(rest, spans=spans)
    return Structured(place=keep(safe_utf8(dumped).encode()), spans=spans)


def structured_from_event(
    finished: JsonObject, output: JsonValue, read_file: ReadFile
) -> JsonValue:
    """The structured content that a `tool.finished` tells; `output` is that of its step or item.

    `None` where what holds it is gone, or is not as it was.
    """
    place, spans = finished.get("structured_in"), finished.get("structured_spans")
    if place == STEP_OUTPUT:
        return output
    try:
        value = finished.get("structured")
        if place is not None:
            value = parse_json(_text_at(None if place == CONTENT else place, finished, read_file))
        return _put_back(value, spans, finished, read_file) if spans else value
    except (LookupError, TypeError, ValueError):
        return None


def _text_at(file: JsonValue, finished: JsonObject, read_file: ReadFile) -> str:
    """What the file has; without one, the text of the event."""
    if file is None:
        return str(finished.get("content") or "")
    data = read_file(str(file))
    if data is None:
        raise LookupError(file)
    return data.decode()


def _put_back(value: JsonValue, spans: Any, finished: JsonObject, read_file: ReadFile) -> JsonValue:
    text = _text_at(finished.get("full"), finished, read_file)
    whole: Any = {"": deepcopy(value)}
    for span in spans:
        start, end = span["start"], span["end"]
        if not 0 <= start <= end <= len(text):
            raise ValueError(end)
        holder, last = whole, ""
        for part in span["path"]:
            holder, last = holder[last], part
        holder[last] = text[start:end] + holder[last]
    found: JsonValue = whole[""]
    return found


class _Texts:
    """The long texts of a value that stand in `text` too."""

    def __init__(self, text: str, mask: Callable[[str], str]) -> None:
        # What is written is masked: places are those in the masked text, if there it stays as it
        # is when it is masked again.
        self._text = mask(text)
        self._mask = mask
        self._left = _MOST_SEARCHED if mask(self._text) == self._text else 0
        self.spans: list[TextSpan] = []

    def taken_out(self, value: JsonValue, path: tuple[str | int, ...] = ()) -> JsonValue:
        """The value without them."""
        if isinstance(value, str):
            return self._rest(value, path)
        if len(path) == _DEEPEST or self._left <= 0:
            return value
        if isinstance(value, Mapping):
            return {key: self.taken_out(one, (*path, key)) for key, one in value.items()}
        if isinstance(value, Sequence):
            return [self.taken_out(one, (*path, place)) for place, one in enumerate(value)]
        return value

    def _rest(self, text: str, path: tuple[str | int, ...]) -> str:
        if len(text) < _SHORTEST or self._left <= 0:
            return text
        masked = self._mask(text)
        # White space at an end is what results and their texts most often differ in.
        body = masked.rstrip()
        if len(body) < _SHORTEST:
            return text
        self._left -= len(self._text)
        start = self._text.find(body)
        if start < 0 or any(isinstance(key, str) and self._mask(key) != key for key in path):
            return text
        self.spans.append(TextSpan(path, start, start + len(body)))
        return masked[len(body) :]


def _is_same(text: str, dumped: str) -> bool:
    """Whether a text is the JSON of what `dumped` is, whatever the white space in it."""
    if text == dumped:
        return True
    if text[:1] != dumped[:1]:
        return False
    try:
        return json.dumps(parse_json(text), ensure_ascii=False) == dumped
    except ValueError:
        return False
