"""`--github`: a run on the page of its job, written when it has ended (B11).

Collected first: a row per step, and the first failures. The size is bounded however many items
there are: successful ones are only counted. Then written twice, as the step summary and as
annotations at the steps of the pipeline file. `aish test --github` reports its cases the same way
(C12).

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
    RunFinished,
    RunStarted,
    Stamped,
    ToolDecided,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import counted, shorten
from aish.core.text import for_line
from aish.journal.history import Annotations, Call, Ended, History, Unit
from aish.journal.questions import Question
from aish.output.formats.junit import CaseResult, Suite
from aish.output.result import LEVELS, place_text
from aish.output.status import (
    Tally,
    approve_command,
    calls_text,
    seconds_text,
    short_id,
    until_text,
)
from aish.reports.figures import UNKNOWN, cost_text, tokens_text, took_text
from aish.reports.github.commands import LIMIT, Job, Spot, annotation
from aish.reports.markup import Markup, joined, tag
from aish.reports.outcome import WORDS, Reason, State, answer_of, reason_of, state_of

FIRST = 10
WELL: frozenset[State] = frozenset({"ok", "skipped"})
_NOT_BAD: frozenset[State] = WELL | {"paused"}
_MANY = 1000


@slotted
class Row:
    """A step: its status, and those of its items, if it has any.

    `trouble` has the state of each item that did not succeed, `failures` describe the first ones;
    `paused` items wait for an answer. `exit_code` is that of its last command.
    """

    step: str
    state: State = "cut_off"
    reason: Reason | None = None
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
        """The number of its items that have ended."""
        return self.items_ok + len(self.paused) + len(self.trouble)

    @property
    def is_bad(self) -> bool:
        """Whether it did not succeed, and does not only wait."""
        return self.state not in _NOT_BAD or bool(self.trouble)


@frozen
class Failed:
    """A failed item: the reason, its unmet expectations, and its answer."""

    reason: Reason
    unmet: tuple[str, ...]
    answer: JsonValue


@slotted
class Denial:
    """A denied call; `count` says how often, `is_told` whether a step reports it as its failure."""

    decided: ToolDecided
    count: int = 0
    is_told: bool = False

    @property
    def arguments(self) -> str:
        """What would have been sent, shortened."""
        return shorten(json_text(self.decided.arguments, spaced=True), _CELL)


@slotted
class Gathered:
    """The data of the report; `finished` is `None` if the run has no end.

    `denials` are by tool and digest of the call.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    denials: dict[tuple[str, str], Denial] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    _history: History = field(default_factory=History)

    @property
    def started(self) -> RunStarted | None:
        """The start of its last segment."""
        segments = self._history.segments
        return segments[-1].started if segments else None

    @property
    def finished(self) -> RunFinished | None:
        """The end of its last segment."""
        segments = self._history.segments
        return segments[-1].finished if segments else None

    @property
    def annotations(self) -> Annotations:
        """The annotations of the run."""
        return self._history.annotations

    @property
    def pending(self) -> Sequence[Question]:
        """The questions without an answer."""
        return self._history.pending

    def take(self, stamped: Stamped) -> None:
        """Fold one event in."""
        self.tally.take(stamped)
        event = stamped.event
        if isinstance(event, ApprovalAnswered):
            # What it changes in a unit that has ended is not shown here.
            self._history.take(stamped)
            return
        if isinstance(event, Notice) and event.level != "info" and len(self.notices) < FIRST:
            self.notices.append(event)
        self._add(self._history.take(stamped))

    def end(self) -> None:
        """No more events follow: open units were interrupted."""
        self._add(self._history.rest())

    def worst_first(self) -> list[Row]:
        """The steps, those that did not succeed before the others."""
        return sorted(self.rows.values(), key=lambda row: row.state in WELL)

    def _add(self, ended: Iterable[Ended]) -> None:
        for one in ended:
            if isinstance(one, Unit):
                self._add_unit(one)
            elif isinstance(one, Call) and one.is_refused and one.decided is not None:
                call = (one.tool, one.decided.digest)
                if call in self.denials or len(self.denials) < _MANY:
                    self.denials.setdefault(call, Denial(one.decided)).count += 1

    def _add_unit(self, unit: Unit) -> None:
        refused = [call.decided for call in unit.calls if call.is_refused and call.decided]
        if state_of(unit) == "denied" and refused:
            known = self.denials.get((refused[-1].tool, refused[-1].digest))
            if known is not None:
                known.is_told = True
        row = self.rows.setdefault(unit.step, Row(unit.step))
        for end in (call.finished for call in unit.calls):
            if end is not None:
                row.calls = row.calls.plus(end.kind, end.exit_code)
                row.exit_code = end.exit_code
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


