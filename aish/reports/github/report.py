"""`--github`: a run on the page of its job, written when it has ended.

Collected first: a row per step, and the first failures. The size is bounded however many items
there are: successful ones are only counted. Then written twice, as the step summary and as
annotations at the steps of the pipeline file. `aish test --github` reports its cases the same way.

The summary is a Markdown page of limited size: GitHub would drop a larger one whole, so it is cut,
with a note. All of it is HTML: untrusted text is escaped by one function (`tag` of
`reports.markup`), is in `code` and `pre`, where GitHub makes no mentions, references and links, and
is never parsed as Markdown. A block of HTML ends at an empty line, or, if it begins with `<pre`, at
`</pre>`; so only the text of a `pre` may have line ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice

from aish.core.events import (
    AnnotationLevel,
    ApprovalAnswered,
    CallCounts,
    Notice,
    Stamped,
    StepKind,
    ToolDecided,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import counted, shorten
from aish.core.text import for_line
from aish.journal.history import CallRecord, Ended, RunHistory, Unit
from aish.journal.questions import RecordedQuestion
from aish.output.formats.junit import CaseResult, CaseSuite
from aish.output.result import LEVELS, place_text
from aish.output.status import (
    Tally,
    approve_command,
    calls_text,
    changes_text,
    flow_text,
    lines_text,
    seconds_text,
    short_id,
    until_text,
)
from aish.reports.figures import UNKNOWN, cost_text, tokens_text, took_text
from aish.reports.github.commands import LIMIT, RunnerJob, Spot, annotation
from aish.reports.markup import Markup, concat, tag
from aish.reports.outcome import WORDS, FailureReason, State, answer_of, reason_of, state_of

FIRST = 10
_CALLS = 200
WELL: frozenset[State] = frozenset({"ok", "skipped"})
_NOT_BAD: frozenset[State] = WELL | {"paused"}
_MANY = 1000


@slotted
class StepRow:
    """A step: its status, and those of its items, if it has any.

    `trouble` has the state of each item that did not succeed, `failures` describe the first ones;
    `paused` items wait for an answer. `exit_code` is that of its last command, `run_code` that of
    the run if nothing else decides it.
    """

    step: str
    kind: StepKind | None = None
    state: State = "cut_off"
    run_code: int = 0
    reason: FailureReason | None = None
    unmet: tuple[str, ...] = ()
    seconds: float | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    calls: CallCounts = CallCounts()
    exit_code: int | None = None
    answer: JsonValue = None
    items_ok: int = 0
    paused: set[str] = field(default_factory=set)
    trouble: dict[str, State] = field(default_factory=dict)
    failures: dict[str, "Failed"] = field(default_factory=dict)

    @property
    def items(self) -> int:
        return self.items_ok + len(self.paused) + len(self.trouble)

    @property
    def is_bad(self) -> bool:
        """True if it did not succeed, and does not only wait."""
        return self.state not in _NOT_BAD or bool(self.trouble)


@frozen
class Failed:
    reason: FailureReason
    unmet: tuple[str, ...]
    answer: JsonValue


@frozen
class CallRow:
    """A call that was made: how it ended, and whether that is trouble."""

    tool: str
    step: str
    arguments: str
    result: str
    is_bad: bool


@slotted
class Denial:
    """A denied call; `count` says how often, `is_told` whether a step reports it as its failure."""

    decided: ToolDecided
    count: int = 0
    is_told: bool = False

    @property
    def arguments(self) -> str:
        return _arguments_text(self.decided.arguments)

    @property
    def hint(self) -> str:
        """The sources that held the call, if any did, and the rule that would approve it."""
        flow = "" if self.decided.flow is None else flow_text(self.decided.flow)
        return "; ".join(filter(None, (flow, self.decided.hint)))


@slotted
class ReportData:
    """The data of the report; `finished` is `None` if the run has no end.

    `denials` are by tool and digest of the call; `bad_calls` and `good_calls` are the first ones
    that were made, `calls` counts all.
    """

    rows: dict[str, StepRow] = field(default_factory=dict)
    denials: dict[tuple[str, str], Denial] = field(default_factory=dict)
    bad_calls: list[CallRow] = field(default_factory=list)
    good_calls: list[CallRow] = field(default_factory=list)
    calls: CallCounts = CallCounts()
    notices: list[Notice] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    history: RunHistory = field(default_factory=RunHistory)

    def take(self, stamped: Stamped) -> None:
        self.tally.take(stamped)
        event = stamped.event
        if isinstance(event, ApprovalAnswered):
            # What it changes in a unit that has ended is not shown here.
            self.history.take(stamped)
            return
        if isinstance(event, Notice) and event.level != "info" and len(self.notices) < FIRST:
            self.notices.append(event)
        self._add(self.history.take(stamped))

    def end(self) -> None:
        """No more events follow: open units were interrupted."""
        self._add(self.history.rest())
        self.rows = {step: row for step, row in self.rows.items() if self.history.has(step)}

    def in_order(self) -> list[StepRow]:
        """The steps in the order of the file, each before those of its pipeline."""
        started = self.history.started
        steps = {} if started is None else started.limits.get("steps")
        order = {step: at for at, step in enumerate(steps)} if isinstance(steps, Mapping) else {}
        return sorted(self.rows.values(), key=lambda row: order.get(row.step, len(order)))

    def deciding_row(self) -> StepRow | None:
        """The step that the exit code is of; `None` if it succeeded, or something else ended it."""
        end = self.history.finished
        if end is None or not end.exit.code:
            return None
        rows = (row for row in self.in_order() if "/" not in row.step)
        return next((row for row in rows if row.run_code == end.exit.code), None)

    def _add(self, ended: Iterable[Ended]) -> None:
        for entry in ended:
            if isinstance(entry, Unit):
                self._add_unit(entry)
            elif isinstance(entry, CallRecord):
                self._add_call(entry)

    def _add_call(self, entry: CallRecord) -> None:
        if entry.is_refused and entry.decided is not None:
            call = (entry.tool, entry.decided.digest)
            if call in self.denials or len(self.denials) < _MANY:
                self.denials.setdefault(call, Denial(entry.decided)).count += 1
        elif (end := entry.finished) is not None:
            self.calls = self.calls.plus(end.kind, end.exit_code)
            text = f"exit {end.exit_code}" if end.exit_code else end.kind
            row = CallRow(
                entry.tool,
                " ".join(filter(None, (entry.place.step, entry.place.item))),
                _arguments_text(entry.arguments),
                text if end.kind == "ok" else f"{text}: {end.content}",
                is_bad=text != "ok",
            )
            calls = self.bad_calls if row.is_bad else self.good_calls
            if len(calls) < _CALLS:
                calls.append(row)

    def _add_unit(self, unit: Unit) -> None:
        refused = [call.decided for call in unit.calls if call.is_refused and call.decided]
        if state_of(unit) == "denied" and refused:
            known = self.denials.get((refused[-1].tool, refused[-1].digest))
            if known is not None:
                known.is_told = True
        row = self.rows.setdefault(unit.step, StepRow(unit.step))
        for end in (call.finished for call in unit.calls):
            if end is not None:
                row.calls = row.calls.plus(end.kind, end.exit_code)
                row.exit_code = end.exit_code
        if unit.item is None:
            row.kind = unit.kind
            row.state, row.reason, row.unmet = state_of(unit), _reason(unit), _unmet(unit)
            if unit.finished is not None:
                row.seconds, row.answer = unit.finished.seconds, answer_of(unit)
                row.usage, row.cost_usd = unit.finished.usage, unit.finished.cost_usd
                row.run_code = unit.finished.exit_code or 0
            else:
                row.seconds = unit.ended - unit.began
        else:
            _item(row, unit, unit.item)


def _arguments_text(arguments: JsonValue) -> str:
    """The arguments of a call, or what a model wrote instead."""
    text = arguments if isinstance(arguments, str) else json_text(arguments, spaced=True)
    return shorten(text, _ARGUMENTS)


def _item(row: StepRow, unit: Unit, key: str) -> None:
    state, reason = state_of(unit), _reason(unit)
    row.failures.pop(key, None)
    row.trouble.pop(key, None)
    row.paused.discard(key)
    if state == "paused":
        row.paused.add(key)
        return
    if state in WELL or reason is None:
        row.items_ok += 1
        return
    row.trouble[key] = state
    if len(row.failures) < FIRST:
        row.failures[key] = Failed(reason, _unmet(unit), answer_of(unit))


def _reason(unit: Unit) -> FailureReason | None:
    """Return why it did not succeed, at least in a word; `None` if it did."""
    state = state_of(unit)
    return None if state in WELL else reason_of(unit) or FailureReason(state, WORDS[state])


def _unmet(unit: Unit) -> tuple[str, ...]:
    return tuple(check.message for check in unit.checks if not check.ok)[:FIRST]


FileName = Callable[[str], str | None]
"""A file as GitHub names it."""

# GitHub shows this many of each kind per step, and drops the others.
MOST = 10


def annotations(run: ReportData, spots: Mapping[str, Spot], name: FileName = str) -> Iterator[str]:
    """Lines for the runner; `spots` has the position of each step, `name` names other files.

    The failures of the run and its annotations alternate, so that neither displaces the other.
    """
    from_pipeline = partial(_pipeline_annotations, run, name)
    yield from islice(_in_turn([_errors(run, spots), from_pipeline("error")]), MOST)
    yield from islice(_in_turn([from_pipeline("warning"), _warnings(run, spots)]), MOST)
    yield from islice(_in_turn([_question_notices(run), from_pipeline("notice")]), MOST)


def _pipeline_annotations(run: ReportData, name: FileName, level: AnnotationLevel) -> Iterator[str]:
    title = run.history.started.pipeline if run.history.started is not None else "aish"
    for row in run.history.annotations.found:
        if row.level == level:
            file = None if row.path is None else name(row.path)
            spot = None if file is None else Spot(file, row.line, None, row.end_line)
            place = f"{place_text(row)}: " if row.path is not None and file is None else ""
            yield annotation(level, title, f"{place}{row.message}", spot)


def _question_notices(run: ReportData) -> Iterator[str]:
    """A paused run has not failed: what it waits for, and how that is answered."""
    end = run.history.finished
    if end is None or end.status != "paused":
        return
    title = "aish: paused"
    lines = (end.exit.reason or "calls wait for an answer", end.exit.hint)
    yield annotation("notice", title, "\n".join(filter(None, lines)), None)
    for entry in run.history.pending:
        command = f"; {approve_command(entry.id, end)}" if end.folder else ""
        text = f"{entry.asked.tool} waits for an answer{until_text(entry.asked.expires)}{command}"
        yield annotation("notice", title, text, None)


def _errors(run: ReportData, spots: Mapping[str, Spot]) -> Iterator[str]:
    bad = [row for row in run.rows.values() if row.is_bad]
    # One for each step before the second of any.
    errors = [_step_errors(row, spots.get(_outermost(row.step))) for row in bad]
    yield from _in_turn(errors)
    end = run.history.finished
    if end is not None and end.exit.code and end.status != "paused" and not bad:
        title = f"aish: exit {end.exit.code} ({end.exit.name})"
        yield annotation("error", title, end.exit.reason, next(iter(spots.values()), None))


def _in_turn(several: list[Iterator[str]]) -> Iterator[str]:
    while several:
        for source in tuple(several):
            line = next(source, None)
            if line is None:
                several.remove(source)
            else:
                yield line


def _step_errors(row: StepRow, spot: Spot | None) -> Iterator[str]:
    title = f"step {row.step} {row.state.replace('_', ' ')}"
    if row.reason is not None:
        for message in row.unmet or (_with_rule(row.reason),):
            yield annotation("error", title, message, spot)
    for key, failed in row.failures.items():
        message = (failed.unmet or (_with_rule(failed.reason),))[0]
        yield annotation("error", f"step {row.step}, item {key}", message, spot)


def _with_rule(reason: FailureReason) -> str:
    """Return why a step failed; of a denied call with the rule that approves it."""
    if reason.code != "denied" or reason.hint is None:
        return reason.message
    return f"{reason.message}\nhint: {reason.hint}"


def _warnings(run: ReportData, spots: Mapping[str, Spot]) -> Iterator[str]:
    for denial in run.denials.values():
        if denial.is_told:
            continue
        times = f" ({denial.count} times)" if denial.count > 1 else ""
        text = f"a call of {denial.decided.tool} was denied{times}: the model was informed"
        text += f"; its arguments: {denial.arguments}"
        text += f"\nhint: {denial.hint}" if denial.hint else ""
        spot = spots.get(_outermost(denial.decided.place.step or ""))
        yield annotation("warning", "denied tool call", text, spot)
    for notice in run.notices:
        spot = spots.get(_outermost(notice.place.step or ""))
        yield annotation("warning", notice.code, notice.text, spot)


def _outermost(step: str) -> str:
    """The step in this file: `outer/inner` is in another one."""
    return step.partition("/")[0]


_RESERVE = 1000
_CELL = 300
_ARGUMENTS = 200
_TEXT = 20_000
_PROSE = 1_000
_LARGEST = 100_000
_WIDTH = 100
_DEEPEST = 4
_MOST_ROWS = 100
_MOST_COLUMNS = 12


class SummaryPage:
    """Blocks in sequence, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit - _RESERVE
        self._parts: list[str] = []
        self._cut = False

    def add(self, block: str, *, after: int = 0) -> bool:
        """Add a block, if it and `after` bytes after it fit; returns whether they do."""
        size = len(block.encode()) + 2
        if size + after > self._left:
            self._cut = True
            return False
        self._parts.append(f"{block}\n\n")
        self._left -= size
        return True

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
        """A table with as many rows as fit."""
        top, end = _table_row("th", heads), "</table>"
        lines: list[str] = []
        room = self._left - len(f"<table>\n{top}\n{end}".encode()) - 2
        for row in rows:
            line = _table_row("td", row)
            room -= len(line.encode()) + 1
            if room < 0:
                self._cut = True
                break
            lines.append(line)
        if lines:
            self.add("\n".join(["<table>", top, *lines, end]))

    def details(self, summary: Markup, blocks: Iterable[str], *, is_open: bool) -> bool:
        """A collapsible part; whole or not at all."""
        opening = f"<details{' open' if is_open else ''}>\n{tag('summary', summary)}"
        return self.add("\n\n".join([opening, *blocks, "</details>"]))

    def text(self) -> str:
        """The page; empty if nothing fitted."""
        note = "<p>The rest is cut off: GitHub shows no more than this.</p>\n\n"
        return "".join(self._parts) + (note if self._cut and self._parts else "")


