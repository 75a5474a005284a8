"""Models that cost nothing, under a limit: how long their answers may be is set for them (B8).

A limit on tokens or cost makes `max_tokens` mandatory, because the worst case of a request has to
be known before it is sent. A model that costs nothing may leave it out, and is asked for this much.
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
    weighs = any(one.tokens is not None or one.cost_usd is not None for one in limits)
    if not weighs or answer_limit(entry.params) is not None or not is_free(entry):
        return entry
    return replace(entry, params={**entry.params, "max_tokens": MAX_TOKENS})
