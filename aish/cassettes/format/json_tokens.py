"""The positions of values in a JSON text, so that one can change without any other byte.

The text was parsed before: nothing is validated here. It may be the data of a server-sent event,
with `data:` before each of its lines, and it may be incomplete.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping

from aish.cassettes.format.edits import Edit
from aish.core.frozen import frozen

_TOKEN = re.compile(
    r'"(?P<text>(?:[^"\\]|\\.)*+)(?P<closed>"?)|[{}\[\],:]|[\r\n](?:data: ?)?|[^\s{}\[\],:"]+',
    re.DOTALL,
)
# As `json` reads it: two escapes that are halves of a surrogate pair are one character.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\."
)


@frozen
class Scalar:
    """A number, `true`, `false` or `null`; of a string the part between its quotes."""

    start: int
    end: int
    is_text: bool


Located = None | Scalar | list["Located"] | dict[str, "Located"]
"""A value by where it stands."""

Cut = tuple[int, int, str]
"""The characters from one place to another of a string's value, and what comes in their stead."""


def locate(text: str, start: int, end: int) -> Located:
    """The value from `start` to `end`; of a duplicate key the last one."""
    root: list[Located] = []
    open_: list[list[Located] | dict[str, Located]] = [root]
    keys: list[str | None] = [None]
    for token in _TOKEN.finditer(text, start, end):
        sign, holder = token[0][0], open_[-1]
        if sign in "}]":
            if len(open_) > 1:
                open_.pop()
                keys.pop()
        elif sign in ",:\r\n":
            pass
        elif sign == '"' and isinstance(holder, dict) and keys[-1] is None:
            keys[-1] = json.loads(token[0], strict=False) if token["closed"] else ""
        else:
            value = _start_value(token)
            if isinstance(holder, list):
                holder.append(value)
            else:
                holder[keys[-1] or ""] = value
                keys[-1] = None
            if isinstance(value, (list, dict)):
                open_.append(value)
                keys.append(None)
    return root[0] if root else None


def _start_value(token: re.Match[str]) -> Scalar | list[Located] | dict[str, Located]:
    match token[0][0]:
        case "{":
            return {}
        case "[":
            return []
        case '"':
            return Scalar(token.start("text"), token.end("text"), is_text=True)
        case _:
            return Scalar(token.start(), token.end(), is_text=False)


def at(value: Located, *path: str | int) -> Scalar | None:
    """The scalar at a path, if there is one."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value if isinstance(value, Scalar) else None


def text_edits(text: str, scalar: Scalar, cuts: Iterable[Cut]) -> Iterator[Edit]:
    """The edits that apply the cuts to a string in the text, in order."""
    place_of = None
    for begin, stop, new in cuts:
        place_of = place_of or _places(text[scalar.start : scalar.end])
        start, end = scalar.start + place_of(begin), scalar.start + place_of(stop)
        yield Edit(start, end, json.dumps(new, ensure_ascii=False)[1:-1])


def _places(raw: str) -> Callable[[int], int]:
    """The text position of a character of a string's value, or of the end of the last one."""
    # After each escape both positions advance equally.
    values, spellings = [0], [0]
    for escape in _ESCAPE.finditer(raw):
        values.append(escape.start() - spellings[-1] + values[-1] + 1)
        spellings.append(escape.end())

    def place_of(value: int) -> int:
        known = bisect_right(values, value) - 1
        return spellings[known] + value - values[known]

    return place_of
