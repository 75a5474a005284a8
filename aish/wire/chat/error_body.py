"""An error that comes as JSON inside an answer with status 200 (L7, quirks 23 to 25)."""

from typing import Any, Final

from aish.wire.errors import InBandError
from aish.wire.json_text import Mask, dump, excerpt

_SHOWN: Final = 400
_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
_STATUSES: Final = frozenset(str(status) for status in range(100, 600))
# Words in codes and types that say that the same request would fail again.
_FINAL_WORDS: Final = (
    "quota", "billing", "credit", "payment", "balance", "insufficient_funds", "invalid",
    "context", "not_found", "authentication", "permission", "unauthorized", "forbidden",
    "content_filter", "content_policy", "moderation", "unsupported", "too_large",
)  # fmt: skip
_MONEY_WORDS: Final = _FINAL_WORDS[:6]
_WORD_FIELDS: Final = ("code", "type", "status", "error_type")
_TEXT_FIELDS: Final = ("message", "error_message", "detail", "msg", "error", "reason")


def find_error(value: dict[str, Any], mask: Mask) -> InBandError | None:
    """The error that an event or a body reports, or `None`; `mask` takes secrets out of it.

    An answer has `choices`; without them a message alone is an error too (quirk 24).
    """
    error = value.get("error")
    if error or value.get("object") == "error":
        return in_band_error(error or value, mask)
    choices = value.get("choices")
    if choices:
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (inner := choice.get("error")):
                return in_band_error(inner, mask)
        return None
    if value.get("error_message") or value.get("error_type"):
        return in_band_error(value, mask)
    if choices is None and (isinstance(value.get("message"), str) or value.get("detail")):
        return in_band_error(value, mask)
    return None


def in_band_error(error: Any, mask: Mask) -> InBandError:
    """The typed error for whatever the endpoint put in place of one."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return InBandError(excerpt(_text_of(error), mask, _SHOWN) or "unnamed error")
    code = _code(error)
    text = excerpt(_message(error), mask, _SHOWN)
    status = f"HTTP {code}: " if isinstance(code, int) else ""
    return InBandError(f"{status}{text}", code=code, retryable=_is_retryable(code))


def _message(error: dict[str, Any]) -> str:
    for name in _TEXT_FIELDS:
        if found := error.get(name):
            return _text_of(found)
    return dump(error)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def _code(error: dict[str, Any]) -> str | int | None:
    """A status where there is one; the word instead where it says that money is missing."""
    found = [error[name] for name in _WORD_FIELDS if isinstance(error.get(name), str | int)]
    words = [word for word in found if isinstance(word, str) and word and not word.isdigit()]
    for word in words:
        if any(part in word.lower() for part in _MONEY_WORDS):
            return word
    for number in found:
        if str(number) in _STATUSES:
            return int(number)
    return words[0] if words else None


def _is_retryable(code: str | int | None) -> bool:
    """Whether asking again may help; an error that does not say is taken for a passing one."""
    if isinstance(code, int):
        return code in _RETRYABLE
    return code is None or not any(part in code.lower() for part in _FINAL_WORDS)
