"""JSON values as YAML 1.2 that a person likes to read: `outputs` on stdout."""

import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

from aish.core.json import JsonValue
from aish.core.text import for_terminal
from aish.sinks.json_text import json_text, safe_json

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
# Words that some reader of YAML takes for something else than a string.
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def yaml_text(value: JsonValue) -> str:
    """The value as a YAML document with a line end."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        return "".join(f"{line}\n" for line in _block(value, ""))
    return f"{_scalar(value)}\n"


def _block(value: Any, indent: str) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    pairs: Iterator[tuple[str, Any]]
    if isinstance(value, Mapping):
        pairs = ((f"{_scalar(key)}:", item) for key, item in value.items())
    else:
        pairs = (("-", item) for item in value)
    for lead, item in pairs:
        if isinstance(item, (Mapping, list, tuple)) and item:
            lines = _block(item, f"{indent}  ")
            # The first of an item stands beside its dash.
            first = "" if lead != "-" else f" {next(lines).lstrip()}"
            yield f"{indent}{lead}{first}"
            yield from lines
        elif isinstance(item, str) and _is_literal(item):
            # `-` or `+`: whether the text itself ends its last line.
            yield f"{indent}{lead} |{'' if item.endswith(chr(10)) else '-'}"
            yield from (
                f"{indent}  {line}" if line else "" for line in item.removesuffix("\n").split("\n")
            )
        else:
            yield f"{indent}{lead} {_scalar(item)}"


def _scalar(value: JsonValue) -> str:
    if not isinstance(value, str):
        return json_text(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # YAML does not know the surrogate pairs of JSON, and has an escape of its own for them.
    return safe_json(encode_basestring(value), lambda character: f"\\U{ord(character):08x}")


def _is_literal(text: str) -> bool:
    """Whether a `|` block says exactly this."""
    body = text.removesuffix("\n")
    return (
        "\n" in body
        and not body.endswith("\n")
        and not body.startswith((" ", "\n"))
        and "\t" not in body
        and "##" not in body
        and for_terminal(text) == text
    )
