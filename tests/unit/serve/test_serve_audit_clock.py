"""The order of the audit log where the clock is set back, and where a file is full."""

import json
from pathlib import Path

from aish.config.model import AuditSettings
from aish.core.frozen import slotted
from aish.serve.records.audit import AuditLog
from aish.serve.state import ServeState
from aish.system.files import private_folder


@slotted
class SetClock:
    """A clock that somebody sets."""

    seconds: float

    def now(self) -> float:
        """Seconds since the epoch, as it is set."""
        return self.seconds

    def monotonic(self) -> float:
        """What nobody can set."""
        return 0.0


def test_records_keep_their_order_where_the_clock_is_set_back(tmp_path: Path) -> None:
    state = ServeState(private_folder(tmp_path / "state"), "hub-test", b"k" * 32)
    clock = SetClock(2_000_000_000.0)
    log = AuditLog(private_folder(tmp_path / "audit"), AuditSettings(), state, clock, str)
    for seconds in (2_000_000_000.0, 1_000_000_000.0, 1_000_000_001.5, -1.0):
        clock.seconds = seconds
        log.note("listening", None)
    log.close()

    records = [json.loads(line) for line in log.path.read_text("ascii").splitlines()]
    assert [one["seq"] for one in records] == [1, 2, 3, 4]
    assert [one["time"] for one in records] == [
        "2033-05-18T03:33:20.000000Z",
        "2001-09-09T01:46:40.000000Z",
        "2001-09-09T01:46:41.500000Z",
        "1969-12-31T23:59:59.000000Z",
    ]


def test_the_numbers_of_records_go_on_in_the_next_file(tmp_path: Path) -> None:
    state = ServeState(private_folder(tmp_path / "state"), "hub-test", b"k" * 32)
    settings = AuditSettings(rotate=1000)
    log = AuditLog(private_folder(tmp_path / "audit"), settings, state, SetClock(0.0), str)
    for _ in range(40):
        log.note("listening", None)
    log.close()

    full = sorted(log.path.parent.glob("*.jsonl.*"), key=lambda path: int(path.suffix[1:]))
    lines = [line for path in (*full, log.path) for line in path.read_text("ascii").splitlines()]
    assert len(full) > 2
    assert [json.loads(line)["seq"] for line in lines] == [*range(1, 41)]
