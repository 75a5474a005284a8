import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from aish.system.file_lock import BeingWrittenError, take

LOCKS = {"reader": fcntl.LOCK_SH, "writer": fcntl.LOCK_EX}


class Held:
    """A file that somebody else has locked, and the pauses of who waits for it."""

    def __init__(self, path: Path, lock: int) -> None:
        path.write_text("x", encoding="utf-8")
        self.path = path
        self.pauses = 0
        self.released_after = 0
        self.other = os.open(path, os.O_RDONLY)
        self.ours = os.open(path, os.O_RDWR)
        fcntl.flock(self.other, lock)

    def sleep(self, seconds: float) -> None:
        del seconds
        self.pauses += 1
        if self.pauses == self.released_after:
            fcntl.flock(self.other, fcntl.LOCK_UN)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Held]]:
    with ExitStack() as stack:

        def made(by: str) -> Held:
            made = Held(tmp_path / by, LOCKS[by])
            stack.callback(os.close, made.other)
            stack.callback(os.close, made.ours)
            monkeypatch.setattr("aish.system.file_lock.time", SimpleNamespace(sleep=made.sleep))
            return made

        yield made


def test_a_reader_that_stands_still_is_taken_for_no_writer(held: Callable[[str], Held]) -> None:
    file = held("reader")
    file.released_after = 200
    take(file.ours, file.path)
    assert file.pauses == 200
    with pytest.raises(BlockingIOError):
        fcntl.flock(file.other, fcntl.LOCK_SH | fcntl.LOCK_NB)


@pytest.mark.parametrize(("by", "pauses"), [("writer", 19), ("reader", 1999)])
def test_who_does_not_release_the_lock_is_not_waited_for_without_end(
    held: Callable[[str], Held], by: str, pauses: int
) -> None:
    file = held(by)
    with pytest.raises(BeingWrittenError, match="is being written by"):
        take(file.ours, file.path)
    assert file.pauses == pauses
