"""Token counts, and names of the model, as an answer states them."""

import math
from collections.abc import Mapping
from typing import Any, Final

from aish.core.messages import Served
from aish.wire.speech import repair_text

COUNT_BELOW: Final = 2**53
_LONGEST_NAME: Final = 200


def first_count(value: Any, paths: tuple[tuple[str, ...], ...]) -> int | None:
    """The first count at one of these places. Unknown is not zero."""
    for path in paths:
        found = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if (
            isinstance(found, int | float)
            and not isinstance(found, bool)
            and 0 <= found < COUNT_BELOW
        ):
            return int(found)
    return None


def cache_miss_text(reason: str, count: int | None) -> str:
    """The reason that an endpoint gives for not having read all from its cache."""
    tokens = "" if count is None else f", about {count:,} tokens"
    return f"the endpoint has not read all from its cache: `{reason}`{tokens}"


def read_cost(value: Any) -> float | None:
    """US dollars in a `usage` object, from endpoints that report costs.

    A number, or an object with the total in it.
    """
    cost = value.get("cost") if isinstance(value, Mapping) else None
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        return float(cost) if 0 <= cost < COUNT_BELOW and math.isfinite(cost) else None
    return None


def read_served(value: dict[str, Any]) -> Served | None:
    """Read what a chunk says of the model that answers."""
    names = (value.get(key) for key in ("model", "system_fingerprint", "id"))
    told = [repair_text(name[:_LONGEST_NAME]) if isinstance(name, str) else None for name in names]
    return Served(*(name or None for name in told)) if any(told) else None