def _reason(unit: Unit) -> Reason | None:
    """Why it did not succeed, at least in a word; `None` if it did."""
    state = state_of(unit)
    return None if state in WELL else reason_of(unit) or Reason(state, WORDS[state])


def _unmet(unit: Unit) -> tuple[str, ...]:
    return tuple(one.message for one in unit.checks if not one.ok)[:FIRST]


FileName = Callable[[str], str]
"""A file as GitHub names it."""

# GitHub shows this many of each kind per step, and drops the others.
MOST = 10


def annotations(run: Gathered, spots: Mapping[str, Spot], name: FileName = str) -> Iterator[str]:
    """Lines for the runner; `spots` has the position of each step, `name` names other files.

    The failures of the run and its annotations alternate, so that neither displaces the other.
    """
    found = partial(_found, run, name)
    yield from islice(_in_turn([_errors(run, spots), found("error")]), MOST)
    yield from islice(_in_turn([found("warning"), _warnings(run, spots)]), MOST)
    yield from islice(_in_turn([_waiting(run), found("notice")]), MOST)


def _found(run: Gathered, name: FileName, level: AnnotationLevel) -> Iterator[str]:
    """The annotations of the pipeline."""
    title = run.started.pipeline if run.started is not None else "aish"
    for one in run.annotations.found:
        if one.level == level:
            spot = None if one.path is None else Spot(name(one.path), one.line, None, one.end_line)
            yield annotation(level, title, one.message, spot)


def _waiting(run: Gathered) -> Iterator[str]:
    """A paused run has not failed: what it waits for, and how that is answered."""
    end = run.finished
    if end is None or end.status != "paused":
        return
    title = "aish: paused"
    said = (end.exit.reason or "calls wait for an answer", end.exit.hint)
    yield annotation("notice", title, "\n".join(filter(None, said)), None)
    for one in run.pending:
        command = f"; {approve_command(one.id, end)}" if end.folder else ""
        text = f"{one.asked.tool} waits for an answer{until_text(one.asked.expires)}{command}"
        yield annotation("notice", title, text, None)


def _errors(run: Gathered, spots: Mapping[str, Spot]) -> Iterator[str]:
    bad = [row for row in run.rows.values() if row.is_bad]
    # One for each step before the second of any.
    told = [_told(row, spots.get(_outermost(row.step))) for row in bad]
    yield from _in_turn(told)
    end = run.finished
    if end is not None and end.exit.code and end.status != "paused" and not bad:
        title = f"aish: exit {end.exit.code} ({end.exit.name})"
        yield annotation("error", title, end.exit.reason, next(iter(spots.values()), None))


def _in_turn(several: list[Iterator[str]]) -> Iterator[str]:
    while several:
        for one in tuple(several):
            line = next(one, None)
            if line is None:
                several.remove(one)
            else:
                yield line


def _told(row: Row, spot: Spot | None) -> Iterator[str]:
    title = f"step {row.step} {row.state.replace('_', ' ')}"
    if row.reason is not None:
        for message in row.unmet or (_with_rule(row.reason),):
            yield annotation("error", title, message, spot)
    for key, failed in row.failures.items():
        message = (failed.unmet or (_with_rule(failed.reason),))[0]
        yield annotation("error", f"step {row.step}, item {key}", message, spot)


def _with_rule(reason: Reason) -> str:
    """Return why a step failed; of a denied call with the rule that approves it."""
    if reason.code != "denied" or reason.hint is None:
        return reason.message
    return f"{reason.message}\nhint: {reason.hint}"


def _warnings(run: Gathered, spots: Mapping[str, Spot]) -> Iterator[str]:
    for one in run.denials.values():
        if one.is_told:
            continue
        times = f" ({one.count} times)" if one.count > 1 else ""
        said = f"a call of {one.decided.tool} was denied{times}: the model was informed"
        said += f"; its arguments: {one.arguments}"
        said += f"\nhint: {one.decided.hint}" if one.decided.hint else ""
        spot = spots.get(_outermost(one.decided.place.step or ""))
        yield annotation("warning", "denied tool call", said, spot)
    for notice in run.notices:
        spot = spots.get(_outermost(notice.place.step or ""))
        yield annotation("warning", notice.code, notice.text, spot)


