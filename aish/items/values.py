"""Values of items: JSON read without guessing, and the digest that tells two of them apart."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from aish.core.json import JsonValue, strict_json, strict_json_at, writable

DEEPEST = 64

_DIGITS = 16


def digest_of(value: JsonValue) -> str:
    """16 hexadecimal digits of the SHA-256 of the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=writable)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_DIGITS]


def value_of(text: str) -> JsonValue:
    """The value of a whole text.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return _shallow(strict_json(text), text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def value_at(text: str, start: int) -> tuple[JsonValue, int]:
    """The value that begins at `start`, and where it ends.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        value, end = strict_json_at(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _shallow(value, text[start:end]), end


_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def _shallow(value: JsonValue, text: str) -> JsonValue:
    # Most values have fewer brackets than that in all.
    if text.count("[") + text.count("{") > DEEPEST and _depth(value, 0) > DEEPEST:
        raise ValueError(_TOO_DEEP)
    return value


def _depth(value: JsonValue, above: int) -> int:
    """How deep a value is, or that it is too deep."""
    if above > DEEPEST or isinstance(value, str) or not isinstance(value, (Mapping, Sequence)):
        return above
    parts = value.values() if isinstance(value, Mapping) else value
    return max((_depth(part, above + 1) for part in parts), default=above + 1)