def code(text: str, longest: int = _CELL) -> Markup:
    return tag("code", for_line(shorten(text, longest)))


def pre(text: str, longest: int = _TEXT, lang: str | None = None) -> Markup:
    # The first line end in a `pre` is not shown.
    return tag("pre", f"\n{shorten(text, longest)}", lang=lang)


def value(found: JsonValue) -> Markup:
    """The answer of a step: objects and lists as tables and lists, text unchanged."""
    if isinstance(found, str):
        return pre(found)
    markup = _value(found, 0)
    if not (found and isinstance(found, Mapping | list)):
        return tag("p", markup)
    return markup if len(markup) <= _LARGEST else pre(json_text(found, indent=2))


def within(text: str) -> Markup:
    """A text with its line ends, in a block that an empty line would end."""
    lines = shorten(text.strip(), _PROSE).splitlines() or [""]
    first, *others = (code(line, _PROSE) for line in lines)
    return concat([first, *(part for line in others for part in (tag("br"), line))])


def _value(node: JsonValue, depth: int) -> Markup:
    match node:
        case str():
            return within(node)
        case Mapping() if node and depth < _DEEPEST:
            pairs = ((code(key), _value(inner, depth + 1)) for key, inner in node.items())
            return _rows(pairs, len(node))
        case list() if node and depth < _DEEPEST:
            return _list(node, depth)
        case _:
            return code(json_text(node, spaced=True), _PROSE)


