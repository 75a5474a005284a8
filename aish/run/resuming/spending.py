"""What a run has used up, from the records of its journal (B8)."""

from calendar import timegm
from time import strptime

from aish.core.deltas import Usage
from aish.core.frozen import slotted
from aish.engine.limits.budget import scopes
from aish.engine.resume_state import SpentBefore


@slotted
class _Sum:
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = 0.0
    tool_calls: int = 0
    known_usd: float = 0.0

    def answer(self, usage: Usage, cost_usd: float | None, turns: int = 1) -> None:
        self.turns += turns
        self.tokens_in += usage.input or 0
        self.tokens_out += usage.output or 0
        self.known_usd += cost_usd or 0.0
        if self.cost_usd is not None:
            # What one answer cost is not known: then the sum is not (B8).
            self.cost_usd = None if cost_usd is None else self.cost_usd + cost_usd

    def spent(self, seconds: float) -> SpentBefore:
        return SpentBefore(
            turns=self.turns,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cost_usd=self.cost_usd,
            tool_calls=self.tool_calls,
            seconds=seconds,
            known_usd=self.known_usd,
        )


class Spending:
    """Counts what each turn and call used, for the run and for each step."""

    def __init__(self) -> None:
        self._whole = _Sum()
        self._steps: dict[str, _Sum] = {}
        self._began: str | None = None
        self._before = ""
        self._last = ""
        self._seconds = 0.0

    def now(self, time: str) -> None:
        """The time of the record that is looked at."""
        self._before, self._last = self._last, time

    def begin(self) -> None:
        """A part of the run begins: between two parts no time is used."""
        self._seconds += self._until(self._before)
        self._began = self._last

    def answer(self, step: str, usage: Usage, cost_usd: float | None) -> None:
        """A model has answered."""
        for total in (self._whole, *map(self._of, scopes(step))):
            total.answer(usage, cost_usd)

    def call(self, step: str) -> None:
        """A tool was called."""
        for total in (self._whole, *map(self._of, scopes(step))):
            total.tool_calls += 1

    def elsewhere(self, turns: int, tool_calls: int, usage: Usage, cost_usd: float | None) -> None:
        """A run of its own has used this, which counts for the whole."""
        self._whole.answer(usage, cost_usd, turns)
        self._whole.tool_calls += tool_calls

    def spent(self) -> SpentBefore:
        """All of it."""
        return self._whole.spent(self._seconds + self._until(self._last))

    def by_step(self) -> dict[str, SpentBefore]:
        """The same for each step; how long one took is not added up here."""
        return {step: total.spent(0.0) for step, total in self._steps.items()}

    def _of(self, step: str) -> _Sum:
        total = self._steps.get(step)
        if total is None:
            total = self._steps[step] = _Sum()
        return total

    def _until(self, time: str) -> float:
        return 0.0 if self._began is None else max(0.0, seconds(time) - seconds(self._began))


def seconds(time: str) -> float:
    """A time of a record, in seconds since the epoch."""
    whole, _, part = time.rstrip("Z").partition(".")
    return timegm(strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
