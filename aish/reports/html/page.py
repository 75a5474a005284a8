"""The page: one HTML file that makes no requests and runs no script but its own.

Its parts from top to bottom: the status of the run and its figures; the annotations; the timeline,
on an axis without the gaps between the segments of a resumed run; the steps with their items; the
configuration of the run.

Above the table of the items of a step are the counts and the distributions of their values.
"""

import base64
import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import starmap

from aish.core.events import Retry, RunFinished, RunStarted, plain
from aish.core.frozen import frozen, replace
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.journal.history import Aside, CallRecord, Entry, Segment, TurnRecord, Unit
from aish.output.result import LEVELS, place_text
from aish.output.status import (
    approve_command,
    call_status,
    changes_text,
    lines_text,
    problems_text,
    served_cells,
    short_id,
    until_text,
)
from aish.reports.figures import (
    UNKNOWN,
    cost_text,
    tokens_figure,
    tokens_text,
    took_text,
    when_text,
)
from aish.reports.html.charts import counts_chart, numbers_chart
from aish.reports.html.contents import WELL, Gathering, ItemRow, StepPart
from aish.reports.html.conversation import Room, unit_body
from aish.reports.html.item_columns import Origin, ValueColumn, titles
from aish.reports.html.table import Column, Kind, TableRow, TableWords, chip, table
from aish.reports.markup import NOTHING, Markup, block, concat, group_attributes, pre, tag
from aish.reports.outcome import WORDS, State, state_of

WIDTH = 1000.0
_GAP = 12.0


@frozen
class TimelineSpan:
    began: float
    ended: float
    left: float
    width: float


