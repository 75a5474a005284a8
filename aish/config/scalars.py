"""What a plain scalar means: the core schema of YAML 1.2 and nothing else (F10).

`no`, `22:22` and `2026-01-01` are text, `012` is 12.
"""

import math
import re

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_LONGEST_NUMBER = 300


def plain_value(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar.

    Raises:
        ValueError: a number that JSON cannot write, or a very long one.
    """
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        return _number(text)
    return text


def _number(text: str) -> int | float | str:
    if _NOT_FINITE.match(text):
        raise ValueError(f"`{text}` is no number that JSON knows")
    if not (_FLOAT.match(text) or _OCTAL.match(text) or _HEXADECIMAL.match(text)):
        return text
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    if _INTEGER.match(text):
        return int(text)
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"`{text}` is too large a number")
    return value
