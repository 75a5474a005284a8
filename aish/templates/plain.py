"""Templates that only put values in: `{{ inputs.name }}` and no more, rendered without Jinja2.

Importing Jinja2 costs as much as parsing the command line. Whatever is not as simple as this, or
might mean something else to Jinja2, is left to it; a test holds both to the same answer.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from aish.core.json import JsonValue
from aish.templates.values import text_of

_PART = r"(?:\.[A-Za-z][A-Za-z0-9_]*|\[[0-9]{1,6}\])"
_PLACE = re.compile(rf"\{{\{{[ ]*([A-Za-z][A-Za-z0-9_]*{_PART}*)[ ]*\}}\}}")
_STEP = re.compile(r"[A-Za-z][A-Za-z0-9_]*|\[[0-9]+\]")
_MARKS = ("{{", "{%", "{#")
# Names that mean something to Jinja2 itself.
_RESERVED = frozenset(
    {"true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is", "if", "else"}
)

Path = tuple[str | int, ...]


def is_template(source: str) -> bool:
    """Whether Jinja2 would see anything but text."""
    return any(mark in source for mark in _MARKS)


@lru_cache(maxsize=512)
def parts_of(source: str) -> tuple[str | Path, ...] | None:
    """Text and places in turn, or `None` where it takes Jinja2 to tell."""
    # Jinja2 makes every line end a LF.
    if "\r" in source:
        return None
    parts: list[str | Path] = []
    end = 0
    for match in _PLACE.finditer(source):
        path = _path(match.group(1))
        if path is None:
            return None
        parts += [source[end : match.start()], path]
        end = match.end()
    parts.append(source[end:])
    if any(isinstance(part, str) and (is_template(part) or part.endswith("{")) for part in parts):
        return None
    return tuple(parts)


def look_up(path: Path, context: Mapping[str, JsonValue]) -> tuple[bool, JsonValue]:
    """Whether the place is there as plain JSON, and what stands there."""
    value: JsonValue = context
    for key in path:
        if isinstance(key, str):
            if not isinstance(value, Mapping) or key not in value:
                return False, None
            value = value[key]
        else:
            if not isinstance(value, list | tuple) or key >= len(value):
                return False, None
            value = value[key]
    return True, value


def rendered(source: str, context: Mapping[str, JsonValue]) -> str | None:
    """The text, or `None` where Jinja2 has to render it (or to say what is wrong)."""
    parts = parts_of(source)
    if parts is None:
        return None
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        found, value = look_up(part, context)
        if not found:
            return None
        texts.append(text_of(value))
    return "".join(texts)


def _path(text: str) -> Path | None:
    keys = tuple(int(step[1:-1]) if step.startswith("[") else step for step in _STEP.findall(text))
    return None if keys[0] in _RESERVED else keys
