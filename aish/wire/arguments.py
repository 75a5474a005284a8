"""The JSON text of a call's arguments: whether it is all there, and its legal form in history.

What the arguments are worth is decided in the loop (L17); the text itself passes through as sent.
"""

import json
import re
from typing import Any, Final

from aish.wire.json_text import dump, parsed_object, raw_decode

NO_ARGUMENTS: Final = "{}"

# Where a text of arguments may begin anew; most have no such place and need not be parsed.
_BEGINS_ANEW: Final = re.compile(r'\}\s*\{|^\s*".*"\s*"', re.DOTALL)
_SPACE: Final = re.compile(r"\s*")


def is_whole(text: str) -> bool:
    """Whether the text is a complete JSON object, or a JSON string that holds one (quirk 51)."""
    return parsed_object(text) is not None or _inner(text) is not None


def legal_arguments(text: str) -> str:
    """The text where it is a JSON object, else the nearest that is one (quirk 49).

    Some servers answer 500 to a history with anything else.
    """
    if parsed_object(text) is not None:
        return text
    return _inner(text) or NO_ARGUMENTS


def as_text(value: object) -> str:
    """Arguments as text: a string as it is, anything else serialised once (quirk 49)."""
    return value if isinstance(value, str) else dump(value)


def sent_once(text: str) -> str:
    """The text without repetitions, where it is the same whole arguments again and again.

    Gateways replay the last message after its pieces (quirk 41). Anything that is not the same as
    JSON is left as it is, and no longer one value: such a call is never made (L17).
    """
    if _BEGINS_ANEW.search(text) is None:
        return text
    once, meaning, at = "", "", _after(text, 0)
    while at < len(text):
        # What is `once` again ends by itself, as an object or a string does.
        if once and text[at : at + len(once)] == once:
            at = _after(text, at + len(once))
            continue
        try:
            value, end = raw_decode(text, at)
        except (ValueError, RecursionError):
            return text
        if not once:
            once, meaning = text[at:end], _spelled(value)
            if not is_whole(once):
                return text
        elif _spelled(value) != meaning:
            return text
        at = _after(text, end)
    return once


def canonical(text: str) -> str:
    """The text so that equal JSON is equal text; what is no JSON as it is."""
    try:
        return _spelled(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _after(text: str, at: int) -> int:
    """Where the white space that begins at `at` ends."""
    space = _SPACE.match(text, at)
    assert space is not None, "it may be none"
    return space.end()


def _spelled(value: Any) -> str:
    # Not `==` of the values, which takes `true` for 1.
    return json.dumps(value, sort_keys=True)


def _inner(text: str) -> str | None:
    """The object text inside a JSON string."""
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and parsed_object(inner) is not None else None
