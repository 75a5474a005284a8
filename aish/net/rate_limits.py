"""The time after which a busy endpoint wants to be asked again.

It stands in headers of many names, or in the body: in a field, or in words.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

LONGEST_WAIT: Final = 120.0
"""An endpoint may ask for a wait of so many seconds, if the file allows no more."""
RATE_LIMITED: Final = 429
RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
OVERLOADED: Final = frozenset({RATE_LIMITED, 503, 529})
_LOOKED_AT: Final = 8192
_PIECE: Final = (
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?"
    r"(milliseconds?|millis|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
)
_PIECES: Final = lazy_pattern(rf"(?i){_PIECE}")
_DURATION: Final = lazy_pattern(rf"(?i)(?:{_PIECE}\s?)+")
_WORDS: Final = lazy_pattern(
    r"(?i)(?:try(?:ing)? (?:it )?again|retry(?:ing)?|wait)\s"
    r"(?:(?:in|after|for|at least|another|about)\s)*"
    rf"((?:{_PIECE}(?:,? and |,? ?))+)"
)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = lazy_pattern(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
# Of the fields of an error, without `_` and `-`.
_FIELDS: Final = {
    "retryafter": 1.0,
    "retryafterseconds": 1.0,
    "retryaftersecs": 1.0,
    "retryafterms": 0.001,
}
_RESET: Final = lazy_pattern(r"(?:.+-)?rate-?limit-(?:.+-)?reset(?:-.+)?")
# `RateLimit` of the drafts of the IETF: `limit=9, remaining=0, reset=12` and `"name";r=0;t=12`.
_STRUCTURED: Final = lazy_pattern(r"\br(?:emaining)?=0\s?[;,]\s?(?:t|reset)=([0-9]{1,9})\b")
_SINCE_1970: Final = 1e8
"""More seconds than this are no wait but a time; a thousand times as many, one in milliseconds."""


@frozen
class RetryAdvice:
    """Advice of an error about the next attempt.

    `wait` is in seconds; `headers` are those that a gateway repeats in the error. `spent` says that
    a quota is used up which does not renew within minutes.
    """

    wait: float | None = None
    spent: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def wait_at(self, now: float) -> float | None:
        """The seconds to wait, at this time since the epoch."""
        if self.wait is not None:
            return self.wait
        return header_wait(self.headers, now, limited=True)


def seconds_to_wait(status: int, headers: Mapping[str, str], body: str, now: float) -> float | None:
    """The seconds that an answer with a status asks to wait; headers come first."""
    wait = header_wait(headers, now, limited=status == RATE_LIMITED)
    return retry_advice(parse_body(body), status).wait_at(now) if wait is None else wait


def header_wait(headers: Mapping[str, str], now: float, *, limited: bool) -> float | None:
    """Seconds from headers, whose names are in lower case; `None` without a valid one.

    `retry-after` comes first, then a gateway's own name for it. The time at which a limit is
    renewed counts only for a request that was `limited`.
    """
    own = [name for name in headers if name.endswith(("-retry-after", "-retry-after-ms"))]
    for name in ("retry-after-ms", "retry-after", *own):
        text = headers.get(name, "")
        if (seconds := _number(text)) is not None:
            return seconds / 1000.0 if name.endswith("-ms") else seconds
        if (until := _until(text, now)) is not None:
            return until
    return max(_resets(headers, now), default=None) if limited else None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """The waits until the limits that are used up are renewed."""
    for name, text in headers.items():
        if name.endswith("ratelimit"):
            yield from (float(found[1]) for found in _STRUCTURED.finditer(text))
        elif _RESET.fullmatch(name):
            remaining = name.replace("reset-after", "reset").replace("reset", "remaining")
            left = headers.get(remaining)
            is_spent = _number(left) == 0 if left else remaining.endswith("limit-remaining")
            if is_spent and (wait := _until(text.strip(), now)) is not None and wait > 0:
                yield wait


def _until(text: str, now: float) -> float | None:
    """Seconds from a number, a duration or a time."""
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number > _SINCE_1970:
            return (number / 1000.0 if number > _SINCE_1970 * 1000 else number) - now
        return number
    return _duration(text) if _DURATION.fullmatch(text) else _until_date(text, now)


def _duration(text: str) -> float:
    pieces = ((float(number), unit.lower()) for number, unit in _PIECES.findall(text))
    return sum(
        number * (0.001 if unit.startswith(("ms", "milli")) else _SECONDS[unit[0]])
        for number, unit in pieces
    )


def retry_advice(error: Any, status: int = RATE_LIMITED) -> RetryAdvice:
    """The advice in an error, as JSON or as text; words count only for a busy endpoint."""
    text = (error if isinstance(error, str) else _dump(error))[:_LOOKED_AT]
    wait, spent = None, "insufficient_quota" in text
    headers: dict[str, str] = {}
    for scope in _scopes(error):
        found, is_daily = _google(scope)
        spent = spent or is_daily
        if wait is None:
            wait = _field(scope) if found is None else found
        if isinstance(repeated := scope.get("headers"), dict):
            headers |= {name.lower(): str(value) for name, value in repeated.items()}
    if wait is None and not headers and status in OVERLOADED and (said := _WORDS.search(text)):
        wait = _duration(said[1]) or None
    return RetryAdvice(wait, spent, headers)


def _scopes(error: Any) -> Iterator[dict[str, Any]]:
    """The objects of an error in which a wait may stand."""
    if isinstance(error, list):
        error = error[0] if error else None
    for outer in (error, _member(error, "error")):
        for scope in (outer, _member(outer, "metadata")):
            if isinstance(scope, dict):
                yield scope


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _field(scope: dict[str, Any]) -> float | None:
    for name, value in scope.items():
        unit = _FIELDS.get(name.lower().replace("_", "").replace("-", ""))
        if unit is None or isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        text = str(value).strip()
        if _NUMBER.fullmatch(text):
            return float(text) * unit
        if _DURATION.fullmatch(text):
            return _duration(text)
    return None


def _google(scope: dict[str, Any]) -> tuple[float | None, bool]:
    """The wait in the `details` of an error of Google, and whether a quota of the day is spent."""
    details = scope.get("details")
    wait, daily = None, False
    for one in details if isinstance(details, list) else ():
        kind = str(one.get("@type", "")).rpartition(".")[2] if isinstance(one, dict) else ""
        delay = one.get("retryDelay") if kind == "RetryInfo" else None
        if isinstance(delay, str) and _DURATION.fullmatch(delay):
            wait = _duration(delay)
        daily = daily or (kind == "QuotaFailure" and "perday" in str(one.get("violations")).lower())
    return wait, daily


def parse_body(body: str) -> Any:
    """The value of a JSON body, or the body."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _dump(error: Any) -> str:
    try:
        return json.dumps(error, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until_date(text: str, now: float) -> float | None:
    """Seconds until a date as HTTP or RFC 3339 writes them."""
    if not text:
        return None
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        read = datetime.fromisoformat if text[:4].isdigit() else parsedate_to_datetime
        date = read(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, OverflowError):
        return None