class Axis:
    """Maps times to positions between 0 and `WIDTH`."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        took = [max(one.ended - one.began, 0.0) for one in segments]
        self.seconds = sum(took)
        room = WIDTH - _GAP * (len(took) - 1)
        scale = room / self.seconds if self.seconds else 0.0
        self.spans: list[TimelineSpan] = []
        left = 0.0
        for segment, length in zip(segments, took, strict=True):
            self.spans.append(TimelineSpan(segment.began, segment.ended, left, length * scale))
            left += length * scale + _GAP
        self._scale = scale

    def at(self, moment: float) -> float:
        place = 0.0
        for span in self.spans:
            if moment < span.began:
                break
            place = span.left + min(moment - span.began, span.ended - span.began) * self._scale
        return place


_FEW_COLUMNS = 12
# The columns beside those of values, in the order in which they are chosen if there are many.
_OWN: Sequence[tuple[str, str, Kind, int]] = (
    ("key", "Item", "key", 1),
    ("state", "Status", "state", 2),
    ("seconds", "Time", "seconds", 6),
    ("text", "Answer or reason", "text", 3),
    ("cost", "Cost", "cost", 5),
    ("tokens", "Tokens", "count", 4),
    ("number", "#", "number", 0),
    ("turns", "Turns", "count", 7),
    ("calls", "Calls", "count", 8),
)
_ALWAYS = 5
_BEFORE, _AFTER = (
    ("number", "key", "state"),
    ("text", "cost", "tokens", "seconds", "turns", "calls"),
)


def items(part: StepPart, anchor: str, gathering: Gathering) -> Iterator[Markup]:
    """The items of a step, piece by piece: figures of all of them, and a table."""
    budget, started = gathering.budget, gathering.history.started
    rows = part.rows_in_order()[: budget.rows]
    table_rows, bare = _table_rows(rows, budget.cells)
    notes = []
    if gone := len(part.rows) - len(rows):
        notes.append(f"{gone:,} successful items are counted and have no row.")
    if brief := sum(row.brief for row in rows):
        notes.append(
            f"{brief:,} items have no conversation here, to keep this file small."
            " The journal has everything."
        )
    if bare:
        notes.append(f"{bare:,} items have no values in their columns, for the same reason.")
    has_failed = any(row.state in _TRIED_AGAIN for row in rows)
    command = None if started is None else started.resume_command
    retry = f"{command} --retry-failed" if command and has_failed else None
    yield item_charts(part)
    if retry:
        yield tag("p", "Run the failed items again: ", tag("code", retry), class_="retry")
    words = TableWords("item", _states(rows), retry)
    yield from table(anchor, _columns_of(part), table_rows, words)
    for note in notes:
        yield tag("p", note, class_="cut")


def item_charts(part: StepPart) -> Markup:
    """The counts and distributions of all items of a step, also of those without a row."""
    totals = part.totals
    states = [
        (WORDS[state], state, totals.states[state]) for state in WORDS if totals.states[state]
    ]
    charts = [counts_chart("Status", states, "state")] if len(states) > 1 else []
    for (column, id), title in zip(_value_ids(part), titles(part.columns), strict=True):
        counts = [(name, "", count) for name, count in column.choices.items()]
        if counts and any(count for _, _, count in counts):
            charts.append(counts_chart(title, sorted(counts, key=lambda one: -one[2]), id))
        if column.numbers.quantile(0) != column.numbers.quantile(1):
            charts.append(numbers_chart(title, column.numbers, _number_text, usual=False))
    usual = (
        ("Time", totals.seconds, took_text),
        ("Cost", totals.cost, cost_text),
        ("Tokens", totals.tokens, "{:,.0f}".format),
    )
    charts += [
        numbers_chart(title, numbers, text)
        for title, numbers, text in usual
        if numbers.quantile(0) != numbers.quantile(1)
    ]
    return tag("div", *charts[:_MOST_CHARTS], class_="charts") if charts else NOTHING


def _number_text(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= _THOUSAND else f"{number:.3g}"


def _value_ids(part: StepPart) -> Iterator[tuple[ValueColumn, str]]:
    for column in part.columns.of.values():
        yield column, f"{column.origin}.{for_line(column.name)}"


def _columns_of(part: StepPart) -> Sequence[Column]:
    """The key, the state, the columns of the table and of the answers, and what was used."""
    own = list(starmap(Column, _OWN))
    values: dict[Origin, list[Column]] = {"item": [], "output": []}
    ids = zip(_value_ids(part), titles(part.columns), strict=True)
    for at, ((column, id), title) in enumerate(ids, len(own)):
        values[column.origin].append(Column(id, title, "value", at))
    middle = [*values["item"], *values["output"]]
    wanted = [*own[:_ALWAYS], *values["output"], *values["item"], *own[_ALWAYS:]][:_FEW_COLUMNS]
    by_id = {column.id: column for column in own}
    order = [by_id[id] for id in _BEFORE] + middle + [by_id[id] for id in _AFTER]
    return [replace(column, shown=column in wanted) for column in order]


def _states(rows: Sequence[ItemRow]) -> Mapping[str, str]:
    found = {row.state for row in rows}
    return {state: word for state, word in WORDS.items() if state in found}


def _table_rows(rows: Sequence[ItemRow], room: int) -> tuple[Sequence[TableRow], int]:
    """The rows of the table; and how many have no values, because there is no more room."""
    found = []
    bare = 0
    for number, row in enumerate(rows):
        room -= len(row.cells)
        bare += room < 0
        values: list[JsonValue] = [
            number if row.index is None else row.index,
            for_line(row.key),
            row.state,
            row.preview,
            row.tokens,
            row.cost,
            round(row.seconds, 3) if row.seconds == row.seconds else None,
            row.turns,
            row.calls,
            *(row.values if room >= 0 else ()),
        ]
        found.append(TableRow(values, row.body, row.state not in WELL))
    return found, bare


_MOST = 200
_MOST_CHARTS = 24
_THOUSAND = 1000
# What `--retry-failed` runs again.
_TRIED_AGAIN = frozenset({"failed", "error", "denied"})
_MOST_ANNOTATIONS = 1_000
_CHIPS: dict[str, State] = {
    "ok": "ok",
    "failed": "failed",
    "skipped": "skipped",
    "denied": "denied",
    "budget": "error",
    "paused": "paused",
    "interrupted": "cut_off",
}


def head(gathering: Gathering, run: str) -> Markup:
    """Name, status and figures of the run."""
    segments = gathering.history.segments
    first = segments[0] if segments else None
    end = gathering.history.finished
    facts = [run]
    if first is not None:
        facts += [when_text(first.began), f"aish {first.started.aish}"]
    return tag(
        "header",
        tag(
            "h1", for_line(first.started.pipeline if first is not None else run), " ", run_chip(end)
        ),
        tag("p", " · ".join(facts), class_="facts"),
        _exit(end),
        _open_questions(gathering),
        _figures(gathering, end),
        class_="top",
    )


def run_chip(end: RunFinished | None) -> Markup:
    """The status of the run; one without an end may still be running."""
    if end is None:
        return tag("span", "no end", class_="chip cut_off")
    return chip(_CHIPS[end.status], end.status)


def _exit(end: RunFinished | None) -> Markup:
    if end is None:
        text = "The journal has no end: the run was killed, or is still running."
        return tag("div", tag("p", text), class_="note quiet")
    code = end.exit
    if not code.code:
        return NOTHING
    retry = "trying again may help" if code.retryable else None
    return tag(
        "div",
        tag("p", tag("strong", f"Exit {code.code} · {code.name}"), " ", retry),
        pre(code.reason, class_="bare") if code.reason else None,
        tag("p", f"hint: {code.hint}", class_="hint") if code.hint else None,
        class_="note quiet" if end.status == "paused" else "note bad",
    )


def _open_questions(gathering: Gathering) -> Markup:
    """The calls that wait for an answer, and the command that answers each."""
    pending = gathering.history.pending
    if not pending:
        return NOTHING
    end = gathering.history.finished
    rows = []
    for one in pending[:_MOST]:
        place = " ".join(filter(None, (one.asked.place.step, one.asked.place.item)))
        command = short_id(one.id)
        if end is not None and end.folder:
            command = approve_command(one.id, end)
        rows.append(
            tag(
                "li",
                tag("code", for_line(one.asked.tool)),
                tag("span", for_line(f"{place}{until_text(one.asked.expires)}"), class_="facts"),
                tag("p", for_line(one.asked.reason)) if one.asked.reason else None,
                tag("p", tag("code", for_line(command))),
            )
        )
    left = len(pending) - len(rows)
    noun = "call waits" if len(pending) == 1 else "calls wait"
    return tag(
        "div",
        tag("p", tag("strong", f"{len(pending):,} {noun} for an answer")),
        tag("ul", *rows, tag("li", f"and {left:,} more") if left else None),
        class_="note quiet",
    )


def _figures(gathering: Gathering, end: RunFinished | None) -> Markup:
    usage = Usage() if end is None else end.usage
    figures = [
        (
            "Duration",
            took_text(_seconds(gathering.history.segments)),
            _parts(gathering.history.segments),
        ),
        *_tokens_and_cost(usage, None if end is None else end.cost_usd),
        *_work(gathering),
        *_calls(gathering, end),
    ]
    return tag("dl", *starmap(_figure, figures), class_="figures")


def _tokens_and_cost(usage: Usage, cost: float | None) -> Iterator[tuple[str, str, str]]:
    """Tokens and cost; nothing if there was no model request."""
    if usage != Usage() or cost != 0:
        yield "Tokens", *tokens_figure(usage)
        yield "Cost", cost_text(cost), ""


def _figure(name: str, value: str, more: str) -> Markup:
    unknown = "unknown" if value == UNKNOWN else None
    return tag(
        "div",
        tag("dt", name),
        tag("dd", tag("span", value, class_=unknown), tag("small", more) if more else None),
    )


def _seconds(segments: Sequence[Segment]) -> float:
    if len(segments) == 1 and segments[0].finished is not None:
        return segments[0].finished.seconds
    return sum(segment.ended - segment.began for segment in segments)


def _parts(segments: Sequence[Segment]) -> str:
    return f"in {len(segments)} parts" if len(segments) > 1 else ""


def _work(gathering: Gathering) -> Iterator[tuple[str, str, str]]:
    parts = gathering.parts()
    plain = Counter(state_of(part.unit) for part in parts if part.unit is not None)
    yield "Steps", f"{plain.total():,}", states_text(plain)
    rows = Counter(row.state for part in parts for row in part.rows.values())
    if rows:
        yield "Items", f"{rows.total():,}", states_text(rows)


def states_text(states: Counter[State]) -> str:
    """`3 failed · 1 skipped`; empty if all succeeded."""
    words = {"cut_off": "cut off"}
    return " · ".join(
        f"{count:,} {words.get(state, state)}" for state, count in states.items() if state != "ok"
    )


def _calls(gathering: Gathering, end: RunFinished | None) -> Iterator[tuple[str, str, str]]:
    count = sum(
        sum(row.calls for row in part.rows.values())
        + (0 if part.unit is None else sum(1 for _ in part.unit.calls))
        for part in gathering.parts()
    )
    yield "Tool calls", f"{count:,}", problems_text(None if end is None else end.calls)


def annotations(gathering: Gathering) -> Markup:
    entries = sorted(gathering.history.annotations.found, key=lambda one: LEVELS.index(one.level))
    if not entries:
        return NOTHING
    rows = [(one.level, place_text(one), one.message) for one in entries[:_MOST_ANNOTATIONS]]
    left = len(entries) - len(rows) + gathering.history.annotations.left_out
    more = tag("p", f"… and {left:,} more, left out here", class_="cut") if left else None
    head = ("Level", "Place", "Message")
    return tag(
        "section",
        tag("h2", "Annotations"),
        _rows("annotations", head, rows),
        more,
        id="annotations",
    )


def changed_files(gathering: Gathering) -> Iterator[Markup]:
    """The files that each part of the run has changed in git work trees."""
    changes = gathering.history.changes
    if not changes:
        return
    yield Markup('<section id="changes">')
    yield tag("h2", "Changed files")
    for change in changes:
        yield tag("p", for_line(changes_text(change)))
        rows = [(file.path, file.change, lines_text(file)) for file in change.files]
        if rows:
            yield _rows("changed files", ("File", "Change", "Lines"), rows)
        if change.more:
            yield tag("p", f"… and {change.more:,} more, left out here", class_="cut")
        if change.patch:
            patch = block(change.patch, _LONGEST_PATCH, aria_label="difference")
            yield tag("details", tag("summary", "The difference"), patch)
    yield Markup("</section>")


def ingredients(gathering: Gathering) -> Markup:
    """The configuration of the run: models, servers, rules, limits, inputs."""
    segments = gathering.history.segments
    if not segments:
        return NOTHING
    started, end = segments[-1].started, segments[-1].finished
    rows = [
        (one.alias, one.transport, one.state, counted(one.tools, "tool"), one.error or "")
        for one in started.servers
    ]
    served = {} if end is None else {one.alias: one for one in end.served}
    tables = [
        _table(
            "Models",
            ("Alias", "Model", "Endpoint", "Answered", "Fingerprints"),
            [
                (model.alias, model.model, model.origin, *served_cells(served.get(model.alias)))
                for model in started.models
            ],
        ),
        _table("Servers", ("Alias", "Transport", "State", "Tools", "Error"), rows),
        _table("Approval rules", ("List", "Rule"), [(one.list, one.rule) for one in started.rules]),
        _pairs("Inputs", started.inputs),
        _pairs("Limits", started.limits),
        _pairs("This run", _facts(started, end, segments)),
    ]
    return tag(
        "section",
        tag("h2", "Inputs and files"),
        tag("div", *tables, class_="parts"),
        _notices(gathering),
        id="made-of",
    )


def _notices(gathering: Gathering) -> Markup:
    if not gathering.history.notices:
        return NOTHING
    shown = [
        tag("li", tag("code", notice.code), " ", for_line(notice.text), class_=notice.level)
        for notice in gathering.history.notices[:_MOST]
    ]
    return concat([tag("h2", "Notices"), tag("ul", *shown, class_="notices")])


def _facts(started: RunStarted, end: RunFinished | None, segments: Sequence[Segment]) -> JsonObject:
    facts: dict[str, str | None] = {
        "digest": started.digest,
        "folder": started.folder,
        "shard": None if started.shard is None else json_text(plain(started.shard), spaced=True),
        "applies": started.applies,
        "overrides": ", ".join(started.overrides) or None,
        "cassette": None
        if started.cassette is None
        else f"{started.cassette.path} ({started.cassette.mode})",
        "denied": None if end is None else ", ".join(end.denials) or None,
    }
    for number, segment in enumerate(segments[1:], 2):
        facts[f"part {number}"] = f"resumed {when_text(segment.began)}"
    return {name: value for name, value in facts.items() if value is not None}


def _pairs(title: str, values: JsonObject) -> Markup:
    rows = [
        (name, value if isinstance(value, str) else json_text(value, spaced=True))
        for name, value in values.items()
        if value is not None
    ]
    return _table(title, None, rows)


def _table(title: str, head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Markup:
    return tag("div", tag("h3", title), _rows(title, head, rows)) if rows else NOTHING


def _rows(label: str, head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Markup:
    cells = (tag("tr", *(tag("td", for_line(cell[:2000])) for cell in row)) for row in rows)
    top = (
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))) if head else None
    )
    whole = tag("table", top, tag("tbody", *cells))
    return tag("div", whole, class_="wide", **group_attributes(aria_label=label))


_LONGEST_PATCH = 200_000
_TICKS = 4
_LANED = 400
_COLUMNS = 125
_TALLEST = 48
_LANE = 7
_ROW = 22
_MARKS = 400
# Narrower bars would be invisible.
_THINNEST = 1.5


def timeline(parts: Sequence[StepPart], axis: Axis, anchors: dict[str, str]) -> Markup:
    """The chart; nothing for a run that took no time."""
    steps = [part for part in parts if part.rows or (part.unit is not None and _ran(part.unit))]
    if not steps or not axis.seconds:
        return NOTHING
    rows = [_row(part, axis, anchors[part.id]) for part in steps]
    ticks = (
        tag("span", took_text(axis.seconds * n / _TICKS) if n else "0 s") for n in range(_TICKS + 1)
    )
    entries = [
        e for part in steps if part.unit is not None and not part.rows for e in part.unit.entries
    ]
    kinds = {
        "of-turn": "turn" if any(isinstance(entry, TurnRecord) for entry in entries) else None,
        "of-call": "tool call" if any(isinstance(entry, CallRecord) for entry in entries) else None,
        "of-retry": "retry"
        if any(isinstance(entry, Aside) and isinstance(entry.event, Retry) for entry in entries)
        else None,
    }
    named = [tag("span", word, class_=kind) for kind, word in kinds.items() if word]
    return tag(
        "div",
        *rows,
        tag("div", *ticks, class_="ruler", aria_hidden="true"),
        tag("p", *named, class_="legend") if named else NOTHING,
        _breaks(axis),
        class_="chart",
    )


def _ran(unit: Unit) -> bool:
    return unit.finished is None or unit.finished.status != "skipped"


def _row(part: StepPart, axis: Axis, anchor: str) -> Markup:
    label = tag("a", for_line(part.id), href=f"#{anchor}", title=for_line(part.id))
    unit = part.unit
    seconds = None
    if unit is not None:
        seconds = unit.ended - unit.began if unit.finished is None else unit.finished.seconds
    took = tag("span", "" if seconds is None else took_text(seconds), class_="took")
    return tag("div", label, _draw(part, axis), took, class_="lane")


def _draw(part: StepPart, axis: Axis) -> Markup:
    if not part.rows:
        return _svg(part, _ROW, _bars(part.unit, axis) if part.unit is not None else ())
    rows = list(part.rows.values())
    if len(rows) > _LANED:
        return _svg(part, _TALLEST, _columns(rows, axis))
    lanes, bars = _bars_in_lanes(rows, axis)
    return _svg(part, max(lanes * _LANE, _ROW), bars)


def _svg(part: StepPart, height: float, shapes: Iterator[Markup] | Sequence[Markup]) -> Markup:
    box = f"0 0 {WIDTH:g} {height:g}"
    return tag(
        "svg",
        *shapes,
        viewBox=box,
        preserveAspectRatio="none",
        height=f"{height:g}",
        role="img",
        aria_label=f"{for_line(part.id)} over time",
    )


def _bars(unit: Unit, axis: Axis) -> Iterator[Markup]:
    state = state_of(unit)
    title = f"{for_line(unit.step)}: {WORDS[state]}"
    yield _rect(axis, (unit.began, unit.ended), (2, _ROW - 4), f"unit span {state}", title)
    for entry in unit.entries[:_MARKS]:
        yield _mark(entry, unit, axis)


def _mark(entry: Entry, unit: Unit, axis: Axis) -> Markup:
    match entry:
        case TurnRecord(began=began, ended=ended, said=event):
            title = f"turn {event.place.turn}: {for_line(event.model)}, {took_text(event.seconds)}"
            return _rect(axis, (began, ended), (5, 6), "of-turn", title)
        case CallRecord(began=began, tool=tool, finished=finished):
            ended = began + finished.seconds if finished is not None else unit.ended
            unfinished = "waits for an answer" if entry.waits else "no result"
            word = unfinished if finished is None else call_status(finished)
            kind = "of-call" if word == "ok" else "of-call bad"
            return _rect(axis, (began, ended), (12, 6), kind, f"{for_line(tool)}: {word}")
        case Aside(at=at, event=Retry(reason=reason)):
            return _rect(axis, (at, at), (1, _ROW - 2), "of-retry", f"retry: {for_line(reason)}")
        case _:
            return NOTHING


def _rect(
    axis: Axis, span: tuple[float, float], place: tuple[float, float], kind: str, title: str
) -> Markup:
    left, right = axis.at(span[0]), axis.at(span[1])
    width = max(right - left, _THINNEST)
    left = min(left, WIDTH - width)
    return tag(
        "rect",
        tag("title", title),
        x=f"{left:.1f}",
        y=f"{place[0]:g}",
        width=f"{width:.1f}",
        height=f"{place[1]:g}",
        class_=kind,
    )


def _bars_in_lanes(rows: Sequence[ItemRow], axis: Axis) -> tuple[int, list[Markup]]:
    """A bar for each item, in the first lane that is free when it begins."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    bars = []
    lanes = 0
    for row in sorted(rows, key=lambda item: item.began):
        while busy and busy[0][0] <= row.began:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heapq.heappush(busy, (row.ended, lane))
        title = f"{for_line(row.key)}: {WORDS[row.state]}, {took_text(row.seconds)}"
        place = (lane * _LANE + 1, _LANE - 2)
        bars.append(_rect(axis, (row.began, row.ended), place, f"unit {row.state}", title))
    return lanes, bars


