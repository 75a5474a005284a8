"""Failed model requests: errors of `transport`, whether and when to retry.

Clock and random numbers are parameters, so that tests need not wait.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

import anyio

from aish.config.model import ModelEntry, RetryPolicy
from aish.core.errors import AishError, StepFailedError, UnavailableError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.patterns import lazy_pattern
from aish.core.protocols import Clock
from aish.core.wires import CHAT
from aish.net.http import unknown_host
from aish.net.rate_limits import (
    LONGEST_WAIT,
    OVERLOADED,
    RATE_LIMITED,
    RETRYABLE,
    RetryAdvice,
    header_wait,
    parse_body,
    retry_advice,
)
from aish.system.clock import SystemClock
from aish.system.files import MANY_FILES, MANY_FILES_HINT, lacks_descriptors

FIRST_DELAY = 0.5
LONGEST_JITTER = 1.0
"""Seconds added to a wait that the endpoint asks for, at most."""
_UNAUTHORIZED = 401
_REFUSED = frozenset({_UNAUTHORIZED, 402, 403})
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
    """The consequences of a failure for the next attempt.

    `wait` is the endpoint's own hint in seconds; `cools` delays every request to the endpoint;
    `unavailable` distinguishes an unreachable endpoint from one that refuses this request.
    `overload` says that it is overloaded, `refuses_key` that another key may be accepted.
    """

    retry: bool
    wait: float | None = None
    cools: bool = False
    unavailable: bool = True
    overload: bool = False
    refuses_key: bool = False


BROKEN = Advice(retry=True)
"""Connect, TLS, reset, a time-out, a stream that broke off."""

CROWDED = Advice(retry=True, cools=True, overload=True)
"""Fewer requests at a time may help."""

MALFORMED = Advice(retry=True, unavailable=False)
"""The model said what its server cannot read: it is there, and may do better."""

REFUSED = Advice(retry=False, unavailable=False)
"""The request, or its answer, is no good; another try would not help."""


def is_malformed(words: str) -> bool:
    """Return true if an error reports an unparsable model answer, in the words of llama.cpp."""
    return "model produced output that does not match" in words


def judge_status(status: int, headers: Mapping[str, str], body: str, now: float) -> Advice:
    """The meaning of a status of 300 or more; `headers` in lower case, `now` since the epoch."""
    if status >= _SERVER_ERROR and is_malformed(body):
        return MALFORMED
    status = _effective_status(status, body)
    parsed_body = parse_body(body)
    advice = retry_advice(parsed_body, status)
    is_limited = status == RATE_LIMITED
    quota = is_limited and (advice.spent or is_quota(_error_words(_error_in(parsed_body))))
    retry = status in RETRYABLE and not quota
    should = headers.get("x-should-retry", "").strip().lower()
    if should in {"true", "false"}:
        retry = should == "true"
    wait = header_wait(headers, now, limited=is_limited)
    return Advice(
        retry=retry,
        wait=advice.wait_at(now) if wait is None else wait,
        cools=is_limited and not quota,
        unavailable=retry
        or quota
        or status in _REFUSED
        or status >= _SERVER_ERROR
        or _is_about_the_key(status, body),
        overload=status in OVERLOADED and not quota,
        refuses_key=status == _UNAUTHORIZED or _is_about_the_key(status, body),
    )


def judge_code(
    code: str | int | None, *, retryable: bool, told: RetryAdvice | None = None, now: float = 0.0
) -> Advice:
    """The meaning of an error inside a stream; its code may be a status, or a word."""
    text = str(code) if code is not None else ""
    told = told or RetryAdvice()
    wait = told.wait_at(now)
    if told.spent or is_quota((text,)):
        return Advice(retry=False)
    if _is_about_the_key(_BAD_REQUEST, text):
        return Advice(retry=False, refuses_key=True)
    if text in _STATUSES:
        return replace(judge_status(int(text), {}, "", 0.0), wait=wait)
    overload = retryable and any(word in text.lower() for word in _OVERLOAD_WORDS)
    return Advice(retryable, wait, unavailable=retryable, overload=overload)


def delay_before(attempt: int, advice: Advice, policy: RetryPolicy, chance: float) -> float:
    """Seconds before attempt number `attempt` + 1; `chance` is in [0, 1).

    Full jitter, so that clients that failed together do not retry together. A hint is a lower
    bound, with a little jitter on top for the same reason; one of 0 is a wait as usual.
    """
    if advice.wait:
        return advice.wait + chance * min(advice.wait, LONGEST_JITTER)
    return chance * min(policy.max_delay, FIRST_DELAY * 2.0 ** (attempt - 1))


def longest_wait(policy: RetryPolicy) -> float:
    """Seconds that an endpoint may ask for: a policy with short waits of its own allows no less."""
    return max(policy.max_delay, LONGEST_WAIT)


def is_quota(words: tuple[str, ...]) -> bool:
    """Return true if an error's code or type reports an exhausted quota."""
    lowered = [word.lower() for word in words]
    return any(
        word in _QUOTA_CODES or any(part in word for part in _QUOTA_WORDS) for word in lowered
    )


