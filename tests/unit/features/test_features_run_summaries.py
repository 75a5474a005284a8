"""What past runs came to (B1, B2, B3)."""

import os
from collections.abc import Iterable
from pathlib import Path

from scripted_events import answered, asked, run_finished, run_started, step_finished

from aish.core.events import Event, Exit, Place, Stamped, to_line
from aish.features.history.run_store import RunStore
from aish.features.history.summary import PastRun, tell
from aish.journal.writer import seal

ID = "20261121T190138Z-rows-32be"


def test_a_run_in_parts_took_what_its_parts_took(tmp_path: Path) -> None:
    """One was killed after ten seconds, and gone on with an hour later."""
    told: tuple[tuple[float, Event], ...] = (
        (100.0, run_started()),
        (110.0, step_finished()),
        (3700.0, run_started(resumed_from=ID)),
        (3705.0, run_finished(seconds=5.0)),
    )
    lines = (seal(to_line(Stamped(seq, at, one))) for seq, (at, one) in enumerate(told, 1))
    run = told_of(tmp_path, lines)

    assert run.finished is not None
    assert (run.state, run.finished.seconds) == ("ended", 15.0)


def test_the_time_until_an_answer_is_not_that_of_the_run(tmp_path: Path) -> None:
    """It is paused after ten seconds, answered a day later, and resumed."""
    place = Place("write", turn=1, call="c1")
    paused = Exit(8, "paused", retryable=False, reason="")
    told: tuple[tuple[float, Event], ...] = (
        (100.0, run_started()),
        (109.0, asked(place, "repo__file_write", {})),
        (110.0, run_finished(seconds=10.0, status="paused", exit=paused)),
        (86_400.0, answered(place)),
        (86_500.0, run_started(resumed_from=ID)),
        (86_505.0, run_finished(seconds=5.0)),
    )
    lines = [seal(to_line(Stamped(seq, at, one))) for seq, (at, one) in enumerate(told, 1)]
    (tmp_path / "whole").mkdir()
    (tmp_path / "waiting").mkdir()

    run = told_of(tmp_path / "whole", lines)
    waiting = told_of(tmp_path / "waiting", lines[:3])

    assert run.finished is not None
    assert (run.state, run.finished.seconds, run.pending) == ("ended", 15.0, ())
    assert [one.asked.tool for one in waiting.pending] == ["repo__file_write"]


def told_of(runs: Path, lines: Iterable[bytes]) -> PastRun:
    """What is told of the only run of a folder."""
    folder = runs / ID
    folder.mkdir(mode=0o700)
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    (folder / "events.jsonl").chmod(0o600)

    with RunStore(runs, os.open(runs, os.O_RDONLY)) as store:
        return tell(store, ID)
