"""The run over time, as bars: a row for each step, with its turns, calls and retries, or items."""

import heapq
from collections.abc import Iterator, Sequence

from aish.core.events import Retry
from aish.core.text import for_line
from aish.reports.axis import WIDTH, Axis
from aish.reports.figures import took_text, when_text
from aish.reports.gathering import Row, StepPart
from aish.reports.markup import NOTHING, Markup, joined, tag
from aish.reports.units import Aside, Call, Entry, Turn, Unit
from aish.reports.verdicts import WORDS, State, state_of

_TICKS = 4
_LANED = 400
_COLUMNS = 125
_TALLEST = 48
_LANE = 7
_ROW = 22
_MARKS = 400
# Narrower bars could not be seen.
_THINNEST = 1.5


def timeline(parts: Sequence[StepPart], axis: Axis, anchors: dict[str, str]) -> Markup:
    """The chart; nothing for a run that took no time."""
    shown = [part for part in parts if part.rows or (part.unit is not None and _ran(part.unit))]
    if not shown or not axis.seconds:
        return NOTHING
    rows = [_row(part, axis, anchors[part.id]) for part in shown]
    return tag("div", *rows, _ruler(axis), _legend(shown), _breaks(axis), class_="chart")


def _ran(unit: Unit) -> bool:
    return unit.finished is None or unit.finished.status != "skipped"


def _row(part: StepPart, axis: Axis, anchor: str) -> Markup:
    label = tag("a", for_line(part.id), href=f"#{anchor}", title=for_line(part.id))
    unit = part.unit
    seconds = None
    if unit is not None:
        seconds = unit.ended - unit.began if unit.finished is None else unit.finished.seconds
    took = tag("span", "" if seconds is None else took_text(seconds), class_="took")
    return tag("div", label, _drawing(part, axis), took, class_="lane")


def _drawing(part: StepPart, axis: Axis) -> Markup:
    if not part.rows:
        return _svg(part, _ROW, _bars(part.unit, axis) if part.unit is not None else ())
    rows = list(part.rows.values())
    if len(rows) > _LANED:
        return _svg(part, _TALLEST, _columns(rows, axis))
    lanes, bars = _laned(rows, axis)
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
    said = f"{for_line(unit.step)}: {WORDS[state]}"
    yield _rect(axis, (unit.began, unit.ended), (2, _ROW - 4), f"unit span {state}", said)
    for entry in unit.entries[:_MARKS]:
        yield _mark(entry, unit, axis)


def _mark(entry: Entry, unit: Unit, axis: Axis) -> Markup:
    match entry:
        case Turn(began=began, ended=ended, said=said):
            title = f"turn {said.place.turn}: {for_line(said.model)}, {took_text(said.seconds)}"
            return _rect(axis, (began, ended), (5, 6), "of-turn", title)
        case Call(began=began, tool=tool, finished=finished):
            ended = began + finished.seconds if finished is not None else unit.ended
            word = "no result" if finished is None else finished.kind
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


def _laned(rows: Sequence[Row], axis: Axis) -> tuple[int, list[Markup]]:
    """Each item a bar, in the first lane that is free when it begins."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    bars = []
    lanes = 0
    for row in sorted(rows, key=lambda one: one.began):
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


def _columns(rows: Sequence[Row], axis: Axis) -> Iterator[Markup]:
    """How many items ended when: too many to be drawn one by one."""
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


def _legend(parts: Sequence[StepPart]) -> Markup:
    """What the bars within a bar are, where there are any."""
    entries = [
        e for part in parts if part.unit is not None and not part.rows for e in part.unit.entries
    ]
    kinds = {
        "of-turn": "turn" if any(isinstance(one, Turn) for one in entries) else None,
        "of-call": "tool call" if any(isinstance(one, Call) for one in entries) else None,
        "of-retry": "retry" if any(_is_retry(one) for one in entries) else None,
    }
    named = [tag("span", word, class_=kind) for kind, word in kinds.items() if word]
    return tag("p", *named, class_="legend") if named else NOTHING


def _is_retry(entry: Entry) -> bool:
    return isinstance(entry, Aside) and isinstance(entry.event, Retry)


def _ruler(axis: Axis) -> Markup:
    ticks = (
        tag("span", took_text(axis.seconds * n / _TICKS) if n else "0 s") for n in range(_TICKS + 1)
    )
    return tag("div", *ticks, class_="ruler", aria_hidden="true")


def _breaks(axis: Axis) -> Markup:
    if len(axis.spans) < 2:  # ruff: ignore[magic-value-comparison] - one part has no break
        return NOTHING
    resumed = (tag("li", f"resumed {when_text(span.began)}") for span in axis.spans[1:])
    return joined([tag("ul", *resumed, class_="breaks")])
