"""Expectations about how much it took (F12)."""

from aish.config.expected import Expectation
from aish.core.text import dollars
from aish.run.expectations.subject import Subject


def max_tool_calls(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Every call that was asked for counts."""
    most, count = _number(expectation), len(subject.calls)
    return _at_most(most, "tool call"), None if count <= most else f"{count:,}"


def max_tokens(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Tokens read and written; a number that is not known is not small."""
    most = _number(expectation)
    words = _at_most(most, "token")
    if subject.usage is None:
        return words, None
    read, written = subject.usage.input, subject.usage.output
    if read is None or written is None:
        return words, "an unknown number: a model did not say how many there were"
    total = read + written
    return words, None if total <= most else f"{total:,} ({read:,} in, {written:,} out)"


def max_cost_usd(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """US dollars; what is not known is not cheap."""
    most = _number(expectation)
    words = f"at most {dollars(most)}"
    if subject.cost_usd is None:
        said = "an unknown cost: a model has no `price`, or did not say how many tokens there were"
        return words, said
    return words, None if subject.cost_usd <= most else dollars(subject.cost_usd)


def max_seconds(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Seconds of this run, by the clock on the wall."""
    most = _number(expectation)
    within = subject.seconds <= most
    return f"at most {most:g} s", None if within else f"{subject.seconds:.2f} s"


def _at_most(most: float, noun: str) -> str:
    return f"at most {most:,.0f} {noun}" + ("" if most == 1 else "s")


def _number(expectation: Expectation) -> float:
    assert isinstance(expectation.value, int | float)
    return expectation.value