def _list(values: Sequence[JsonValue], depth: int) -> Markup:
    """A table if all are objects with few keys, else a list."""
    objects = [item for item in values if isinstance(item, Mapping)]
    keys = list(dict.fromkeys(str(key) for item in objects for key in item))
    if len(objects) == len(values) and 0 < len(keys) <= _MOST_COLUMNS:
        rows = (
            [_value(row[key], depth + 1) if key in row else None for key in keys] for row in objects
        )
        return _rows(rows, len(values), [code(key) for key in keys])
    items = [tag("li", _value(item, depth + 1)) for item in values[:_MOST_ROWS]]
    left = len(values) - len(items)
    return tag("ul", *items, tag("li", f"and {left:,} more") if left else None)


def _rows(
    rows: Iterable[Sequence[str | None]], count: int, heads: Sequence[str] | None = None
) -> Markup:
    lines = [_table_row("td", row) for row in islice(rows, _MOST_ROWS)]
    top = _table_row("th", heads) if heads is not None else None
    left = count - len(lines)
    more = _table_row("td", [f"and {left:,} more"]) if left else None
    return tag("table", top, *lines, more)


def _table_row(cell: str, texts: Sequence[str | None]) -> Markup:
    return tag("tr", *(tag(cell, text or "") for text in texts))