def _outermost(step: str) -> str:
    """The step in this file: `outer/inner` is in another one."""
    return step.partition("/")[0]


_RESERVE = 1000
_CELL = 300
_TEXT = 20_000
_PROSE = 1_000
_LARGEST = 100_000
_WIDTH = 100
_DEEPEST = 4
_MOST_ROWS = 100
_MOST_COLUMNS = 12


class Page:
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
        kept: list[str] = []
        room = self._left - len(f"<table>\n{top}\n{end}".encode()) - 2
        for row in rows:
            line = _table_row("td", row)
            room -= len(line.encode()) + 1
            if room < 0:
                self._cut = True
                break
            kept.append(line)
        if kept:
            self.add("\n".join(["<table>", top, *kept, end]))

    def details(self, summary: Markup, blocks: Iterable[str], *, is_open: bool) -> bool:
        """A collapsible part; whole or not at all."""
        opening = f"<details{' open' if is_open else ''}>\n{tag('summary', summary)}"
        return self.add("\n\n".join([opening, *blocks, "</details>"]))

    def text(self) -> str:
        """The page; empty if nothing fitted."""
        note = "<p>The rest is cut off: GitHub shows no more than this.</p>\n\n"
        return "".join(self._parts) + (note if self._cut and self._parts else "")


def code(text: str, longest: int = _CELL) -> Markup:
    """Untrusted text on one line."""
    return tag("code", for_line(shorten(text, longest)))


def pre(text: str) -> Markup:
    """Untrusted text with its line ends."""
    # The first line end in a `pre` is not shown.
    return tag("pre", f"\n{shorten(text, _TEXT)}")


def value(found: JsonValue) -> Markup:
    """The answer of a step: objects and lists as tables and lists, text unchanged."""
    if isinstance(found, str):
        return pre(found)
    shown = _value(found, 0)
    if not (found and isinstance(found, Mapping | list)):
        return tag("p", shown)
    return shown if len(shown) <= _LARGEST else pre(json_text(found, indent=2))


def within(text: str) -> Markup:
    """A text with its line ends, in a block that an empty line would end."""
    lines = shorten(text.strip(), _PROSE).splitlines() or [""]
    first, *others = (code(line, _PROSE) for line in lines)
    return joined([first, *(part for line in others for part in (tag("br"), line))])


def _value(found: JsonValue, depth: int) -> Markup:
    match found:
        case str():
            return within(found)
        case Mapping() if found and depth < _DEEPEST:
            pairs = ((code(key), _value(inner, depth + 1)) for key, inner in found.items())
            return _rows(pairs, len(found))
        case list() if found and depth < _DEEPEST:
            return _list(found, depth)
        case _:
            return code(json_text(found, spaced=True), _PROSE)


def _list(found: Sequence[JsonValue], depth: int) -> Markup:
    """A table if all are objects with few keys, else a list."""
    objects = [one for one in found if isinstance(one, Mapping)]
    keys = list(dict.fromkeys(str(key) for one in objects for key in one))
    if len(objects) == len(found) and 0 < len(keys) <= _MOST_COLUMNS:
        rows = (
            [_value(one[key], depth + 1) if key in one else None for key in keys] for one in objects
        )
        return _rows(rows, len(found), [code(key) for key in keys])
    items = [tag("li", _value(one, depth + 1)) for one in found[:_MOST_ROWS]]
    left = len(found) - len(items)
    return tag("ul", *items, tag("li", f"and {left:,} more") if left else None)


def _rows(
    rows: Iterable[Sequence[str | None]], count: int, heads: Sequence[str] | None = None
) -> Markup:
    shown = [_table_row("td", row) for row in islice(rows, _MOST_ROWS)]
    top = _table_row("th", heads) if heads is not None else None
    left = count - len(shown)
    more = _table_row("td", [f"and {left:,} more"]) if left else None
    return tag("table", top, *shown, more)


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


def summary(run: Gathered, limit: int = LIMIT) -> str:
    """The page, of at most `limit` bytes; empty if not even its head fitted."""
    page = Page(limit)
    if not page.add("\n".join(_head(run))):
        return ""
    rows = run.worst_first()
    page.table(_HEADS, (_cells(row) for row in rows[:_ROWS]))
    if len(rows) > _ROWS:
        page.add(tag("p", f"and {counted(len(rows) - _ROWS, 'more step')}"))
    _pending(run, page)
    _annotations(run, page)
    for row in [row for row in rows if row.is_bad][:_PARTS]:
        page.details(_title(row), _trouble(row), is_open=True)
    _denials(run, page)
    _notices(run, page)
    _answer(run, page)
    return page.text()


