"""JSON by the C functions that `json` is made of, for servers that a thousand tests start.

`json` imports `re`, `enum` and `collections` for what it does in Python, which takes longer than
all else that such a server does.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any


class _Context:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}  # ruff: ignore[mutable-class-default] - the scanner empties it


def _refuse(value: Any) -> Any:
    raise TypeError(f"{value!r} is no JSON")


_encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
_context: Any = _Context()
_scan: Any = make_scanner(_context)


def dumps(value: Any) -> str:
    """Return the text that `json.dumps` returns with separators without spaces."""
    return "".join(_encode(value, 0))


def loads(raw: bytes | str) -> Any:
    """Return the value of one line."""
    text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    value, _ = _scan(text.strip(), 0)
    return value
