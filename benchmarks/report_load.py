"""A process that writes the journal of a run over so many items: `FOLDER COUNT`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from aish.core.events import (
    Asked,
    Event,
    Exit,
    Failure,
    ItemFinished,
    ItemStarted,
    Place,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    StepStatus,
    ToolDecided,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from aish.core.json import JsonObject
from aish.core.messages import Usage
from aish.journal.writer import open_journal

ANSWER = "An answer of some length, as a row of a table that is looked into would get it. " * 8
RESULT = "What a tool found out about this row, line by line, with names and numbers.\n" * 12
USAGE = Usage(1200, 150)
TOOL = "crm__customer_find"
FAILING = 40
KINDS = ("defect", "praise", "question")
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "kind": {"enum": list(KINDS)},
        "urgent": {"type": "boolean"},
        "score": {"type": "number"},
    },
}


def item(n: int) -> Iterator[Event]:
    """Two turns, and a tool call between them; one item of forty fails."""
    key = f"customer-{n:06d}"
    here = Place("classify", key)
    first, call, second = (Place("classify", key, *more) for more in ((1,), (1, f"c{n}"), (2,)))
    asked = (Asked(f"c{n}", TOOL, f'{{"id": {n}}}'),)
    failure = None if n % FAILING else Failure("schema", "`kind` is not one of the three")
    value: JsonObject = {"name": f"Customer {n}", "city": f"City {n % 97}", "orders": n % 31}
    output: JsonObject = {"kind": KINDS[n % 3], "urgent": n % 7 == 0, "score": n % 101 / 10}
    yield ItemStarted(here, key, n, "0123456789abcdef", value)
    yield TurnStarted(first, "cloud", 2)
    yield TurnFinished(first, "cloud", "tool_calls", "", asked, USAGE, 0.1, 0.4, 0.001)
    yield ToolDecided(
        call, TOOL, "crm", "customer_find", {"id": n}, "0" * 64, "auto", "crm__customer_*"
    )
    yield ToolStarted(call, TOOL)
    yield ToolFinished(call, TOOL, "ok", RESULT, None, 0.05)
    yield TurnStarted(second, "cloud", 4)
    yield TurnFinished(second, "cloud", "stop", ANSWER, (), USAGE, 0.1, 0.5, 0.001)
    status: StepStatus = "failed" if failure else "ok"
    answer = None if failure else output
    seconds = 0.5 + n % 113 / 10
    yield ItemFinished(here, key, n, status, ANSWER, answer, USAGE, 0.002, seconds, failure)


def events(count: int) -> Iterator[Event]:
    step = Place("classify")
    yield RunStarted("0", "batch", "0" * 64, (), (), (), {}, {})
    yield StepStarted(step, "prompt", count, schema=SCHEMA)
    for n in range(count):
        yield from item(n)
    yield StepFinished(step, "failed", None, None, USAGE, None, count / 16)
    end = Exit(1, "failed", retryable=False, reason="items failed")
    yield RunFinished("failed", end, None, USAGE, None, count / 16, {}, None)


def main(folder: Path, count: int) -> None:
    journal = open_journal(folder)
    for seq, event in enumerate(events(count), 1):
        journal(Stamped(seq, 1.8e9 + seq / 150, event))
    journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
