"""A process that writes a journal of so many records, or reads one: `write|read FOLDER COUNT`."""

import sys
from pathlib import Path

from aish.sinks.journal import open_journal
from aish.sinks.journal_reader import read_journal
from aish.vocab.deltas import Usage
from aish.vocab.event_parts import Place
from aish.vocab.events import Stamped, StepFinished, StepStarted, TurnStarted

TEXT = (
    "An answer of a hundred characters or so, as a row of a table that is classified would get it. "
    * 2
)


def write(folder: Path, count: int) -> None:
    """Three records an item, the last of them synced."""
    journal = open_journal(folder)
    place = Place("classify", "row", 1)
    finished = StepFinished(place, "ok", TEXT, {"kind": "docs"}, Usage(400, 50), None, 0.5)
    item = (StepStarted(place, "prompt"), TurnStarted(place, "cloud", 2), finished)
    for seq in range(count):
        journal(Stamped(seq + 1, 1.8e9, item[seq % 3]))
    journal.close()


def read(folder: Path, count: int) -> None:
    with read_journal(folder / "events.jsonl") as reading:
        assert sum(1 for _ in reading) == count


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
