"""Tool calls on every wire: arguments as legal JSON, and ids that are the same in each run."""

import json
import re
from collections.abc import Collection, Container
from typing import Any, Final

from aish.core.events import Place
from aish.core.patterns import lazy_pattern
from aish.wire.json_text import dump, parse_object, raw_decode

NO_ARGUMENTS: Final = "{}"

# Where a text of arguments may begin again; most have no such place and need no parsing.
_BEGINS_ANEW: Final = lazy_pattern(r'\}\s*\{|^\s*".*"\s*"', re.DOTALL)
_SPACE: Final = lazy_pattern(r"\s*")


def is_whole(text: str) -> bool:
    """Return true for a complete JSON object, or a JSON string that holds one."""
    return parse_object(text) is not None or _inner(text) is not None


def legal_arguments(text: str) -> str:
    """The text if it is a JSON object, or the most similar JSON object.

    Some servers answer 500 to a history with anything else.
    """
    if parse_object(text) is not None:
        return text
    return _inner(text) or NO_ARGUMENTS


def as_text(value: object) -> str:
    """Arguments as text: a string as it is, anything else serialised once."""
    return value if isinstance(value, str) else dump(value)


def drop_repetitions(text: str) -> str:
    """The text once, if it repeats the same complete arguments.

    Gateways replay the last message after its pieces. Anything that is not the same as
    JSON is left as it is, and no longer one value: such a call is never made.
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
            once, meaning = text[at:end], _normal_json(value)
            if not is_whole(once):
                return text
        elif _normal_json(value) != meaning:
            return text
        at = _after(text, end)
    return once


def canonical(text: str) -> str:
    """The text so that equal JSON is equal text; invalid JSON is unchanged."""
    try:
        return _normal_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _after(text: str, at: int) -> int:
    """The end of the white space that begins at `at`."""
    space = _SPACE.match(text, at)
    assert space is not None, "it may be none"
    return space.end()


def _normal_json(value: Any) -> str:
    # Not `==` of the values, which takes `true` for 1.
    return json.dumps(value, sort_keys=True)


def _inner(text: str) -> str | None:
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and parse_object(inner) is not None else None


LENGTH: Final = 9
"""Nine letters and digits: the strictest endpoint takes exactly that."""


def make_call_id(place: Place, index: int, taken: Container[str]) -> str:
    """An id for the call at `index` of a turn that is not `taken`."""
    source = (place.step or "", place.item or "", str(place.turn), str(index))
    return _first_free("\0".join(source), taken)


def short_id(original: str, taken: Container[str]) -> str:
    """An id of nine letters and digits in place of another: itself, where it is one already."""
    fits = len(original) == LENGTH and original.isascii() and original.isalnum()
    return original if fits and original not in taken else _first_free(original, taken)


def unique_id(original: str, taken: Container[str]) -> str:
    """The id itself, or with a number if an earlier turn has used it."""
    number, candidate = 1, original
    while candidate in taken:
        number += 1
        candidate = f"{original}_{number}"
    return candidate


def _first_free(source: str, taken: Container[str]) -> str:
    attempt, candidate = 0, _digest(source)
    while candidate in taken:
        attempt += 1
        candidate = _digest(f"{source}\0{attempt}")
    return candidate


def _digest(source: str) -> str:
    import hashlib  # most turns need no generated id

    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:LENGTH]


_MARKS = lazy_pattern(
    r"<tool_call>|<\|tool_call|<\|channel\|>|<function[=_]|<invoke\b|\[TOOL_CALLS\]|<\uff5ctool"
    r"|\[call: \w"
)


def looks_leaked(text: str, known_tools: Collection[str]) -> bool:
    """Return true if a text has the marks of a call, or names a tool as a call would."""
    if _MARKS.search(text):
        return True
    names = "|".join(re.escape(name) for name in known_tools)
    named = rf'"name"\s*:\s*"(?:{names})"|^\W*(?:functions\.)?(?:{names})\s*[({{]'
    return bool(names) and re.search(named, text, re.MULTILINE) is not None