_SIGNS: dict[State, str] = {
    "ok": "✅",
    "failed": "❌",
    "error": "❌",
    "denied": "🚫",
    "paused": "⏸️",
    "skipped": "⏭️",
    "cut_off": "❌",
}
_OF_LEVELS: dict[AnnotationLevel, str] = {"error": "❌", "warning": "⚠️", "notice": "ℹ️"}  # ruff: ignore[ambiguous-unicode-character-string] - the sign
_ROWS = 500
_PARTS = 50
_HEADS = ("Step", "Status", "Items", "Time", "Tokens", "Cost", "Tool calls")


def summary(run: ReportData, limit: int = LIMIT) -> str:
    """The page, of at most `limit` bytes; empty if not even its head fitted."""
    page = SummaryPage(limit)
    if not page.add("\n".join(_head(run))):
        return ""
    rows, deciding = run.in_order(), run.deciding_row()
    # What decided is there, however many there are.
    shown = rows[:_ROWS] + [row for row in rows[_ROWS:] if row is deciding]
    page.table(_HEADS, (_cells(row, decides=row is deciding) for row in shown))
    if len(rows) > _ROWS:
        page.add(tag("p", f"and {counted(len(rows) - _ROWS, 'more step')}"))
    _add_pending(run, page)
    _add_annotations(run, page)
    for row in [row for row in rows if row.is_bad][:_PARTS]:
        page.details(_title(row), _trouble(row), is_open=True)
    _add_changes(run, page)
    _add_calls(run, page)
    if run.notices:
        lines = (pre(notice.text) for notice in run.notices)
        page.details(concat([f"⚠️ {counted(len(run.notices), 'notice')}"]), lines, is_open=False)
    _add_answers(rows, page)
    return page.text()