def _head(run: Gathered) -> Iterator[Markup]:
    name = run.started.pipeline if run.started is not None else "?"
    end = run.finished
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
    told = list(run.tally.parts(replace(end, folder=None, cassette=None)))
    if end.cost_usd is None and _has_tokens(run):
        told.append(f"cost {UNKNOWN}")
    yield tag("p", " · ".join(told))
    if end.cassette:
        yield tag("p", f"{end.cassette.use}: ", code(end.cassette.path))
    if end.folder:
        yield tag("p", "run folder: ", code(end.folder))


def _has_tokens(run: Gathered) -> bool:
    return any(
        row.usage.input is not None or row.usage.output is not None for row in run.rows.values()
    )


def _cells(row: Row) -> Sequence[str | None]:
    known = row.usage.input is not None or row.usage.output is not None
    return (
        code(row.step),
        _status(row),
        _items(row),
        took_text(row.seconds) if row.state != "skipped" else None,
        tokens_text(row.usage) if known else None,
        cost_text(row.cost_usd) if known or row.cost_usd is not None else None,
        calls_text(row.calls) or None,
    )


def _status(row: Row) -> str:
    """The status; a command that ended with another code than 0 is no plain success."""
    if row.state == "ok" and row.exit_code:
        return f"{_OF_LEVELS['warning']} exit {row.exit_code}"
    return f"{_SIGNS[row.state]} {WORDS[row.state]}"


def _items(row: Row) -> str | None:
    if not row.items:
        return None
    named = ((len(row.trouble), "not"), (len(row.paused), "paused"))
    return f"{row.items_ok:,} ok" + "".join(f", {count:,} {word}" for count, word in named if count)


def _title(row: Row) -> Markup:
    said = f": {counted(len(row.trouble), 'item')} of {row.items:,}" if row.trouble else ""
    return joined([f"{_SIGNS[row.state]} ", code(row.step), f" {WORDS[row.state]}{said}"])


def _trouble(row: Row) -> Iterator[str]:
    if row.reason is not None:
        yield from _why(row.reason, row.unmet)
        yield from _answered(row.answer)
    for key, failed in row.failures.items():
        yield tag("p", "item ", code(key))
        yield from _why(failed.reason, failed.unmet)
        yield from _answered(failed.answer)
    if (more := len(row.trouble) - len(row.failures)) > 0:
        yield tag("p", f"and {counted(more, 'more item')}")


def _why(reason: Reason, unmet: Sequence[str]) -> Iterator[str]:
    """Unmet expectations are shown in full; the reason only repeats the first in short."""
    for message in unmet or (reason.message,):
        yield pre(message)
    if reason.hint:
        yield tag("p", "hint: ", code(reason.hint))


def _answered(answer: JsonValue) -> Iterator[str]:
    if answer is not None:
        yield tag("p", "The answer:")
        yield value(answer)


def _annotations(run: Gathered, page: Page) -> None:
    """The annotations of the pipeline, the most severe first."""
    found = sorted(run.annotations.found, key=lambda one: LEVELS.index(one.level))
    if not found:
        return
    page.add(tag("p", tag("b", counted(len(found), "annotation"))))
    rows = (
        (f"{_OF_LEVELS[one.level]} {one.level}", code(place_text(one)), within(one.message))
        for one in found[:_ROWS]
    )
    page.table(("Level", "Place", "Message"), rows)
    if more := max(0, len(found) - _ROWS) + run.annotations.left_out:
        page.add(tag("p", f"and {counted(more, 'more annotation')}"))


def _pending(run: Gathered, page: Page) -> None:
    """The calls that wait for an answer, and the command for each (A8)."""
    pending, end = run.pending, run.finished
    if not pending or end is None:
        return
    page.add(tag("p", tag("b", f"⏸️ {counted(len(pending), 'call')} to be answered")))
    rows = (
        (
            code(one.asked.tool),
            code(" ".join(filter(None, (one.asked.place.step, one.asked.place.item)))),
            code(one.asked.reason),
            code(until_text(one.asked.expires).strip()),
            code(approve_command(one.id, end) if end.folder else short_id(one.id)),
        )
        for one in pending[:_ROWS]
    )
    page.table(("Tool", "Step", "Why", "Open", "Answer"), rows)
    for one in pending[:_PARTS]:
        title = joined([code(one.asked.tool), " ", code(short_id(one.id))])
        page.details(title, _call(one), is_open=True)


