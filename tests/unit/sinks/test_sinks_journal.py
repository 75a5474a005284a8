import json
import os
import stat
from pathlib import Path

import pytest
from scripted_events import ordinary_run

from aish.errors import UsageError
from aish.sinks.journal import Journal, open_journal
from aish.sinks.lines import to_object
from aish.vocab.events import Notice, Place, Stamped


def test_the_journal_has_one_record_a_line_for_its_owner_only(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    run = [event for event in ordinary_run() if journal.deltas or "delta" not in str(event)]

    for event in run:
        journal(event)
    journal.close()

    path = tmp_path / "events.jsonl"
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        json.loads(json.dumps(to_object(event))) for event in run
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_journal_wants_no_deltas() -> None:
    assert Journal.deltas is False


@pytest.mark.requirement("X9")
def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "events.jsonl").symlink_to(target)

    with pytest.raises(UsageError):
        open_journal(tmp_path)

    assert not target.exists()


def test_a_full_disk_leaves_whole_records_only(tmp_path: Path) -> None:
    """A limit on the size of files makes `os.write` short, as a full disk does."""
    child = os.fork()
    if child == 0:
        os._exit(_fill(tmp_path))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    lines = (tmp_path / "events.jsonl").read_bytes()
    assert lines.endswith(b"\n")
    assert [json.loads(line)["seq"] for line in lines.splitlines()] == [1, 2]


def _fill(folder: Path) -> int:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
    journal = open_journal(folder)
    for seq in (1, 2):
        journal(Stamped(seq, 0.0, Notice(Place(), "info", "x", "y" * 100)))
    try:
        journal(Stamped(3, 0.0, Notice(Place(), "info", "x", "y" * 100)))
    except OSError:
        return 0
    return 1
