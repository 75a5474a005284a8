"""Tokens and money of all parts of a session together (B8)."""

from aish.loop.usage import add_cost, add_usage
from aish.run.surroundings import AnyCarried
from aish.vocab.deltas import Usage


def with_earlier(
    carried: AnyCarried | None, usage: Usage, cost: float | None
) -> tuple[Usage, float | None]:
    """What this part has used, with what the parts before it had."""
    if carried is None:
        return usage, cost
    before = carried.spent
    return add_usage(Usage(before.tokens_in, before.tokens_out), usage), add_cost(
        before.cost_usd, cost
    )
