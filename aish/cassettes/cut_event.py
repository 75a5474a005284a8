"""The last event of a stream that broke off: what it had said by then (C8)."""

import json

from aish.core.json import JsonValue

_LARGEST = 1 << 20
# As much as an escape can be cut short by.
_LONGEST_ESCAPE = 12


def cut_value(data: str) -> JsonValue:
    """What JSON that ends too early holds, as if everything open in it had been closed there."""
    for gone in range(_LONGEST_ESCAPE if len(data) <= _LARGEST else 0):
        begun = data[: len(data) - gone]
        try:
            value: JsonValue = json.loads(begun + _closing(begun))
        except (ValueError, RecursionError):
            continue
        return value
    return None


def _closing(begun: str) -> str:
    """The quote and the brackets that are missing at the end."""
    is_text = False
    missing: list[str] = []
    letters = iter(begun)
    for letter in letters:
        if is_text:
            if letter == "\\":
                next(letters, None)
            is_text = letter != '"'
        elif letter == '"':
            is_text = True
        elif letter in "{[":
            missing.append("}" if letter == "{" else "]")
        elif letter in "}]" and missing:
            missing.pop()
    return '"' * is_text + "".join(reversed(missing))
