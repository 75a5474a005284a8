"""Values in templates, and rendering of templates that only insert values.

A plain `{{ inputs.name }}` is rendered without Jinja2.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import Any

from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern
from aish.templates.limits import TemplateLimitError

_SCALARS = (bool, int, float, type(None))
# Python does not convert longer numbers to text.
_MAX_DIGITS = 4_300
_MAX_BITS = int(_MAX_DIGITS * log2(10))
_WORDS = frozenset({"", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~"})


def text_of(value: Any) -> str:
    """The form of a value in the middle of text.

    Raises:
        TemplateLimitError: it has no form as text, or a number too large for text.
    """
    if isinstance(value, str):
        return str(value)
    return json_of(value)


def json_of(value: Any, indent: int | None = None) -> str:
    """A value as JSON, Unicode unescaped."""
    return json.dumps(plain(value), ensure_ascii=False, indent=indent)


def plain(value: Any) -> JsonValue:
    """The value in JSON's own types: generators become lists, marked-up text becomes text.

    Raises:
        TemplateLimitError: it holds a value with no form in JSON, or too long for text.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise TemplateLimitError(f"a number of more than {_MAX_DIGITS:,} digits is no text")
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {text_of(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range) or hasattr(value, "__next__"):
        return [plain(inner) for inner in value]
    # A name that is not defined is an object that says so when its text is asked for.
    hash(value)
    kind = "a method" if callable(value) else f"a value of type {type(value).__name__}"
    raise TemplateLimitError(f"{kind} has no place in a pipeline; is a call or `| list` missing?")


def yaml_of(value: Any) -> str:
    """A value as YAML in block style, without a final line end."""
    return "\n".join(_lines(plain(value), ""))


def _lines(value: JsonValue, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        rows = [(f"{_yaml_scalar(key)}:", inner) for key, inner in value.items()]
    elif isinstance(value, list) and value:
        rows = [("-", inner) for inner in value]
    else:
        yield f"{indent}{_yaml_scalar(value)}"
        return
    for lead, inner in rows:
        if isinstance(inner, dict | list) and inner:
            yield f"{indent}{lead}"
            yield from _lines(inner, f"{indent}  ")
        else:
            yield f"{indent}{lead} {_yaml_scalar(inner)}"


def _yaml_scalar(value: JsonValue) -> str:
    """A plain word unchanged, other text quoted as in JSON, which YAML reads alike."""
    if isinstance(value, str):
        plainly = value.replace("_", "").replace("-", "").isalpha() and value[:1].isalpha()
        if plainly and value.isascii() and value.lower() not in _WORDS:
            return value
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value, ensure_ascii=False)


_PART = r"(?:\.[A-Za-z][A-Za-z0-9_]*|\[[0-9]{1,6}\])"
_PLACE = lazy_pattern(rf"\{{\{{[ ]*([A-Za-z][A-Za-z0-9_]*{_PART}*)[ ]*\}}\}}")
_STEP = lazy_pattern(r"[A-Za-z][A-Za-z0-9_]*|\[[0-9]+\]")
_MARKS = ("{{", "{%", "{#")
# Names with a meaning in Jinja2 itself.
_RESERVED = frozenset(
    {"true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is", "if", "else"}
)

NamePath = tuple[str | int, ...]


def is_template(source: str) -> bool:
    """Return true if Jinja2 would see anything but text."""
    return any(mark in source for mark in _MARKS)


@lru_cache(maxsize=512)
def parts_of(source: str) -> tuple[str | NamePath, ...] | None:
    """Alternating text and paths, or `None` if only Jinja2 can parse it."""
    # Jinja2 converts every line end to LF.
    if "\r" in source:
        return None
    parts: list[str | NamePath] = []
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


def look_up(path: NamePath, context: Mapping[str, JsonValue]) -> tuple[bool, JsonValue]:
    """Return true if the path exists as plain JSON, and its value."""
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


def render_plain(source: str, context: Mapping[str, JsonValue]) -> str | None:
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


def _path(text: str) -> NamePath | None:
    keys = tuple(int(step[1:-1]) if step.startswith("[") else step for step in _STEP.findall(text))
    return None if keys[0] in _RESERVED else keys


class ProjectNames(dict[str, JsonValue]):  # ruff: ignore[subclass-builtin] - one is made for each item
    """The names a template sees, and the folder in which its `readfile` may read."""

    def __init__(self, names: Mapping[str, JsonValue], root: Path) -> None:
        super().__init__(names)
        self.root = root


def with_names(
    context: Mapping[str, JsonValue], more: Mapping[str, JsonValue]
) -> Mapping[str, JsonValue]:
    """The context with more names, and the same folder for `readfile`."""
    names = {**context, **more}
    return ProjectNames(names, context.root) if isinstance(context, ProjectNames) else names