def _error_in(body: Any) -> JsonObject:
    """The error that a body reports; empty if there is none."""
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error", body) if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _error_words(error: JsonObject) -> tuple[str, ...]:
    words = (error.get("code"), error.get("type"))
    return tuple(word for word in words if isinstance(word, str))


@frozen
class RetryTiming:
    """Environment of retries; `chance` returns a number in [0, 1).

    `waits` is false in a replay, which does not wait.
    """

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    chance: Callable[[], float] = random.random  # ruff: ignore[suspicious-non-cryptographic-random-usage] - not a secret
    waits: bool = True


_CREDENTIALS = frozenset({401, 403})
_NOT_THERE = frozenset({404, 405})
_REDIRECTS = range(300, 400)
_DOCTYPE = 20
_BAD_REQUEST = 400
_BAD_REQUESTS = frozenset({_BAD_REQUEST, 422})
_NOT_TAKEN = lazy_pattern(
    r"(?i)max_completion_tokens|unsupported|not supported|unrecogni|extra_forb"
)
_TOO_LONG = lazy_pattern(
    r"(?i)exceeds? (?:the |this model's )?(?:available |maximum )?context|context_length_exceeded"
    r"|maximum context length|prompt is too long|context_window_exceeded"
)
TOO_LONG_HINT = (
    "the prompt is too long for the model: `context: {max_tokens: N}` bounds a conversation,"
    " `result_limit` the result of a tool"
)
# A request that the server cannot read, which it calls an error of its own.
_INVALID = lazy_pattern(
    r"(?i)validation ?errors? for|input should be|field required|json\.exception\.type_error"
    r"|value is not a valid|cannot unmarshal|failed to deserialize|unknown (?:field|variant)\b"
    r"|must have required property|unrecognized request argument"
)
# As gateways word it that answer with 400.
_ABOUT_THE_KEY = lazy_pattern(
    r"(?i)(?:invalid|incorrect|missing|expired|no|provide|pass)\W{1,3}(?:an? |valid |your )?"
    r"(?:api[ _-]?key\b|credentials)"
    r"|api[ _-]?key\b.{0,3} (?:is )?(?:not valid|invalid|incorrect|missing|required|expired)"
    r"|invalid_api_key|api_key_invalid|auth_error|authentication_error"
)
EMPTY_HINT = (
    "the server may have failed after its first bytes, or the prompt may fill its context: its log"
    " says so; a gateway may have held the answer back"
)
UNFINISHED_HINT = (
    "the server may end an answer when another request comes; `models.{}.finish: optional` is for"
    " an endpoint whose whole answers end so"
)
PAGE_HINT = "this is a web page: is `base_url` right, and is there a login or a proxy in front?"
_CACHE_MARKS = ("cache_control", "prompt_cache_options", "prompt_cache_breakpoint")
# After a change of the key, of the model, or of the account behind a gateway.
_OWN_THOUGHTS = (
    *("encrypted content", "encrypted_content", "items are not persisted"),
    *("invalid `signature`", "invalid signature in thinking"),
    "without its required",
)
# How endpoints name what is thought in plain words, and how they say that they know no such field.
_PLAIN_THOUGHTS = ("reasoning", "thinking")
_UNKNOWN_FIELD = (
    *("unsupported", "not supported", "not permitted", "not allowed", "unknown", "unexpected"),
    *("unrecognized", "extra inputs", "extra fields"),
)
# Wordings of endpoints that do not support a schema together with tools.
_TOOLS = ("tool", "function")
_SCHEMA = (
    *("response_format", "response format", "response_mime_type", "response mime type"),
    *("response_schema", "json_schema", "json mode", "json response", "structured output"),
    *("output_config", "output_format"),
    "grammar",
)


class EndpointError(StepFailedError):
    """A model's endpoint refused the request, or its response is invalid."""

    code = "endpoint_error"


