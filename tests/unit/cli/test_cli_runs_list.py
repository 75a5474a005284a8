"""The list of runs on screens of several widths."""

from pathlib import Path

import pytest
from scripted_events import run_finished

from aish.cli.commands.runs_list import table
from aish.features.history.summary import PastRun


def past(name: str) -> PastRun:
    return PastRun(
        id=f"20261121T191527Z-{name}-nok5",
        folder=Path(name),
        state="ended",
        pipeline=name,
        finished=run_finished(),
    )


RUNS = (past("nightly"), past("tickets"))


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (None, set()),
        (200, set()),
        (90, {"when (UTC)"}),
        (70, {"when (UTC)", "steps", "tokens in / out"}),
        (10, {"when (UTC)", "steps", "tokens in / out", "took"}),
    ],
)
def test_a_narrow_screen_leaves_out_what_matters_least(width: int | None, gone: set[str]) -> None:
    head, *rows = table(RUNS, width)

    everything = {"id", "when (UTC)", "pipeline", "status", "exit", "steps", "tokens in / out"}
    assert {name for name in {*everything, "took"} if name not in head} == gone
    assert [row.split()[0] for row in rows] == [run.id for run in RUNS]
    assert all(len(line) <= (width or 200) for line in (head, *rows) if width != 10)
