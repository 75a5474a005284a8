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


class ServedReader:
    """The names of the model that answers, from the chunks of its answer."""

    __slots__ = ("_others", "served", "told")

    def __init__(self) -> None:
        self.served: Served | None = None
        self.told: Any = None
        """The last name of the model as it came; most chunks say the same as the one before."""
        self._others: tuple[Any, Any] = (None, None)

    def take(self, value: dict[str, Any]) -> str | None:
        """Read a chunk, or a whole answer; return a sentence if it names another model."""
        told, others = value.get("model"), (value.get("system_fingerprint"), value.get("id"))
        if told == self.told and others == self._others:
            return None
        self.told, self._others = told, others
        model, state, id = map(_read_name, (told, *others))
        before = self.served or Served()
        served = Served(model or before.model, state or before.fingerprint, before.id or id)
        self.served = None if served == Served() else served
        if before.model is None or served.model == before.model:
            return None
        return f"the answer names two models: first `{before.model}`, then `{served.model}`"


def _read_name(value: Any) -> str | None:
    return repair_text(value[:_LONGEST_NAME]) or None if isinstance(value, str) else None
