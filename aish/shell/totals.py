"""What all parts of a session have used together (B8)."""

from typing import TYPE_CHECKING

from aish.agent.runtime import add_cost, add_usage
from aish.core.deltas import Usage
from aish.engine.limits.usage import Used

if TYPE_CHECKING:
    from aish.engine.resume_state import ResumeState


def with_earlier(carried: "ResumeState | None", used: Used) -> Used:
    """What this part has used, with what the parts before it had."""
    if carried is None or not carried.spent.turns:
        return used
    before = carried.spent
    usage = Usage(before.tokens_in, before.tokens_out)
    return Used(
        used.turns + before.turns,
        # Where nothing was asked yet, nothing is unknown.
        usage if used.usage is None and not used.turns else add_usage(usage, used.usage or Usage()),
        add_cost(before.cost_usd, used.cost_usd),
    )
