"""JSON as the standard has it: read so that nothing is guessed, written of read-only values too."""

import json
import math
from collections.abc import Mapping, Sequence

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
JsonObject = Mapping[str, JsonValue]


def strict_json(text: str) -> JsonValue:
    """What a text holds: no key twice, no `NaN`, no number that is too large.

    How deep it may be is for the caller to say.

    Raises:
        ValueError: it is something else; a `JSONDecodeError` where it is no JSON at all.
        RecursionError: it is nested without end.
    """
    value: JsonValue = _DECODER.decode(text)
    return value


def strict_json_at(text: str, start: int) -> tuple[JsonValue, int]:
    """The value that begins at `start`, and where it ends; what follows is not looked at.

    Raises:
        ValueError: it is something else; a `JSONDecodeError` where it is no JSON at all.
        RecursionError: it is nested without end.
    """
    value, end = _DECODER.raw_decode(text, start)
    return value, end


def writable(value: object) -> object:
    """Read-only mappings and other sequences as what `json` writes: its `default`.

    Raises:
        TypeError: it is nothing that JSON knows.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key `{key}` is there twice")
            seen.add(key)
    return made


def _constant(word: str) -> float:
    raise ValueError(f"`{word}` is no number that JSON knows")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"`{digits[:20]}` is too large a number")
    return number


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        # The interpreter's bound on digits, which it would explain in its own terms.
        raise ValueError(f"a number of {len(digits)} digits is too large") from None


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite, parse_int=_whole
)


def canonical(value: JsonValue) -> str:
    """JSON with sorted keys and without spaces, ASCII only, so that equal values are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=writable)