def _add_answers(rows: Sequence[StepRow], page: SummaryPage) -> None:
    """The answers of prompts, and that of the last step; those in trouble are shown there."""
    # Collapsed: the log has them too.
    having = [row for row in rows if row.answer is not None and not row.is_bad]
    answers = [row for row in having if row.kind == "prompt" or row is having[-1]]
    for row in answers[:_PARTS]:
        title = concat(["The answer of ", code(row.step)])
        page.details(title, [value(row.answer)], is_open=False)


def _head(run: ReportData) -> Iterator[Markup]:
    name = run.history.started.pipeline if run.history.started is not None else "?"
    end = run.history.finished
    if end is None:
        yield tag("h3", "❌ aish: ", code(name))
        yield tag("p", "The run has no end: it was killed, or is still running.")
        return
    sign = "⏸️" if end.status == "paused" else "✅" if end.exit.code == 0 else "❌"
    yield tag("h3", f"{sign} aish: ", code(name))
    if end.exit.code:
        reason = end.exit.reason.partition("\n")[0]
        yield tag("p", tag("b", f"exit {end.exit.code} ({end.exit.name})"), ": ", code(reason))
        if end.exit.hint:
            yield tag("p", "hint: ", code(end.exit.hint))
    facts = list(run.tally.parts(replace(end, folder=None, cassette=None)))
    usages = [row.usage for row in run.rows.values()]
    if end.cost_usd is None and any((one.input, one.output) != (None, None) for one in usages):
        facts.append(f"cost {UNKNOWN}")
    yield tag("p", " · ".join(facts))
    for line in run.tally.served_lines(end):
        yield tag("p", code(line))
    if end.cassette:
        yield tag("p", f"{end.cassette.use}: ", code(end.cassette.path))
    if end.folder:
        yield tag("p", "run folder: ", code(end.folder))


def _cells(row: StepRow, *, decides: bool) -> Sequence[str | None]:
    known = row.usage.input is not None or row.usage.output is not None
    state = (
        f"{_OF_LEVELS['warning']} exit {row.exit_code}"
        if row.state == "ok" and row.exit_code
        else f"{_SIGNS[row.state]} {WORDS[row.state]}"
    )
    return (
        tag("b", code(row.step)) if decides else code(row.step),
        concat([state, tag("br"), tag("b", f"decides: exit {row.run_code}")]) if decides else state,
        _items(row),
        took_text(row.seconds) if row.state != "skipped" else None,
        tokens_text(row.usage) if known else None,
        cost_text(row.cost_usd) if known or row.cost_usd is not None else None,
        calls_text(row.calls) or None,
    )


