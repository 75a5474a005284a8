"""A run as its summary and its annotations tell of it: a row a step, and the first failures.

Bounded however many items there are: of those that went well only the number is kept.
"""

from dataclasses import field

from aish.core.deltas import Usage
from aish.core.events import (
    ExpectChecked,
    Notice,
    RunFinished,
    RunStarted,
    Stamped,
    ToolDecided,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.output.result import Annotations
from aish.output.status import Tally
from aish.reports.units import Unit, Units
from aish.reports.verdicts import WORDS, Reason, State, answer_of, reason_of, state_of

FIRST = 10
WELL: frozenset[State] = frozenset({"ok", "skipped"})
_REFUSED = frozenset({"deny", "ask-no"})
_MANY = 1000


@slotted
class Row:
    """A step: how it ended, and what became of its items, if it has any.

    `trouble` has the state of each item that did not go well, `failures` tell of the first.
    """

    step: str
    state: State = "cut_off"
    reason: Reason | None = None
    unmet: tuple[str, ...] = ()
    seconds: float | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    calls: int = 0
    answer: JsonValue = None
    items_ok: int = 0
    trouble: dict[str, State] = field(default_factory=dict)
    failures: dict[str, "Failed"] = field(default_factory=dict)

    @property
    def items(self) -> int:
        """How many of its items have ended."""
        return self.items_ok + len(self.trouble)


@frozen
class Failed:
    """An item that did not go well: why, what was not met of it, and what it answered."""

    reason: Reason
    unmet: tuple[str, ...]
    answer: JsonValue


@slotted
class Gathered:
    """Everything worth telling; `finished` stays `None` where the run has no end."""

    started: RunStarted | None = None
    finished: RunFinished | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    denials: dict[str, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    annotations: Annotations = field(default_factory=Annotations)
    tally: Tally = field(default_factory=Tally)
    _units: Units = field(default_factory=Units)

    def take(self, stamped: Stamped) -> None:
        """Fold one event in."""
        self.tally.take(stamped)
        self.annotations.take(stamped)
        event = stamped.event
        match event:
            case RunStarted():
                self.started, self.finished = event, None
            case RunFinished():
                self.finished = event
            case ToolDecided(tool=tool, verdict=verdict) if verdict in _REFUSED:
                if tool in self.denials or len(self.denials) < _MANY:
                    self.denials[tool] = self.denials.get(tool, 0) + 1
            case Notice(level=level) if level != "info" and len(self.notices) < FIRST:
                self.notices.append(event)
            case _:
                pass
        for unit in self._units.take(stamped):
            self._ended(unit)

    def end(self) -> None:
        """No more will come: what is still open was cut off."""
        for unit in self._units.rest():
            self._ended(unit)

    def worst_first(self) -> list[Row]:
        """The steps, those that did not go well before the others."""
        return sorted(self.rows.values(), key=lambda row: row.state in WELL)

    def _ended(self, unit: Unit) -> None:
        row = self.rows.setdefault(unit.step, Row(unit.step))
        row.calls += sum(call.finished is not None for call in unit.calls)
        if unit.item is None:
            _step(row, unit)
        else:
            _item(row, unit, unit.item)


def _step(row: Row, unit: Unit) -> None:
    row.state, row.reason, row.unmet = state_of(unit), _reason(unit), _unmet(unit)
    if unit.finished is not None:
        row.seconds, row.answer = unit.finished.seconds, answer_of(unit)
        row.usage, row.cost_usd = unit.finished.usage, unit.finished.cost_usd
    else:
        row.seconds = unit.ended - unit.began


def _item(row: Row, unit: Unit, key: str) -> None:
    state, reason = state_of(unit), _reason(unit)
    row.failures.pop(key, None)
    row.trouble.pop(key, None)
    if state in WELL or reason is None:
        row.items_ok += 1
        return
    row.trouble[key] = state
    if len(row.failures) < FIRST:
        row.failures[key] = Failed(reason, _unmet(unit), answer_of(unit))


def _reason(unit: Unit) -> Reason | None:
    """Why it did not go well, if only in a word; `None` where it did."""
    state = state_of(unit)
    return None if state in WELL else reason_of(unit) or Reason(state, WORDS[state])


def _unmet(unit: Unit) -> tuple[str, ...]:
    checks: list[ExpectChecked] = unit.checks
    return tuple(one.message for one in checks if not one.ok)[:FIRST]
