"""Adding up tokens and money, where unknown stays unknown (quirk 34, B10)."""

from aish.core.deltas import Usage


def add_usage(sum_so_far: Usage | None, more: Usage) -> Usage:
    """Both together; `None` is the sum of nothing yet.

    Input and output of which one part is unknown are unknown: half a bill is a wrong bill. The
    two others are details that endpoints leave out where there is nothing to tell.
    """
    if sum_so_far is None:
        return more
    return Usage(
        input=_both(sum_so_far.input, more.input),
        output=_both(sum_so_far.output, more.output),
        cached=_either(sum_so_far.cached, more.cached),
        reasoning=_either(sum_so_far.reasoning, more.reasoning),
    )


def add_cost(sum_so_far: float | None, more: float | None) -> float | None:
    """Both together: half a bill is a wrong bill."""
    return None if sum_so_far is None or more is None else sum_so_far + more


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _either(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
