"""When a model request that failed is sent again, and after how long (L8).

Time and chance are given, so that tests need not wait.
"""

import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field

import anyio

from aish.config.model import RetryPolicy
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.system.clock import SystemClock

MAX_HINT = 120.0
FIRST_DELAY = 0.5
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
_REFUSED = frozenset({401, 402, 403})
_RATE_LIMITED = 429
_OVERLOADED = frozenset({_RATE_LIMITED, 503, 529})
_OVERLOAD_WORDS = ("overload", "rate_limit", "too_many_requests", "capacity", "throttl")
_STATUSES = frozenset(map(str, range(300, 600)))
_SERVER_ERROR = 500
_QUOTA_WORDS = ("billing", "insufficient", "credit", "payment", "balance")
_QUOTA_CODES = frozenset(
    {
        "quota_exceeded",
        "exceeded_current_quota_error",
        "usage_limit_reached",
        "usage_limit_exceeded",
        "account_deactivated",
    }
)


@frozen
class Advice:
    """What a failure means for the next try.

    `wait` is the endpoint's own hint in seconds; `cools` asks every request to the endpoint to
    wait; `unavailable` tells an endpoint that is not there from one that refuses this request.
    `overload` says that it has too much to do (B4).
    """

    retry: bool
    wait: float | None = None
    cools: bool = False
    unavailable: bool = True
    overload: bool = False


BROKEN = Advice(retry=True)
"""Connect, TLS, reset, a time-out, a stream that broke off."""

MALFORMED = Advice(retry=True, unavailable=False)
"""The model said what its server cannot read: it is there, and may do better."""

REFUSED = Advice(retry=False, unavailable=False)
"""The request, or its answer, is no good; another try would not help."""


def is_malformed(words: str) -> bool:
    """Whether an error says that a model's answer is no good, as llama.cpp words it."""
    return "model produced output that does not match" in words


def judge_status(status: int, headers: Mapping[str, str], body: str, now: float) -> Advice:
    """What a status of 300 or more means; `headers` in lower case, `now` since the epoch."""
    if status >= _SERVER_ERROR and is_malformed(body):
        return MALFORMED
    quota = status == _RATE_LIMITED and is_quota(_error_words(body))
    retry = status in _RETRYABLE and not quota
    told = headers.get("x-should-retry", "").strip().lower()
    if told in {"true", "false"}:
        retry = told == "true"
    return Advice(
        retry=retry,
        wait=hinted_wait(headers, now),
        cools=status == _RATE_LIMITED and not quota,
        unavailable=retry or quota or status in _REFUSED or status >= _SERVER_ERROR,
        overload=status in _OVERLOADED and not quota,
    )


def judge_code(code: str | int | None, *, retryable: bool) -> Advice:
    """What an error inside a stream means; its code may be a status, or a word."""
    text = str(code) if code is not None else ""
    if text in _STATUSES:
        return judge_status(int(text), {}, "", 0.0)
    if is_quota((text,)):
        return Advice(retry=False)
    overload = retryable and any(word in text.lower() for word in _OVERLOAD_WORDS)
    return Advice(retry=retryable, unavailable=retryable, overload=overload)


def hinted_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that `retry-after-ms` or `retry-after` ask for; `None` without a usable one."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        seconds = _number(headers.get(name, ""))
        if seconds is not None:
            return seconds / unit
    return _until_date(headers.get("retry-after", ""), now)


def delay_before(attempt: int, advice: Advice, policy: RetryPolicy, chance: float) -> float:
    """Seconds before try number `attempt` + 1; `chance` is in [0, 1).

    Full jitter, so that clients that failed together do not come back together. A hint is a
    lower bound, with a little jitter on top for the same reason.
    """
    if advice.wait is not None:
        return advice.wait + chance * min(advice.wait, 1.0)
    return chance * min(policy.max_delay, FIRST_DELAY * 2.0 ** (attempt - 1))


def is_quota(words: tuple[str, ...]) -> bool:
    """Whether an error's code or type says that money, not time, is missing."""
    lowered = [word.lower() for word in words]
    return any(
        word in _QUOTA_CODES or any(part in word for part in _QUOTA_WORDS) for word in lowered
    )


def _error_words(body: str) -> tuple[str, ...]:
    """The `code` and `type` of an error body."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return ()
    found = (error.get("code"), error.get("type"))
    return tuple(word for word in found if isinstance(word, str))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until_date(text: str, now: float) -> float | None:
    if not text:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, OverflowError):
        return None


@frozen
class RetryTiming:
    """What retries need to know of the world; `chance` gives a number in [0, 1).

    `waits` is false in a replay, where nothing is to be waited for.
    """

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - no secret
    waits: bool = True
