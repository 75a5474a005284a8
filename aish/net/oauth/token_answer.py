"""The answer of a token endpoint, in all the spellings that are in use. Pure."""

import json
import math
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern

_GOOD: Final = frozenset({200, 201})
_FORM: Final = "application/x-www-form-urlencoded"
_VISIBLE: Final = lazy_pattern(r"[\x21-\x7e]+")
_MOST_FIELDS: Final = 100
_LONGEST_LIFE: Final = 10 * 365 * 24 * 3600.0


@frozen
class IssuedToken:
    """A bearer token, valid for so many seconds; `None`: until it is refused."""

    value: str
    seconds: float | None
    scopes: tuple[str, ...] | None
    refresh_token: str | None = None


@frozen
class TokenRefusal:
    """An answer without a token. `error` is the code of OAuth, empty where there is none."""

    status: int
    error: str
    said: str
    """What the server says of it, or the start of its answer."""


def read_token_answer(status: int, content_type: str, body: bytes) -> IssuedToken | TokenRefusal:
    """Read an answer, a token or not."""
    text = body.decode("utf-8", "replace")
    fields = _fields(content_type, text)
    if fields is None:
        return TokenRefusal(status, "", text.strip())
    error = fields.get("error")
    if error is not None or status not in _GOOD:
        code = error if isinstance(error, str) else ""
        said = fields.get("error_description")
        known = said if isinstance(said, str) else ""
        return TokenRefusal(status, code, known if code else known or text.strip())
    return _read_token(status, fields)


def _fields(content_type: str, text: str) -> Mapping[str, JsonValue] | None:
    """The fields that have a value, `None` where it is no object."""
    try:
        if content_type.partition(";")[0].strip().lower() == _FORM:
            found: JsonValue = dict(parse_qsl(text, max_num_fields=_MOST_FIELDS))
        else:
            found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in found.items() if not _is_absent(value)}


def _is_absent(value: JsonValue) -> bool:
    return value is None or value == ""  # ruff: ignore[compare-to-empty-string] - 0 is a value


def _read_token(status: int, fields: Mapping[str, JsonValue]) -> IssuedToken | TokenRefusal:
    value, kind = fields.get("access_token"), fields.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.strip().lower() != "bearer":
        return TokenRefusal(status, "", f"its token is of the type `{kind}`, and not `Bearer`")
    if not isinstance(value, str):
        return TokenRefusal(status, "", "its answer has no `access_token`")
    if not _VISIBLE.fullmatch(value):
        return TokenRefusal(status, "", "its `access_token` cannot be sent in a header")
    renewal = fields.get("refresh_token")
    return IssuedToken(
        value,
        _lifetime(fields.get("expires_in")),
        _scopes(fields.get("scope")),
        renewal if isinstance(renewal, str) and renewal.isascii() else None,
    )


def _lifetime(value: JsonValue) -> float | None:
    """Seconds as a number or as text; `None` where they say nothing of use."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(seconds, _LONGEST_LIFE) if math.isfinite(seconds) and seconds > 0 else None


def _scopes(value: JsonValue) -> tuple[str, ...] | None:
    if isinstance(value, list):
        value = " ".join(one for one in value if isinstance(one, str))
    return tuple(value.split()) if isinstance(value, str) else None
