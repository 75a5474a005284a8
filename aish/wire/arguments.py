"""The JSON text of a call's arguments: whether it is all there, and its legal form in history.

What the arguments are worth is decided in the loop (L17); the text itself passes through as sent.
"""

import json
from typing import Final

from aish.wire.json_text import dump, parsed_object

NO_ARGUMENTS: Final = "{}"


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


def _inner(text: str) -> str | None:
    """The object text inside a JSON string."""
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and parsed_object(inner) is not None else None