def _call(question: Question) -> Iterator[Markup]:
    """The whole call as `aish approve` shows it: somebody may answer who sees nothing else."""
    from aish.terminal.approver import UNSHOWN, barred_arguments

    yield tag("p", "digest ", code(question.asked.digest))
    try:
        shown = "\n".join(barred_arguments(question.asked.arguments, _WIDTH))
    except RecursionError:
        yield tag("p", UNSHOWN)
        return
    if len(shown) > _LARGEST:
        said = f"its arguments have {len(shown):,} characters, and are not shown here"
        yield tag("p", said, ": ", code("aish approve"), " shows them")
    else:
        yield tag("pre", f"\n{shown}")


def _denials(run: Gathered, page: Page) -> None:
    if run.denials:
        total = sum(one.count for one in run.denials.values())
        most = sorted(run.denials.values(), key=lambda one: -one.count)[: FIRST * 10]
        page.add(tag("p", tag("b", f"🚫 {counted(total, 'denied tool call')}")))
        page.table(
            ("Tool", "Arguments", "Times", "Hint"),
            (
                (
                    code(one.decided.tool),
                    code(one.arguments),
                    f"{one.count}",
                    code(one.decided.hint, _PROSE) if one.decided.hint else None,
                )
                for one in most
            ),
        )


def _notices(run: Gathered, page: Page) -> None:
    if run.notices:
        lines = (pre(notice.text) for notice in run.notices)
        page.details(joined([f"⚠️ {counted(len(run.notices), 'notice')}"]), lines, is_open=False)


def _answer(run: Gathered, page: Page) -> None:
    """The answer of the last step, collapsed: the log has it too."""
    said = [row for row in run.rows.values() if row.answer is not None]
    if said and run.finished is not None and run.finished.exit.code == 0:
        title = joined(["The answer of ", code(said[-1].step)])
        page.details(title, [value(said[-1].answer)], is_open=False)


class GitHub:
    """Folds events; `close` writes the output for the job.

    `spots` has the position of each step, `name` returns other files as GitHub names them.
    """

    name = "the GitHub summary"
    deltas = False

    def __init__(self, job: Job, spots: Mapping[str, Spot], name: FileName = str) -> None:
        self._job = job
        self._spots = spots
        self._name = name
        self._run = Gathered()

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in."""
        self._run.take(stamped)

    def close(self) -> None:
        """Print the annotations and write the summary."""
        self._run.end()
        self._job.annotate(annotations(self._run, self._spots, self._name))
        self._job.summarise(lambda limit: summary(self._run, limit))


_MOST_CASES = 100


def cases_summary(line: str, suites: Sequence[Suite], limit: int = LIMIT) -> str:
    """The page; `line` is the result in short."""
    page = Page(limit)
    bad = _bad(suites)
    sign = "❌" if bad else "✅"
    if not page.add("\n".join([tag("h3", f"{sign} aish test"), tag("p", line)])):
        return ""
    heads = ("File", "Passed", "Not passed", "Time")
    page.table(heads, map(_row, sorted(suites, key=lambda suite: not _bad([suite]))))
    for case in bad[:_MOST_CASES]:
        title = joined(["❌ ", code(case.classname), " ", code(case.name)])
        texts = (pre(trouble.text or trouble.message) for trouble in case.troubles)
        page.details(title, texts, is_open=len(bad) <= MOST)
    return page.text()


def case_annotations(suites: Sequence[Suite], name: dict[str, str]) -> Iterator[str]:
    """Lines for the runner; `name` returns each file as GitHub names it."""
    for case in islice(_bad(suites), MOST):
        spot = None if case.file is None else Spot(name.get(case.file, case.file), 1, 1)
        for trouble in case.troubles[:1]:
            yield annotation("error", case.name, trouble.text or trouble.message, spot)


def _bad(suites: Sequence[Suite]) -> list[CaseResult]:
    return [case for suite in suites for case in suite.cases if case.troubles]


def _row(suite: Suite) -> Sequence[str | None]:
    bad = len(_bad([suite]))
    took = seconds_text(suite.seconds)
    return code(suite.name), f"{len(suite.cases) - bad}", f"{bad}" if bad else None, took
