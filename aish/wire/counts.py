"""Token counts, and names of the model, as an answer states them."""

import math
from dataclasses import replace
from typing import Any, Final

from aish.core.messages import Served, Usage
from aish.wire.speech import repair_text

COUNT_BELOW: Final = 2**53
_LONGEST_NAME: Final = 200
_MOST_DIGITS: Final = 15


def read_count(value: Any) -> int | None:
    """A count; some gateways send it as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value) if len(value) <= _MOST_DIGITS else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < COUNT_BELOW else None


def first_count(value: Any, paths: tuple[tuple[str, ...], ...]) -> int | None:
    """The first count at one of these places. Unknown is not zero."""
    if not isinstance(value, dict):
        return None
    for path in paths:
        found = value.get(path[0])
        for key in path[1:]:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None and (count := read_count(found)) is not None:
            return count
    return None


def whole_input(usage: Usage) -> Usage:
    """The counts with all input: what is cached is a part of it, unless that is more than it all.

    Some gateways count it beside. No request has 0 tokens.
    """
    cached = (usage.cached or 0) + (usage.cache_written or 0)
    if usage.input is None or cached <= usage.input:
        return usage if usage.input else replace(usage, input=None)
    return replace(usage, input=usage.input + cached)


def cache_miss_text(reason: str, count: int | None) -> str:
    """The reason that an endpoint gives for not having read all from its cache."""
    tokens = "" if count is None else f", about {count:,} tokens"
    return f"the endpoint has not read all from its cache: `{reason}`{tokens}"


def read_cost(value: Any) -> float | None:
    """US dollars in a `usage` object, from endpoints that report costs.

    A number, or an object with the total in it.
    """
    cost = value.get("cost") if isinstance(value, dict) else None
    if isinstance(cost, dict):
        cost = cost.get("total_cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        return float(cost) if 0 <= cost < COUNT_BELOW and math.isfinite(cost) else None
    return None


def read_served(value: dict[str, Any]) -> Served | None:
    """Read what a chunk says of the model that answers."""
    names = (value.get(key) for key in ("model", "system_fingerprint", "id"))
    told = [repair_text(name[:_LONGEST_NAME]) if isinstance(name, str) else None for name in names]
    return Served(*(name or None for name in told)) if any(told) else None
