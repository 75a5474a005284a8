"""Errors in answers with status 200, in whatever form the endpoint gives them."""

from typing import Any, Final

from aish.core.patterns import lazy_pattern
from aish.net.rate_limits import RETRYABLE, retry_advice
from aish.wire.errors import InBandError, StreamError, UnreadableStreamError
from aish.wire.json_text import BrokenJsonError, Mask, dump, excerpt, json_values

_SHOWN: Final = 400
_STATUSES: Final = frozenset(str(status) for status in range(100, 600))
# Words in codes and types that say that a retry would fail again.
_FINAL_WORDS: Final = (
    "quota", "billing", "credit", "payment", "balance", "insufficient_funds", "invalid",
    "context", "not_found", "authentication", "permission", "unauthorized", "forbidden",
    "content_filter", "content_policy", "bio_policy", "policy_violation", "moderation",
    "unsupported", "too_large", "data_residency", "image_too_small", "image_parse", "empty_image",
)  # fmt: skip
_MONEY_WORDS: Final = _FINAL_WORDS[:6]
_WORD_FIELDS: Final = ("code", "type", "status", "error_type")
_TEXT_FIELDS: Final = ("message", "error_message", "detail", "msg", "error", "reason")


def find_error(value: dict[str, Any], mask: Mask) -> InBandError | None:
    """The error that an event or a body reports, or `None`; `mask` takes secrets out of it.

    An answer has `choices`; without them a message alone is an error too.
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
        text = excerpt(_text_of(error), mask, _SHOWN) or "unnamed error"
        return InBandError(text, advice=retry_advice(error))
    code = _code(error)
    text = excerpt(_message(error), mask, _SHOWN)
    status = f"HTTP {code}: " if isinstance(code, int) else ""
    return InBandError(
        f"{status}{text}", code=code, retryable=_is_retryable(code), advice=retry_advice(error)
    )


def _message(error: dict[str, Any]) -> str:
    for name in _TEXT_FIELDS:
        if found := error.get(name):
            return _text_of(found)
    return dump(error)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def _code(error: dict[str, Any]) -> str | int | None:
    """The status if there is one; the word instead if it says that credit is missing."""
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
    """Return true if a retry may help; an unspecified error is taken for a temporary one."""
    if isinstance(code, int):
        return code in RETRYABLE
    return code is None or not any(part in code.lower() for part in _FINAL_WORDS)


NOT_AN_ANSWER: Final = "not a chat completion: "
_MOST: Final = 4096
# The standard says to ignore unknown fields, but not errors.
_UNKNOWN_FIELD: Final = lazy_pattern(rb"(?!error:|fatal:)[a-z][a-z0-9_-]*:")


class StrayLines:
    """Collects lines up to a size, and reports at the end what they were."""

    __slots__ = ("_lines", "_mask", "_odd", "_size")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._lines: list[bytes] = []
        self._odd = False
        self._size = 0

    def add(self, line: bytes) -> None:
        self._odd = self._odd or not _UNKNOWN_FIELD.match(line)
        if self._size < _MOST:
            self._lines.append(line[:_MOST])
            self._size += len(line)

    def error(self, *, begun: bool) -> StreamError | None:
        """The error for the lines; `begun` says that there was an answer around them."""
        if not self._lines or (begun and not self._odd):
            return None
        text = b"\n".join(self._lines).decode("utf-8", "replace")
        try:
            for value in json_values(text):
                if isinstance(value, dict) and (error := find_error(value, self._mask)):
                    return error
        except BrokenJsonError:
            pass
        if begun:
            return UnreadableStreamError(f"text inside the stream: {excerpt(text, self._mask)}")
        return not_a_stream(text, self._mask)


def not_a_stream(text: str, mask: Mask) -> UnreadableStreamError:
    """The error for a page or a text in place of an answer: most often the address is wrong."""
    return UnreadableStreamError(f"{NOT_AN_ANSWER}{excerpt(text, mask)}", retryable=False)
