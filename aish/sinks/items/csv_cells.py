"""Values as cells of CSV, which people open in spreadsheets (X2).

A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, quoted or not. A
text that begins so gets an apostrophe before it, which spreadsheets take for "this is text"; so
does one that begins with apostrophes and then so, which makes the way back (`unguarded`) exact.
Numbers are left as they are.
"""

import json
import re

from aish.core.json import JsonValue
from aish.core.text import safe_utf8
from aish.sinks.json_text import json_text

# The wide forms count as the narrow ones where the system writes Japanese.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


def cell(value: JsonValue, *, guard: bool = True) -> str:
    """One value: texts as they are but for the guard, null as nothing, the rest as JSON.

    A text that came with the input needs no guard: it goes back as it came.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        text = safe_utf8(value).replace("\0", "\ufffd")
        return guarded(text) if guard else text
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json_text(value)


def guarded(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    if _FORMULA.match(text) is None or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def unguarded(text: str) -> str:
    """The text that `guarded` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
