"""When an appended record is synced: at once, with others, at the end; and when that fails."""

import errno
import os
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from aish.system.durable import SHARE, WINDOW, Disk, DurableFile
from aish.system.files import open_append

PATIENCE = 60.0


@dataclass
class Slow:
    """A disk on which each sync takes `cost` seconds of a clock of its own."""

    cost: float = 0.0
    now: float = 100.0
    synced: list[int] = field(default_factory=list)
    waited: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def sync(self, descriptor: int) -> None:
        self.now += self.cost
        self.synced.append(os.fstat(descriptor).st_size)
        in_thread = threading.current_thread() is not threading.main_thread()
        if in_thread:
            self.waited.set()
        if self.fails and in_thread:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path) -> DurableFile:
        return DurableFile(open_append(path), Disk(sync=self.sync), lambda: self.now)


def test_records_that_come_slowly_are_synced_one_by_one_before_append_returns(
    tmp_path: Path,
) -> None:
    disk = Slow(cost=0.25)
    file = disk.open(tmp_path / "a")

    for number in range(1, 4):
        file.append(b"record\n", "soon")
        assert disk.synced[-1] == 7 * number
        disk.now += SHARE * 0.25
    file.close()

    assert disk.synced == [7, 14, 21]
    assert not disk.waited.is_set(), "no thread was needed"


def test_records_that_come_fast_are_synced_together_while_the_caller_goes_on(
    tmp_path: Path,
) -> None:
    disk = Slow()
    file = disk.open(tmp_path / "a")
    for _ in range(1000):
        file.append(b"record\n", "soon")
    assert disk.waited.wait(PATIENCE), "what is owed is synced without another record"
    file.close()

    assert disk.synced[0] == 7, "the first did not have to wait"
    assert disk.synced[-1] == 7000
    assert len(disk.synced) < 1000 / 5
    assert (tmp_path / "a").read_bytes() == b"record\n" * 1000


def test_a_slow_disk_holds_the_caller_up_for_a_small_share_of_the_time(tmp_path: Path) -> None:
    disk = Slow(cost=0.1)
    file = disk.open(tmp_path / "a")

    file.append(b"record\n", "soon")
    disk.now += WINDOW * 2
    file.append(b"record\n", "soon")
    assert disk.waited.wait(PATIENCE)
    file.close()

    assert disk.synced == [7, 14]


def test_what_is_only_written_is_synced_at_the_end(tmp_path: Path) -> None:
    disk = Slow()
    file = disk.open(tmp_path / "a")
    file.append(b"record\n")
    assert disk.synced == []
    file.close()

    assert disk.synced == [7]


def test_the_last_record_is_synced_though_others_came_just_before(tmp_path: Path) -> None:
    disk = Slow()
    file = disk.open(tmp_path / "a")
    file.append(b"record\n", "soon")
    file.append(b"record\n", "now")

    assert disk.synced == [7, 14]
    file.close()


def test_a_sync_that_fails_in_the_background_is_told_by_the_next_append_or_at_the_end(
    tmp_path: Path,
) -> None:
    for by_append in (True, False):
        disk = Slow(fails=True)
        file = disk.open(tmp_path / str(by_append))
        file.append(b"record\n", "soon")
        file.append(b"record\n", "soon")
        assert disk.waited.wait(PATIENCE)
        _join()

        last = partial(file.append, b"record\n") if by_append else file.close
        with pytest.raises(OSError, match="Input/output error"):
            last()


def _join() -> None:
    """Wait until the syncing thread, which has failed, is gone."""
    for thread in threading.enumerate():
        if thread.name == "aish-sync":
            thread.join(PATIENCE)


def test_half_a_record_is_taken_back_and_its_error_is_raised(tmp_path: Path) -> None:
    def write(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, {b"second\n": b"sec", b"ond\n": b""}.get(data, data))

    file = DurableFile(open_append(tmp_path / "a"), Disk(write=write))
    file.append(b"first\n")

    with pytest.raises(OSError, match="No space left on device"):
        file.append(b"second\n")

    assert (tmp_path / "a").read_bytes() == b"first\n"