class AttemptError(Exception):
    """A failed attempt; `hint` is for the user, if there is no other attempt."""

    def __init__(self, message: str, advice: Advice, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.hint = hint

    def final(self, alias: str, afterthought: str = "") -> AishError:
        """The error raised by this package (exit 5, or exit 1 for an invalid request)."""
        kind = UnavailableError if self.advice.unavailable else EndpointError
        error = kind(self.message + afterthought, where=f"model `{alias}`", hint=self.hint)
        # Refused credentials and an exhausted quota need action by the user.
        error.retryable = self.advice.unavailable and self.advice.retry
        return error


def too_late(deadline: str, entry: ModelEntry) -> AttemptError:
    """The error for the exceeded deadline of that name in `timeout`."""
    seconds: float = getattr(entry.timeout, deadline)
    texts = {
        "first_token": f"no answer within {seconds:g} s",
        "idle": f"the answer stopped: nothing new for {seconds:g} s",
        "turn": f"the turn took longer than {seconds:g} s",
    }[deadline]
    advice = Advice(retry=False) if deadline == "turn" else BROKEN
    return AttemptError(texts, advice, f"`models.{entry.alias}.timeout.{deadline}` sets this limit")


def error_of_malformed(said: str) -> AttemptError:
    """The error for a model's answer that its own server could not parse."""
    hint = "a larger model, fewer `tools:` or a shorter prompt may help"
    return AttemptError(f"the model's answer is malformed: {said}", MALFORMED, hint)


def not_connected(why: str, entry: ModelEntry, error: BaseException | None = None) -> AttemptError:
    """The error for a failed connection; `error` has the cause."""
    origin = origin_of(entry.base_url)
    if error is not None and lacks_descriptors(error):
        message = f"no connection to {origin}: {MANY_FILES}"
        return AttemptError(message, CROWDED, MANY_FILES_HINT)
    if "CERTIFICATE_VERIFY_FAILED" in why:
        hint = f"`models.{entry.alias}.verify_tls: FILE` names the authorities to trust, in PEM"
        return AttemptError(f"the certificate of {origin} is not trusted: {why}", BROKEN, hint)
    if error is not None and (unknown := unknown_host(error, origin)):
        hint = f"check the name in `models.{entry.alias}.base_url`, and the network"
        return AttemptError(f"no connection to {origin}: {unknown}", BROKEN, hint)
    hint = f"is the server running at {origin}?"
    return AttemptError(f"no connection to {origin}: {why}", BROKEN, hint)


def hint_in_band(message: str) -> str | None:
    """The hint for an error inside an answer."""
    return TOO_LONG_HINT if _TOO_LONG.search(message) else None


def hint_for(status: int, entry: ModelEntry, body: str = "") -> str | None:
    """The hint for a status, and what the endpoint says with it."""
    status = _effective_status(status, body)
    if hint := _hint_in(body, status, entry):
        return hint
    refused = status in _CREDENTIALS or _is_about_the_key(status, body)
    named = entry.key_env if entry.key_source is None else entry.key_source.place
    if refused and named:
        which = "in" if entry.key_source is None else "of"
        return f"is the key {which} `{named}` one for {origin_of(entry.base_url)}?"
    if refused:
        return f"`models.{entry.alias}.key_env` names the variable that holds the key"
    if status in _NOT_THERE:
        return "is `base_url` right (it often ends in `/v1`), and does the endpoint have the model?"
    if status in _REDIRECTS:
        return "redirects are not followed: set `base_url` to where the endpoint is"
    return None


def _hint_in(body: str, status: int, entry: ModelEntry) -> str | None:
    if _TOO_LONG.search(body):
        return TOO_LONG_HINT
    if status in _BAD_REQUESTS and entry.json_schema and _names_schema(body.lower()):
        return f"`models.{entry.alias}.json_schema: false` describes the schema in words instead"
    if (
        entry.api == CHAT
        and status in _BAD_REQUESTS
        and "max_tokens" in body
        and _NOT_TAKEN.search(body)
    ):
        return "write `max_completion_tokens` instead of `max_tokens` in `params`"
    return PAGE_HINT if is_page(body) else None


def _effective_status(status: int, body: str) -> int:
    """The status, 400 for a request that the server calls an error of its own."""
    return _BAD_REQUEST if status == _SERVER_ERROR and _INVALID.search(body) else status


def _names_schema(words: str) -> bool:
    return any(map(words.__contains__, _SCHEMA))


def _is_about_the_key(status: int, words: str) -> bool:
    return status == _BAD_REQUEST and _ABOUT_THE_KEY.search(words) is not None


def is_page(text: str) -> bool:
    return text.lstrip()[:_DOCTYPE].lower().startswith(("<!doctype html", "<html"))


def refuses_usage(failure: AttemptError) -> bool:
    """Return true if an endpoint refuses to be asked for token counts in a stream."""
    if failure.advice.retry or failure.advice.unavailable:
        return False
    words = failure.message.lower()
    return "stream_options" in words or "include_usage" in words


def refuses_own_thoughts(failure: AttemptError) -> bool:
    """Return true if an endpoint refuses reasoning of an earlier answer; a guess if it is plain."""
    if failure.advice.retry or failure.advice.unavailable:
        return False
    words = failure.message.lower()
    is_unknown = any(map(words.__contains__, _UNKNOWN_FIELD))
    is_plain = is_unknown and any(map(words.__contains__, _PLAIN_THOUGHTS))
    return is_plain or any(map(words.__contains__, _OWN_THOUGHTS))


def refuses_cache_marks(failure: AttemptError) -> bool:
    """Return true if an endpoint refuses the marks up to which it is to cache."""
    if failure.advice.retry or failure.advice.unavailable:
        return False
    words = failure.message.lower()
    return any(map(words.__contains__, _CACHE_MARKS))


def refuses_schema_beside_tools(failure: AttemptError) -> bool:
    """Return true if an endpoint refuses a schema beside tools; a wrong guess costs a request."""
    words = failure.message.lower()
    return refuses_schema(failure) and any(map(words.__contains__, _TOOLS))


def refuses_schema(failure: AttemptError) -> bool:
    """Return true if an endpoint refuses the schema of an answer."""
    if failure.advice.retry or failure.advice.unavailable:
        return False
    return _names_schema(failure.message.lower())


def origin_of(url: str | None) -> str:
    """Scheme, host and port of a URL: the part that may be displayed."""
    parts = urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
