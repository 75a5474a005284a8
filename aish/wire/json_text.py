"""JSON as sent by endpoints: several values in one text, truncated, or with trailing text.

Parsed values are `Any`: this is one of the modules that check the shape of data.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from aish.core.json import make_encoder
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten
from aish.core.text import for_line

DONE: Final = "[DONE]"
"""The marker that ends a stream."""

SHOWN: Final = 200

Mask = Callable[[str], str]
"""A text without its secrets; this room does not know them."""

_DECODER: Final = json.JSONDecoder(strict=False)
# The text at which a parser may stop: empty, or part of a literal, a number, an escape.
_BREAKS_OFF: Final = lazy_pattern(
    r"t(ru?)?|f(a(ls?)?)?|n(ul?)?|-?(I[a-z]*)?|Na?|\.|[eE][-+]?|(\\?u[0-9a-fA-F]{0,4})?"
)
_SPACE: Final = " \t\r\n"
_LEADING: Final = lazy_pattern(r"[ \t\r\n]*")
_BETWEEN: Final = lazy_pattern(r"[ \t\r\n]*(?:data:[ \t\r\n]*)?")
raw_decode: Final = _DECODER.raw_decode
"""One value from a place in a text on, and where it ends; raises `ValueError`."""


class BrokenJsonError(ValueError):
    """Text that is not JSON from `rest` on."""

    def __init__(self, rest: str) -> None:
        super().__init__("no JSON value")
        self.rest = rest


def json_values(text: str) -> Iterator[Any]:
    """The JSON values in a text, one after the other; `DONE` for the marker, which ends it.

    `data:` between values is skipped.

    Raises:
        BrokenJsonError: the rest is not valid JSON.
    """
    at = _end_of(_LEADING, text, 0)
    while at < len(text):
        if text[at : at + len(DONE)] == DONE:
            yield DONE
            return
        try:
            value, at = raw_decode(text, at)
        except (ValueError, RecursionError):
            raise BrokenJsonError(text[at:]) from None
        yield value
        at = _end_of(_BETWEEN, text, at)


def is_cut(text: str) -> bool:
    """Return true if a text is only the beginning of a JSON value."""
    text = text.strip(_SPACE)
    try:
        raw_decode(text)
    except json.JSONDecodeError as error:
        return bool(text) and (
            error.msg.startswith("Unterminated")
            or _BREAKS_OFF.fullmatch(text, error.pos) is not None
        )
    except (ValueError, RecursionError):
        return False
    return False


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that the whole text is, strictly (finite numbers), else `None`."""
    try:
        value = _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def merge_field(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add a chunk's value of a field to the value of earlier chunks.

    Objects merge, lists and texts are appended (a text that only repeats adds nothing), other
    values are replaced. Empty values are ignored.
    """
    if value is None or value in ("", [], {}):
        return
    known = fields.get(name)
    if isinstance(known, dict) and isinstance(value, dict):
        for inner, part in value.items():
            merge_field(known, inner, part)
    elif isinstance(known, list) and isinstance(value, list):
        known.extend(value)
    elif isinstance(known, str) and isinstance(value, str):
        fields[name] = known if known == value else known + value
    else:
        fields[name] = value


def excerpt(text: str, mask: Mask, length: int = SHOWN) -> str:
    """The beginning of an untrusted text on one line, made visible.

    It is masked before it is cut: half a secret would not be recognised.
    """
    return for_line(shorten(mask(text).strip(), length))


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "it matches nothing too"
    return found.end()


def _refuse(constant: str) -> None:
    raise ValueError(f"`{constant}` is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        _refuse(digits)
    return number


# `json.loads` makes a decoder for each text unless all options are the default.
_STRICT: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _plain(value: Any) -> Any:
    """A `Mapping` or `Sequence` that is not a `dict` or `list`, as one."""
    return dict(value) if hasattr(value, "keys") else list(value)


dump: Final = make_encoder(_plain)
"""Compact JSON that can always be encoded as UTF-8 with `replace`."""
