"""The annotations of a run: its failures beside the steps of the pipeline file (B11)."""

from collections.abc import Iterator, Mapping
from itertools import islice

from aish.reports.github.commands import Spot, annotation
from aish.reports.github.gathered import WELL, Gathered, Row

# GitHub shows so many of each kind for a step, and drops the others.
MOST = 10


def annotations(run: Gathered, spots: Mapping[str, Spot]) -> Iterator[str]:
    """Lines for the runner; `spots` says where each step stands."""
    yield from islice(_errors(run, spots), MOST)
    yield from islice(_warnings(run, spots), MOST)


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
    for key, (reason, unmet) in row.failures.items():
        yield annotation(
            "error", f"step {row.step}, item {key}", (unmet or (reason.message,))[0], spot
        )


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
