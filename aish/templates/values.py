"""Values as templates take and give them: JSON's own types, and their text (F6).

What is text is put in as it is; anything else as JSON, so that a prompt never shows `None` or
Python's quotes.
"""

import json
from collections.abc import Iterator, Mapping
from math import log2
from typing import Any

from aish.core.json import JsonValue
from aish.templates.limits import TemplateLimitError

_SCALARS = (bool, int, float, type(None))
# Python makes no text of longer numbers.
_MAX_DIGITS = 4_300
_MAX_BITS = int(_MAX_DIGITS * log2(10))
_WORDS = frozenset({"", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~"})


def text_of(value: Any) -> str:
    """What a value is in the middle of text.

    Raises:
        TemplateLimitError: it is nothing that text can hold, or a number too large for text.
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
        TemplateLimitError: it holds something JSON has no word for, or Python makes no text of.
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
    """A value as YAML in block style, without a line end of its own."""
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
    """A word as it is, other text quoted as JSON does, which YAML reads alike."""
    if isinstance(value, str):
        plainly = value.replace("_", "").replace("-", "").isalpha() and value[:1].isalpha()
        if plainly and value.isascii() and value.lower() not in _WORDS:
            return value
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value, ensure_ascii=False)
