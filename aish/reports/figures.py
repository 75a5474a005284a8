"""Readable numbers for a report; unknown values are marked as such."""

import time

from aish.core.messages import Usage
from aish.output.status import cached_share, seconds_text

UNKNOWN = "unknown"
_A_CENT = 0.01


def cost_text(cost: float | None) -> str:
    if cost is None:
        return UNKNOWN
    if not cost:
        return "$0"
    return f"${cost:.4f}" if cost < _A_CENT else f"${cost:,.2f}"


def tokens_text(usage: Usage) -> str:
    """`412 in (75% cached) · 96 out`."""
    if usage.input is None and usage.output is None:
        return UNKNOWN
    share = cached_share(usage)
    cached = f" ({share} cached)" if share else ""
    return f"{_count(usage.input)} in{cached} · {_count(usage.output)} out"


def tokens_figure(usage: Usage) -> tuple[str, str]:
    """The total, and its parts."""
    share = cached_share(usage)
    named = (
        (usage.input, "in"),
        (usage.output, "out"),
        (usage.cached, f"cached ({share})" if share else "cached"),
        (usage.cache_written, "written to the cache"),
        (usage.reasoning, "reasoning"),
    )
    more = " · ".join(f"{count:,} {word}" for count, word in named if count is not None)
    if usage.input is None or usage.output is None:
        return UNKNOWN, more
    return f"{usage.input + usage.output:,}", more


def when_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def iso_text(seconds: float) -> str:
    """A time as XML requires it, in UTC and without a zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def took_text(seconds: float | None) -> str:
    return UNKNOWN if seconds is None or seconds != seconds else seconds_text(seconds)  # ruff: ignore[comparison-with-itself] - NaN: the journal had no number


def _count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
