"""The structured content of a result beside its text: what a model is shown of both (M7).

Many servers put a summary into the text and the data into `structuredContent`, others the same JSON
into both, and some libraries a text into the one and `{"result": text}` into the other.
"""

import json
from collections.abc import Iterator, Mapping

from aish.core.json import JsonValue, canonical, strict_json_at
from aish.core.patterns import lazy_pattern
from aish.core.text import safe_utf8

_BEGINNING = lazy_pattern(r"[{\[]")
_MOST_TRIES = 100
"""How many places of a text that may begin one are looked at (X6)."""


def with_data(text: str, data: JsonValue) -> str:
    """The text of a result, and after it its structured content where it does not hold that."""
    if not text.strip():
        text = ""
    if data is None:
        return safe_utf8(text)
    try:
        if not text:
            return json.dumps(data)
        told = text if _holds(text, data) else f"{text}\n{json.dumps(data, ensure_ascii=False)}"
    except RecursionError:
        told = f"{text}\n[structured content that is nested too deeply]"
    return safe_utf8(told)


def _holds(text: str, data: JsonValue) -> bool:
    """Whether a text holds all data: as JSON in any form, or the only value of it as it is."""
    lone = next(iter(data.values())) if isinstance(data, Mapping) and len(data) == 1 else data
    # A list may come as one block of text for each of its parts.
    parts = lone if isinstance(lone, list) and lone else [lone]
    lines = [one if isinstance(one, str) else canonical(one) for one in parts]
    if text.strip() == "\n".join(lines).strip():
        return True
    told = [canonical(value) for value in _values(text)]
    return not {canonical(data), canonical(lone)}.isdisjoint(told) or told == lines


def _values(text: str) -> Iterator[JsonValue]:
    """The objects and lists in a text that are JSON, one behind another."""
    place = 0
    for _ in range(_MOST_TRIES):
        found = _BEGINNING.search(text, place)
        if found is None:
            return
        try:
            value, place = strict_json_at(text, found.start())
        except ValueError:
            place = found.end()
        else:
            yield value
