"""The annotations of a run: its failures beside the steps of the pipeline file (B11)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

from aish.core.events import AnnotationLevel
from aish.reports.github.commands import Spot, annotation
from aish.reports.github.gathered import WELL, Gathered, Row

FileName = Callable[[str], str]
"""A file as GitHub names it."""

# GitHub shows so many of each kind for a step, and drops the others.
MOST = 10


def annotations(run: Gathered, spots: Mapping[str, Spot], name: FileName = str) -> Iterator[str]:
    """Lines for the runner; `spots` says where each step stands, `name` names other files.

    What a run failed by and what it found take turns, so that neither keeps the other out.
    """
    found = partial(_found, run, name)
    yield from islice(_in_turn([_errors(run, spots), found("error")]), MOST)
    yield from islice(_in_turn([found("warning"), _warnings(run, spots)]), MOST)
    yield from islice(found("notice"), MOST)


def _found(run: Gathered, name: FileName, level: AnnotationLevel) -> Iterator[str]:
    """What the pipeline has to say of files."""
    title = run.started.pipeline if run.started is not None else "aish"
    for one in run.annotations.found:
        if one.level == level:
            spot = None if one.path is None else Spot(name(one.path), one.line, None, one.end_line)
            yield annotation(level, title, one.message, spot)


def _errors(run: Gathered, spots: Mapping[str, Spot]) -> Iterator[str]:
    bad = [row for row in run.rows.values() if row.state not in WELL or row.trouble]
    # One for each step before the second of any.
    told = [_told(row, spots.get(_outermost(row.step))) for row in bad]
    yield from _in_turn(told)
    end = run.finished
    if end is not None and end.exit.code and not bad:
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
        for message in row.unmet or (row.reason.message,):
            yield annotation("error", title, message, spot)
    for key, failed in row.failures.items():
        message = (failed.unmet or (failed.reason.message,))[0]
        yield annotation("error", f"step {row.step}, item {key}", message, spot)


def _warnings(run: Gathered, spots: Mapping[str, Spot]) -> Iterator[str]:
    for tool, count in run.denials.items():
        times = f" ({count} times)" if count > 1 else ""
        said = f"a call of {tool} was denied{times}: the model was told so"
        yield annotation("warning", "denied tool call", said, None)
    for notice in run.notices:
        spot = spots.get(_outermost(notice.place.step or ""))
        yield annotation("warning", notice.code, notice.text, spot)


def _outermost(step: str) -> str:
    """The step of this file: `outer/inner` stands in another one."""
    return step.partition("/")[0]
