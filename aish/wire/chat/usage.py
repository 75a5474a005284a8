"""Token counts and costs as endpoints spell them."""

import math
from collections.abc import Mapping
from typing import Any, Final

from aish.core.deltas import Usage

_COUNTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "input": (("prompt_tokens",), ("input_tokens",)),
    "output": (("completion_tokens",), ("output_tokens",)),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("cached_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cache_read_input_tokens",),
    ),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
    ),
}
_MOST: Final = 2**53


def read_usage(value: Any) -> Usage:
    """The counts in a `usage` object. Unknown is not zero (quirk 34)."""
    return Usage(**{name: _first_count(value, paths) for name, paths in _COUNTS.items()})


def read_cost(value: Any) -> float | None:
    """US dollars in a `usage` object, of endpoints that tell (B10).

    A number, or an object with the total in it.
    """
    cost = value.get("cost") if isinstance(value, Mapping) else None
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        return float(cost) if 0 <= cost < _MOST and math.isfinite(cost) else None
    return None


def _first_count(value: Any, paths: tuple[tuple[str, ...], ...]) -> int | None:
    for path in paths:
        found = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < _MOST:
            return int(found)
    return None