def _items(row: StepRow) -> str | None:
    if not row.items:
        return None
    named = ((len(row.trouble), "not"), (len(row.paused), "paused"))
    return f"{row.items_ok:,} ok" + "".join(f", {count:,} {word}" for count, word in named if count)


def _title(row: StepRow) -> Markup:
    count = f": {counted(len(row.trouble), 'item')} of {row.items:,}" if row.trouble else ""
    return concat([f"{_SIGNS[row.state]} ", code(row.step), f" {WORDS[row.state]}{count}"])


def _trouble(row: StepRow) -> Iterator[str]:
    if row.reason is not None:
        yield from _why(row.reason, row.unmet)
        yield from _answer_blocks(row.answer)
    for key, failed in row.failures.items():
        yield tag("p", "item ", code(key))
        yield from _why(failed.reason, failed.unmet)
        yield from _answer_blocks(failed.answer)
    if (more := len(row.trouble) - len(row.failures)) > 0:
        yield tag("p", f"and {counted(more, 'more item')}")


def _why(reason: FailureReason, unmet: Sequence[str]) -> Iterator[str]:
    """Unmet expectations are shown in full; the reason only repeats the first in short."""
    for message in unmet or (reason.message,):
        yield pre(message)
    if reason.hint:
        yield tag("p", "hint: ", code(reason.hint))


def _answer_blocks(answer: JsonValue) -> Iterator[str]:
    if answer is not None:
        yield tag("p", "The answer:")
        yield value(answer)


def _add_annotations(run: ReportData, page: SummaryPage) -> None:
    entries = sorted(run.history.annotations.found, key=lambda row: LEVELS.index(row.level))
    if not entries:
        return
    page.add(tag("p", tag("b", counted(len(entries), "annotation"))))
    rows = (
        (f"{_OF_LEVELS[entry.level]} {entry.level}", code(place_text(entry)), within(entry.message))
        for entry in entries[:_ROWS]
    )
    page.table(("Level", "Place", "Message"), rows)
    if more := max(0, len(entries) - _ROWS) + run.history.annotations.left_out:
        page.add(tag("p", f"and {counted(more, 'more annotation')}"))


def _add_pending(run: ReportData, page: SummaryPage) -> None:
    """The calls that wait for an answer, and the command for each."""
    pending, end = run.history.pending, run.history.finished
    if not pending or end is None:
        return
    page.add(tag("p", tag("b", f"⏸️ {counted(len(pending), 'call')} to be answered")))
    rows = (
        (
            code(question.asked.tool),
            code(" ".join(filter(None, (question.asked.place.step, question.asked.place.item)))),
            code(question.asked.reason),
            code(until_text(question.asked.expires).strip()),
            code(approve_command(question.id, end) if end.folder else short_id(question.id)),
        )
        for question in pending[:_ROWS]
    )
    page.table(("Tool", "Step", "Why", "Open", "Answer"), rows)
    for question in pending[:_PARTS]:
        title = concat([code(question.asked.tool), " ", code(short_id(question.id))])
        page.details(title, _whole_call(question), is_open=True)


def _whole_call(question: RecordedQuestion) -> Iterator[Markup]:
    """The whole call as `aish approve` shows it: somebody may answer who sees nothing else."""
    from aish.terminal.approver import UNSHOWN, arguments_with_bar

    yield tag("p", "digest ", code(question.asked.digest))
    try:
        arguments_text = "\n".join(arguments_with_bar(question.asked.arguments, _WIDTH))
    except RecursionError:
        yield tag("p", UNSHOWN)
        return
    if len(arguments_text) > _LARGEST:
        reason = f"its arguments have {len(arguments_text):,} characters, and are not shown here"
        yield tag("p", reason, ": ", code("aish approve"), " shows them")
    else:
        yield tag("pre", f"\n{arguments_text}")


def _add_changes(run: ReportData, page: SummaryPage) -> None:
    """The files that each part of the run has changed, and the difference."""
    for change in run.history.changes:
        page.add(tag("p", tag("b", "Changed files"), ": ", code(changes_text(change), _PROSE)))
        rows = ((code(file.path), file.change, lines_text(file)) for file in change.files[:_ROWS])
        page.table(("File", "Change", "Lines"), rows)
        if more := change.more + max(0, len(change.files) - _ROWS):
            page.add(tag("p", f"and {counted(more, 'more file')}"))
        if change.patch:
            title: list[str] = ["The difference"]
            if change.cut or len(change.patch) > _LARGEST:
                title.append(", its first part")
            if change.kept:
                title += [": ", code(change.kept)]
            blocks = [pre(change.patch, _LARGEST, lang="diff")]
            page.details(concat(title), blocks, is_open=False)


