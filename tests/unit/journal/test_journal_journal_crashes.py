"""A journal whose writer is killed: at every failpoint, by a process that dies there."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import journal_process
import pytest
from journal_process import FAILPOINTS, SYNCS, event
from samples import sampled
from scripted_events import START

from aish.core.events import Stamped, to_object
from aish.journal.reader import read_journal
from aish.journal.writer import open_journal

SEED = 20261121
# A full disk is told, not died of.
KILLED = {**dict.fromkeys(FAILPOINTS, -signal.SIGKILL), "torn-write-then-full": 1}


def died(folder: Path, failpoint: str, at: int) -> tuple[int, int]:
    """The last record that was acknowledged, and how the process ended."""
    done = subprocess.run(
        [sys.executable, journal_process.__file__, folder, failpoint, str(at)],
        capture_output=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    acknowledged = done.stdout.split()
    return (int(acknowledged[-1]) if acknowledged else 0), done.returncode


@pytest.mark.parametrize(
    "failpoint", sampled(FAILPOINTS, often={0, 2}, reason="each kills many writers")
)
def test_a_writer_killed_anywhere_loses_nothing_that_was_acknowledged(
    tmp_path: Path, failpoint: str
) -> None:
    chance = random.Random(f"{SEED} {failpoint}")
    # Syncs are grouped, so that there are fewer of them.
    for at in (1, 2) if failpoint in SYNCS else sorted(chance.sample(range(1, 40), 3)):
        folder = tmp_path / str(at)
        folder.mkdir()

        acknowledged, code = died(folder, failpoint, at)

        assert code == KILLED[failpoint]
        with read_journal(folder / "events.jsonl") as reading:
            found = list(reading)
        assert acknowledged <= len(found) <= acknowledged + 1
        assert found == [
            json.loads(json.dumps(to_object(Stamped(n, START + n, event(n)))))
            for n in range(1, len(found) + 1)
        ]
        assert (reading.torn is not None) == (failpoint == "half-written")


def test_what_is_appended_after_a_crash_is_whole(tmp_path: Path) -> None:
    acknowledged, _ = died(tmp_path, "half-written", 9)
    assert acknowledged == 8

    journal = open_journal(tmp_path)
    journal(Stamped(9, START, event(9)))
    journal.close()

    with read_journal(tmp_path / "events.jsonl") as reading:
        assert [record["seq"] for record in reading] == list(range(1, 10))
    assert reading.torn is None
    assert (tmp_path / "events.jsonl.torn").stat().st_size > 0


def test_a_lock_does_not_outlive_its_holder(tmp_path: Path) -> None:
    died(tmp_path, "after-write", 3)

    open_journal(tmp_path).close()


def test_a_writer_that_is_not_killed_writes_all(tmp_path: Path) -> None:
    assert died(tmp_path, "nowhere", 1) == (39, 0)
