"""A process that writes a journal of so many records, or reads one.

write|read FOLDER COUNT
batch|resume FOLDER COUNT     five records for each of COUNT items; what a resumed run takes
"""

import gc
import sys
from pathlib import Path

from aish.core.events import (
    Event,
    ItemFinished,
    ItemStarted,
    Place,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    TurnAdded,
    TurnFinished,
    TurnStarted,
)
from aish.core.messages import Usage
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.features.resume.find import starts
from aish.features.resume.state import read_resume_state
from aish.journal.reader import read_journal
from aish.journal.writer import open_journal

TEXT = (
    "An answer of a hundred characters or so, as a row of a table that is classified would get it. "
    * 2
)
PROMPT = "Say which of our products this customer writes about, and what is to be done. " * 8


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


def batch(folder: Path, count: int) -> None:
    """Five records an item, each with a key of its own, one with the prompt that was sent."""
    journal = open_journal(folder)
    head = RunStarted("0", "bench", "", (), (), (), {}, {})
    journal(Stamped(1, 1.8e9, head))
    journal(Stamped(2, 1.8e9, StepStarted(Place("rows"), "prompt", count=count)))
    usage = Usage(400, 50)
    for index in range(count):
        key = f"customer-{index:08d}"
        place, turn = Place("rows", key), Place("rows", key, 1)
        events: tuple[Event, ...] = (
            ItemStarted(place, key, index, f"{index:016x}", {"id": key}),
            TurnAdded(place, {"role": "user", "text": f"{key}: {PROMPT}"}, "answer"),
            TurnStarted(turn, "cloud", 1),
            TurnFinished(turn, "cloud", "stop", TEXT, (), usage, 0.1, 0.5, 0.001),
            ItemFinished(place, key, index, "ok", TEXT, {"kind": "docs"}, usage, 0.001, 0.5),
        )
        for number, event in enumerate(events):
            journal(Stamped(3 + 5 * index + number, 1.8e9, event))
    journal.close()


def resume(folder: Path, count: int) -> None:
    """All that `--resume` does before the first request; the program collects no garbage there."""
    gc.disable()
    file = folder / "bench.yaml"
    file.write_text(
        "aish: 1\nmodels: {m: {base_url: http://127.0.0.1:9, model: m}}\n"
        "steps: [{id: rows, foreach: {file: rows.jsonl}, prompt: Hello}]\n",
        encoding="utf-8",
    )
    plan = make_plan(load_checked(file, ()), RunOptions())
    assert len(starts(folder / "events.jsonl")) == 1
    with read_journal(folder / "events.jsonl") as reading:
        assert len(read_resume_state(reading, plan, "bench").items["rows"]) == count


if __name__ == "__main__":
    {"write": write, "read": read, "batch": batch, "resume": resume}[sys.argv[1]](
        Path(sys.argv[2]), int(sys.argv[3])
    )