def _columns(rows: Sequence[ItemRow], axis: Axis) -> Iterator[Markup]:
    """The number of items that ended over time: too many to be drawn one by one."""
    well, badly = [0] * _COLUMNS, [0] * _COLUMNS
    for row in rows:
        column = min(int(axis.at(row.ended) / WIDTH * _COLUMNS), _COLUMNS - 1)
        (well if row.state == "ok" else badly)[column] += 1
    most = max(a + b for a, b in zip(well, badly, strict=True))
    step = WIDTH / _COLUMNS
    for column, (good, bad) in enumerate(zip(well, badly, strict=True)):
        top = float(_TALLEST)
        states: tuple[tuple[int, State], ...] = ((bad, "failed"), (good, "ok"))
        for count, state in states:
            height = count / most * _TALLEST
            top -= height
            if count:
                yield tag(
                    "rect",
                    tag("title", f"{count:,} {WORDS[state]}"),
                    x=f"{column * step:.1f}",
                    y=f"{top:.2f}",
                    width=f"{step - 1:.1f}",
                    height=f"{height:.2f}",
                    class_=f"unit {state}",
                )


def _breaks(axis: Axis) -> Markup:
    if len(axis.spans) < 2:  # ruff: ignore[magic-value-comparison] - one part has no break
        return NOTHING
    resumed = (tag("li", f"resumed {when_text(span.began)}") for span in axis.spans[1:])
    return concat([tag("ul", *resumed, class_="breaks")])


