"""A span as we make it, before any library sees it; pure values, so that its shape can be read."""

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.text import safe_utf8

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]
SpanKind = Literal["internal", "client"]

_LONGEST = 100_000


@frozen
class SpanEvent:
    """Something at one moment of a span; times are seconds since the epoch."""

    name: str
    time: float
    attributes: Attributes = field(default_factory=dict)


@frozen
class Span:
    """Something that took time. `error` is why it failed, `""` where that is not told."""

    trace: int
    id: int
    parent: int | None
    name: str
    kind: SpanKind
    start: float
    end: float
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None


def trace_id(run: str) -> int:
    """The same for the same run, live or from its journal."""
    return _number(f"aish trace {run}", 16)


def span_id(run: str, seq: int) -> int:
    """The same for the same event of the same run."""
    return _number(f"aish span {run} {seq}", 8)


def told(values: Mapping[str, JsonValue | tuple[str, ...]]) -> dict[str, Value]:
    """Attributes without those that are not known, and with texts that can be encoded."""
    return {
        name: value
        for name, given in values.items()
        if given is not None and (value := _value(given)) is not None
    }


def text(value: str) -> str:
    """A stranger's text, as long as it is worth sending."""
    return safe_utf8(value[:_LONGEST])


def _value(given: JsonValue | tuple[str, ...]) -> Value | None:
    if isinstance(given, str):
        return text(given)
    if isinstance(given, tuple):
        return tuple(text(str(one)) for one in given)
    return given if isinstance(given, (bool, int, float)) else None


def _number(text: str, size: int) -> int:
    # Zero is no id.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size]) or 1
