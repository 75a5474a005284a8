"""What past runs came to (B1, B2, B3)."""

import os
from pathlib import Path

import pytest
from scripted_events import run_finished, run_started, step_finished

from aish.core.events import Event, Stamped, to_line
from aish.features.history.run_store import RunStore
from aish.features.history.summary import tell
from aish.journal.writer import sealed

ID = "20261121T190138Z-rows-32be"


@pytest.mark.requirement("B3")
def test_a_run_in_parts_took_what_its_parts_took(tmp_path: Path) -> None:
    """One was killed after ten seconds, and gone on with an hour later."""
    told: tuple[tuple[float, Event], ...] = (
        (100.0, run_started()),
        (110.0, step_finished()),
        (3700.0, run_started(resumed_from=ID)),
        (3705.0, run_finished(seconds=5.0)),
    )
    lines = (sealed(to_line(Stamped(seq, at, one))) for seq, (at, one) in enumerate(told, 1))
    folder = tmp_path / ID
    folder.mkdir(mode=0o700)
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    (folder / "events.jsonl").chmod(0o600)

    with RunStore(tmp_path, os.open(tmp_path, os.O_RDONLY)) as store:
        run = tell(store, ID)

    assert run.finished is not None
    assert (run.state, run.finished.seconds) == ("ended", 15.0)
