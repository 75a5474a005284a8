"""Models that cost nothing, under a limit: how long their answers may be is set for them (B8).

A limit on tokens or cost makes `max_tokens` mandatory, because the worst case of a request has to
be known before it is sent. A model that costs nothing may leave it out, and is asked for this much,
or for a quarter of what the limit allows, if that is less.
"""

from collections.abc import Iterable
from dataclasses import replace

from aish.config.models import ModelEntry
from aish.config.steps import Limits
from aish.models.pricing import Rates, pricing_of
from aish.wire.chat_encode import answer_limit

MAX_TOKENS = 4096


def is_free(entry: ModelEntry) -> bool:
    """Whether the file says, or it is an embedded model, that it costs nothing."""
    return pricing_of(entry) == Rates(0.0, 0.0)


def bounded(entry: ModelEntry, limits: Iterable[Limits]) -> ModelEntry:
    """The entry with a `max_tokens`, where a limit wants one and a free model has none."""
    bounds = [one for one in limits if one.tokens is not None or one.cost_usd is not None]
    if not bounds or answer_limit(entry.params) is not None or not is_free(entry):
        return entry
    quarters = (max(1, one.tokens // 4) for one in bounds if one.tokens is not None)
    return replace(
        entry, params={**entry.params, "max_tokens": min(MAX_TOKENS, *quarters, MAX_TOKENS)}
    )
