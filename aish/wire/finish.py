"""What endpoints call the end of an answer (quirk 26): an open set."""

from collections.abc import Mapping
from typing import Final

from aish.core.deltas import FinishReason

_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "refusal",
    "safety": "refusal",
    "refusal": "refusal",
}
_ERRORS: Final = frozenset(
    {
        "error", "insufficient_system_resource", "cancel", "cancelled", "canceled",
        "abort", "aborted", "timeout", "malformed_function_call",
    }
)  # fmt: skip


def known_reason(raw: str) -> FinishReason:
    """The reason behind an endpoint's own word; `stop` where it sent none (quirk 14)."""
    return _REASONS.get(raw.lower(), "other") if raw else "stop"


def is_error(raw: str) -> bool:
    """Whether the word says that the answer was given up."""
    return raw.lower() in _ERRORS
