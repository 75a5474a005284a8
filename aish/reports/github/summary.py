"""The step summary of a run: what came of it, its steps with the failures first (B11)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aish.core.events import AnnotationLevel
from aish.core.json import JsonValue
from aish.core.text import counted
from aish.output.result import LEVELS, place_text
from aish.reports.figures import UNKNOWN, cost_text, tokens_text, took_text
from aish.reports.github.gathered import FIRST, WELL, Gathered, Row
from aish.reports.github.job import LIMIT
from aish.reports.github.page import Page, code, pre, value, within
from aish.reports.markup import Markup, joined, tag
from aish.reports.verdicts import WORDS, Reason, State

_SIGNS: dict[State, str] = {
    "ok": "✅",
    "failed": "❌",
    "error": "❌",
    "denied": "🚫",
    "skipped": "⏭️",
    "cut_off": "❌",
}
_OF_LEVELS: dict[AnnotationLevel, str] = {"error": "❌", "warning": "⚠️", "notice": "ℹ️"}  # ruff: ignore[ambiguous-unicode-character-string] - the sign
_ROWS = 500
_PARTS = 50
_HEADS = ("Step", "Status", "Items", "Time", "Tokens", "Cost", "Tool calls")


def summary(run: Gathered, limit: int = LIMIT) -> str:
    """The page, of at most `limit` bytes; empty where not even its head had room."""
    page = Page(limit)
    if not page.add("\n".join(_head(run))):
        return ""
    rows = run.worst_first()
    page.table(_HEADS, (_cells(row) for row in rows[:_ROWS]))
    if len(rows) > _ROWS:
        page.add(tag("p", f"and {counted(len(rows) - _ROWS, 'more step')}"))
    _annotations(run, page)
    for row in [row for row in rows if row.state not in WELL or row.trouble][:_PARTS]:
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
        yield tag("p", "The run has no end: it was killed, or it still goes on.")
        return
    sign = "✅" if end.exit.code == 0 else "❌"
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
        f"{_SIGNS[row.state]} {WORDS[row.state]}",
        _items(row),
        took_text(row.seconds) if row.state != "skipped" else None,
        tokens_text(row.usage) if known else None,
        cost_text(row.cost_usd) if known or row.cost_usd is not None else None,
        f"{row.calls}" if row.calls else None,
    )


def _items(row: Row) -> str | None:
    if not row.items:
        return None
    bad = len(row.trouble)
    return f"{row.items_ok:,} ok" + (f", {bad:,} not" if bad else "")


def _title(row: Row) -> Markup:
    said = f": {counted(len(row.trouble), 'item')} of {row.items:,}" if row.trouble else ""
    return joined([f"{_SIGNS[row.state]} ", code(row.step), f" {WORDS[row.state]}{said}"])


def _trouble(row: Row) -> Iterator[str]:
    if row.reason is not None:
        yield from _reason(row.reason, row.unmet)
        yield from _answered(row.answer)
    for key, failed in row.failures.items():
        yield tag("p", "item ", code(key))
        yield from _reason(failed.reason, failed.unmet)
        yield from _answered(failed.answer)
    if (more := len(row.trouble) - len(row.failures)) > 0:
        yield tag("p", f"and {counted(more, 'more item')}")


def _reason(reason: Reason, unmet: Sequence[str]) -> Iterator[str]:
    """What does not hold is said in full; the reason is the first of it in short."""
    for message in unmet or (reason.message,):
        yield pre(message)
    if reason.hint:
        yield tag("p", "hint: ", code(reason.hint))


def _answered(answer: JsonValue) -> Iterator[str]:
    if answer is not None:
        yield tag("p", "The answer:")
        yield value(answer)


def _annotations(run: Gathered, page: Page) -> None:
    """What the pipeline has to say of files, those that matter most first."""
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


def _denials(run: Gathered, page: Page) -> None:
    if run.denials:
        total = sum(run.denials.values())
        most = sorted(run.denials.items(), key=lambda one: -one[1])[: FIRST * 10]
        page.add(tag("p", tag("b", f"🚫 {counted(total, 'denied tool call')}")))
        page.table(("Tool", "Times"), ((code(tool), f"{count}") for tool, count in most))


def _notices(run: Gathered, page: Page) -> None:
    if run.notices:
        lines = (pre(notice.text) for notice in run.notices)
        page.details(joined([f"⚠️ {counted(len(run.notices), 'notice')}"]), lines, is_open=False)


def _answer(run: Gathered, page: Page) -> None:
    """What the last step said, folded: the log has it too."""
    said = [row for row in run.rows.values() if row.answer is not None]
    if said and run.finished is not None and run.finished.exit.code == 0:
        title = joined(["The answer of ", code(said[-1].step)])
        page.details(title, [value(said[-1].answer)], is_open=False)
