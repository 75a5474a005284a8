"""The content of a run's page: steps whole, items as rows with a bounded body each.

If the page is too large, the least important parts are left out, the conversations of successful
items, and counted.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field

from aish.core.events import ItemMoved, ItemStarted, Stamped, StepStarted
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.journal.history import Ended, RunHistory, TurnRecord, Unit
from aish.reports.distribution import Distribution
from aish.reports.html.conversation import Room, unit_body
from aish.reports.html.item_columns import ValueColumns
from aish.reports.markup import Markup
from aish.reports.outcome import State, reason_of, state_of

WELL: frozenset[State] = frozenset({"ok", "skipped"})
_PREVIEW = 160
_WELL, _BADLY, _BRIEF = Room(4_000, 2_000, 60), Room(12_000, 6_000, 120), Room(600, 0, 0)


@frozen
class PageBudget:
    """The maximum bytes of the bodies of items: successful ones, the others, brief ones.

    `cells` is that of their columns. `rows` is the maximum number of items with a row; those that
    did not succeed come first.
    """

    well: int = 8_000_000
    badly: int = 4_000_000
    brief: int = 3_000_000
    cells: int = 4_000_000
    rows: int = 20_000


@slotted
class ItemRow:
    """An item: its row, and the HTML below it."""

    key: str
    index: int | None
    state: State
    began: float
    ended: float
    seconds: float
    usage: Usage
    cost: float | None
    turns: int
    calls: int
    preview: str
    body: bytes
    brief: bool
    cells: bytes

    @property
    def tokens(self) -> int | None:
        known = [count for count in (self.usage.input, self.usage.output) if count is not None]
        return sum(known) if known else None

    @property
    def values(self) -> list[JsonValue]:
        """Its cells, one for each of the columns that there were when it ended."""
        return json.loads(self.cells)  # type: ignore[no-any-return]  # written as a list


@slotted
class ItemTotals:
    """Figures of all items of a step."""

    states: Counter[State] = field(default_factory=Counter)
    seconds: Distribution = field(default_factory=Distribution)
    cost: Distribution = field(default_factory=Distribution)
    tokens: Distribution = field(default_factory=Distribution)

    def count(self, row: ItemRow, sign: int = 1) -> None:
        """Count an item; with a `sign` of -1 no longer."""
        self.states[row.state] += sign
        numbers = (
            (self.seconds, row.seconds),
            (self.cost, row.cost),
            (self.tokens, row.tokens),
        )
        for distribution, number in numbers:
            if number is not None and row.state != "skipped":
                distribution.add(number, sign)


@slotted
class StepPart:
    """A step; `unit` is its own end, `rows` are its items by their keys."""

    id: str
    unit: Unit | None = None
    rows: dict[str, ItemRow] = field(default_factory=dict)
    columns: ValueColumns = field(default_factory=ValueColumns)
    totals: ItemTotals = field(default_factory=ItemTotals)

    def rows_in_order(self) -> list[ItemRow]:
        """The items, those that did not succeed first, else in the order of the table."""
        return sorted(
            self.rows.values(),
            key=lambda row: (row.state in WELL, row.index is None, row.index or 0),
        )


class Gathering:
    """Takes the events of a run, and the units that ended with each in its `history`."""

    def __init__(self, history: RunHistory, budget: PageBudget | None = None) -> None:
        self.budget = budget or PageBudget()
        self.steps: dict[str, StepPart] = {}
        self.history = history
        self._spent = {"well": 0, "badly": 0, "brief": 0}
        self._empty: set[str] = set()

    def take(self, stamped: Stamped, ended: Iterable[Ended]) -> None:
        event, step = stamped.event, stamped.event.place.step
        if step is not None:
            # In the order of their starts, not of their ends.
            part = self._part(step)
            if isinstance(event, StepStarted) and event.schema is not None:
                part.columns.declare(event.schema)
            elif isinstance(event, ItemMoved) and event.place.item in part.rows:
                part.rows[event.place.item].index = event.index
        if ended:
            self.add(ended)

    def add(self, ended: Iterable[Ended]) -> None:
        """Keep units; the last end of each counts."""
        for unit in ended:
            if not isinstance(unit, Unit):
                continue
            part = self._part(unit.step)
            if unit.item is None:
                part.unit = unit
            else:
                older = part.rows.get(unit.item)
                if older is not None:
                    share = _share(older.state, brief=older.brief)
                    self._spent[share] -= len(older.body)
                    self._empty.discard(share)
                    part.totals.count(older, -1)
                    part.columns.count(older.values, -1)
                row = self._row(unit, unit.item, None if older is None else older.index, part)
                part.rows[unit.item] = row
                part.totals.count(row)

    def parts(self) -> list[StepPart]:
        """The steps, without those that are no longer in the file (`--force`)."""
        return [part for part in self.steps.values() if self.history.has(part.id)]

    def _part(self, step: str) -> StepPart:
        part = self.steps.get(step)
        if part is None:
            part = self.steps[step] = StepPart(step)
        return part

    def _row(self, unit: Unit, key: str, index: int | None, part: StepPart) -> ItemRow:
        state, end, begin = state_of(unit), unit.finished, unit.started
        item = begin.value if isinstance(begin, ItemStarted) else None
        cells = part.columns.take(item, None if end is None else end.output, key)
        body, brief = self._body(unit, state)
        reason = reason_of(unit)
        answer = "" if end is None else end.text or ""
        text = answer if reason is None else reason.message
        return ItemRow(
            key=key,
            index=index if unit.index is None else unit.index,
            state=state,
            began=unit.began,
            ended=unit.ended,
            seconds=unit.ended - unit.began if end is None else end.seconds,
            usage=Usage() if end is None else end.usage,
            cost=None if end is None else end.cost_usd,
            turns=sum(isinstance(entry, TurnRecord) for entry in unit.entries),
            calls=sum(1 for _ in unit.calls),
            preview=shorten(for_line(text[: 2 * _PREVIEW].strip()), _PREVIEW),
            body=body,
            brief=brief,
            cells=json_text(cells).encode(),
        )

    def _body(self, unit: Unit, state: State) -> tuple[bytes, bool]:
        room = _WELL if state == "ok" else _BADLY
        whole = self._make_if_fits(_share(state, brief=False), lambda: unit_body(unit, room))
        if whole is not None:
            return whole, False
        brief = self._make_if_fits("brief", lambda: unit_body(unit, _BRIEF, conversation=False))
        return brief or b"", True

    def _make_if_fits(self, share: str, make: Callable[[], Markup]) -> bytes | None:
        if share in self._empty:
            return None
        body = make().encode()
        if self._spent[share] + len(body) > getattr(self.budget, share):
            self._empty.add(share)
            return None
        self._spent[share] += len(body)
        return body


def _share(state: State, *, brief: bool) -> str:
    if brief:
        return "brief"
    return "well" if state == "ok" else "badly"