_LONG = 12
_STEP_END = Markup("</div></details>")
_TITLE = 100
_ROOMY = 5_000_000
_NARROW = Room(4_000, 1_000, 40)


def page(gathering: Gathering, run: str) -> Iterator[bytes]:
    """The whole file, piece by piece; `gathering` is complete."""
    segments = gathering.history.segments
    name = for_line(segments[0].started.pipeline if segments else run)[:_TITLE]
    return document(f"{name} · aish", _body(gathering, run))


def document(title: str, body: Iterable[Markup]) -> Iterator[bytes]:
    """A whole file with this body, in the style of all pages; nothing else in it is run."""
    style, script = own_file("report.css"), own_file("report.js")
    yield b"<!doctype html>\n"
    yield b'<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    for piece in _head(title, style, script):
        yield f"{piece}\n".encode()
    yield f"<style>{style}</style>\n</head>\n<body>\n".encode()
    for part in body:
        yield f"{part}\n".encode()
    yield f"<script>{script}</script>\n</body>\n</html>\n".encode()


def own_file(name: str) -> str:
    return resources.files("aish.reports.html").joinpath(name).read_text("utf-8")


def _head(title: str, style: str, script: str) -> Iterator[Markup]:
    policy = (
        f"default-src 'none'; style-src '{style_hash(style)}'; script-src '{style_hash(script)}';"
        " base-uri 'none'; form-action 'none'"
    )
    yield tag("meta", http_equiv="Content-Security-Policy", content=policy)
    yield tag("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield tag("meta", name="color-scheme", content="light dark")
    yield tag("meta", name="referrer", content="no-referrer")
    yield tag("title", title)


def style_hash(code: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def _body(gathering: Gathering, run: str) -> Iterator[Markup]:
    parts = gathering.parts()
    anchors = {part.id: f"step-{n}" for n, part in enumerate(parts, 1)}
    yield tag("a", "Skip to the steps", href="#steps", class_="skip")
    yield head(gathering, run)
    yield Markup("<main>")
    yield annotations(gathering)
    chart = timeline(parts, Axis(gathering.history.segments), anchors)
    if chart:
        yield tag("section", tag("h2", "Timeline"), chart, id="timeline")
    yield Markup('<section id="steps">')
    yield tag("h2", "Steps")
    spent = 0
    for part in parts:
        room = Room() if spent < _ROOMY else _NARROW
        for markup in _step(part, anchors[part.id], gathering, room, few=len(parts) <= _LONG):
            yield markup
            spent += len(markup) if not part.rows else 0
    yield Markup("</section>")
    yield from changed_files(gathering)
    yield ingredients(gathering)
    yield Markup("</main>")
    yield tag("footer", f"Made by aish from the journal of {run}. It needs no network.")


def _step(
    part: StepPart, anchor: str, gathering: Gathering, room: Room, *, few: bool
) -> Iterator[Markup]:
    unit = part.unit
    title = tag("h3", for_line(part.id))
    facts: list[str] = []
    state = None
    if unit is not None:
        state = state_of(unit)
        if unit.kind is not None:
            facts.append(unit.kind)
        end = unit.finished
        if end is not None and end.status != "skipped":
            facts += [took_text(end.seconds)]
            if unit.kind == "prompt" and (end.usage != Usage() or end.cost_usd != 0):
                facts += [f"{tokens_text(end.usage)} tokens", f"cost {cost_text(end.cost_usd)}"]
    if part.rows:
        states = Counter(row.state for row in part.rows.values())
        total = states.total()
        count = part.unit.count if part.unit is not None else None
        of = (
            f"{total:,} of {count:,} items"
            if count is not None and count > total
            else f"{total:,} items"
        )
        text = states_text(states)
        facts.append(f"{of}, {text}" if text else of)
    summary = tag(
        "summary",
        title,
        chip(state, WORDS[state]) if state is not None else None,
        tag("span", " · ".join(facts), class_="facts"),
    )
    body = unit_body(unit, room) if unit is not None else NOTHING
    opened = few or bool(part.rows) or state not in {"ok", "skipped"}
    whole = tag("details", summary, id=anchor, class_="step", open=opened)
    opening = Markup(f'{whole.removesuffix("</details>")}<div class="body">')
    if not part.rows:
        yield concat([opening, body, _STEP_END])
        return
    yield concat([opening, body])
    yield from items(part, anchor, gathering)
    yield _STEP_END