_CALL_HEADS = ("Tool", "Step", "Arguments", "Result")


def _add_calls(run: ReportData, page: SummaryPage) -> None:
    """The calls: those that failed and denied ones first, each denied one once."""
    denied = sum(denial.count for denial in run.denials.values())
    total = run.calls.total + denied
    if not total:
        return
    counts = calls_text(replace(run.calls, total=total, denied=denied), "tool call")
    most = sorted(run.denials.values(), key=lambda denial: -denial.count)[: FIRST * 10]
    if most or run.bad_calls:
        page.add(tag("p", tag("b", f"{_OF_LEVELS['warning']} {counts}")))
        page.table(_CALL_HEADS, [*map(_call_cells, run.bad_calls), *map(_denied_cells, most)])
    if run.good_calls:
        rows = [_table_row("td", _call_cells(call)) for call in run.good_calls]
        table = "\n".join(["<table>", _table_row("th", _CALL_HEADS), *rows, "</table>"])
        good = run.calls.total - run.calls.failed - run.calls.exit_nonzero
        more = [tag("p", f"and {counted(left, 'more call')}")] if (left := good - len(rows)) else []
        title = f"{counted(good, 'tool call')} that succeeded" if good < total else counts
        page.details(concat([title]), [table, *more], is_open=False)


def _call_cells(call: CallRow) -> Sequence[Markup]:
    return code(call.tool), code(call.step), code(call.arguments), code(call.result)


def _denied_cells(denial: Denial) -> Sequence[Markup]:
    times = f" ({denial.count:,} times)" if denial.count > 1 else ""
    hint = [tag("br"), code(denial.hint, _PROSE)] if denial.hint else []
    place = denial.decided.place
    return (
        code(denial.decided.tool),
        code(" ".join(filter(None, (place.step, place.item)))),
        code(denial.arguments),
        concat([f"{_SIGNS['denied']} denied{times}", *hint]),
    )


class GitHub:
    """Folds events; `close` writes the output for the job.

    `spots` has the position of each step, `name` returns other files as GitHub names them.
    """

    name = "the GitHub summary"
    deltas = False

    def __init__(self, job: RunnerJob, spots: Mapping[str, Spot], name: FileName = str) -> None:
        self._job = job
        self._spots = spots
        self._name = name
        self._run = ReportData()

    def __call__(self, stamped: Stamped) -> None:
        self._run.take(stamped)

    def close(self) -> None:
        self._run.end()
        self._job.annotate(annotations(self._run, self._spots, self._name))
        self._job.summarise(lambda limit: summary(self._run, limit))


_MOST_CASES = 100


def cases_summary(line: str, suites: Sequence[CaseSuite], limit: int = LIMIT) -> str:
    page = SummaryPage(limit)
    bad = _bad(suites)
    sign = "❌" if bad else "✅"
    if not page.add("\n".join([tag("h3", f"{sign} aish test"), tag("p", line)])):
        return ""
    heads = ("File", "Passed", "Not passed", "Time")
    page.table(heads, map(_row, sorted(suites, key=lambda suite: not _bad([suite]))))
    for case in bad[:_MOST_CASES]:
        title = concat(["❌ ", code(case.classname), " ", code(case.name)])
        texts = (pre(trouble.text or trouble.message) for trouble in case.troubles)
        page.details(title, texts, is_open=len(bad) <= MOST)
    return page.text()


def case_annotations(suites: Sequence[CaseSuite], name: FileName) -> Iterator[str]:
    """Lines for the runner; `name` returns each file as GitHub names it."""
    for case in islice(_bad(suites), MOST):
        file = None if case.file is None else name(case.file)
        spot = None if file is None else Spot(file, 1, 1)
        for trouble in case.troubles[:1]:
            yield annotation("error", case.name, trouble.text or trouble.message, spot)


def _bad(suites: Sequence[CaseSuite]) -> list[CaseResult]:
    return [case for suite in suites for case in suite.cases if case.troubles]


def _row(suite: CaseSuite) -> Sequence[str | None]:
    bad = len(_bad([suite]))
    took = seconds_text(suite.seconds)
    return code(suite.name), f"{len(suite.cases) - bad}", f"{bad}" if bad else None, took
