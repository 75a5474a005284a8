"""Paths into a result, as expectations have them: `outputs.notes[0].title`, `steps.rows.text`."""

import json
import re
from collections.abc import Mapping, Sequence

from aish.core.errors import did_you_mean
from aish.core.json import JsonValue
from aish.system.schema.walk import spell_path

ResultPath = tuple[str | int, ...]

_SEGMENT = re.compile(
    r"(?P<dot>\.)?(?P<key>[^.\[\]\"\s]+)|\[(?P<index>[0-9]{1,6})\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]"
)


class NotThereError(Exception):
    """A path leads to nothing; the message is the end of a sentence about what was got."""


def parse_path(text: str) -> ResultPath:
    """The keys and indices of a path; it begins with a name.

    Raises:
        ValueError: it is no path; says where it stops being one.
    """
    keys: list[str | int] = []
    place = 0
    while place < len(text):
        found = _SEGMENT.match(text, place)
        # Names are joined by dots: one before each but the first.
        if found is None or (found["key"] is not None and bool(found["dot"]) != bool(keys)):
            raise ValueError(f"`{text}` is no path at `{text[place:][:20]}`")
        keys.append(_key(found))
        place = found.end()
    if not keys or isinstance(keys[0], int):
        raise ValueError(f"`{text}` does not begin with a name")
    return tuple(keys)


def find(path: ResultPath, value: JsonValue | Mapping[str, JsonValue]) -> JsonValue:
    """What a path leads to.

    Raises:
        NotThereError: nothing.
    """
    here: JsonValue | Mapping[str, JsonValue] = value
    for depth, key in enumerate(path):
        place = spell_path(path[: depth + 1])
        if isinstance(key, int):
            if not isinstance(here, Sequence) or isinstance(here, str):
                raise NotThereError(_no_parts(path[:depth], here, "a list"))
            if key >= len(here):
                raise NotThereError(f"nothing at `{place}`: the list has {len(here)}")
            here = here[key]
        else:
            if not isinstance(here, Mapping):
                raise NotThereError(_no_parts(path[:depth], here, "a mapping"))
            if key not in here:
                near = did_you_mean(key, map(str, here))
                raise NotThereError(f"nothing at `{place}`" + (f", {near}" if near else ""))
            here = here[key]
    assert not isinstance(here, Mapping) or isinstance(here, dict) or path
    return here


def kind_of(value: JsonValue | Mapping[str, JsonValue]) -> str:
    """What a value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def _key(found: re.Match[str]) -> str | int:
    if found["index"] is not None:
        return int(found["index"])
    if found["quoted"] is None:
        return found["key"]
    try:
        return str(json.loads(found["quoted"]))
    except ValueError:
        raise ValueError(f"`{found['quoted'][:20]}` is no quoted key") from None


def _no_parts(path: ResultPath, value: JsonValue | Mapping[str, JsonValue], wanted: str) -> str:
    return f"`{spell_path(path)}`, which is {kind_of(value)} and not {wanted}"
