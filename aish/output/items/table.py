"""Results of items as a file for other programs: CSV, TSV, or JSON Lines (`-o results.csv`).

In the order of the items, whichever ended first, and in constant memory: the rows are read twice,
for the columns and for the cells.

Values as cells of CSV, which people open in spreadsheets.

A spreadsheet reads a cell that begins with `=`, `+`, `-` or `@` as a formula, quoted or not. Such a
text is prefixed with an apostrophe, which spreadsheets read as "this is text"; so is one that
begins with apostrophes followed by such a character, which makes the reverse (`unguard_text`)
exact. Numbers are not changed.

`-o results.csv`: the results of a step's items, written after the step has run.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Literal

from aish.core.errors import ExitCode, UsageError
from aish.core.events import Place, RunFinished, Stamped, StepFinished
from aish.core.frozen import slotted
from aish.core.json import JsonValue, json_text
from aish.core.phrases import backticked
from aish.core.text import safe_utf8
from aish.output.items.results import ItemsFile, Row, public
from aish.system.files import atomic_pieces

# The wide forms are read like the narrow ones on Japanese systems.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


def cell(value: JsonValue, *, guard: bool = True) -> str:
    """Return a value: text unchanged but for the guard, null as nothing, the rest as JSON.

    Text from the input needs no guard: it is returned as it came.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        text = safe_utf8(value).replace("\0", "\ufffd")
        return guard_text(text) if guard else text
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json_text(value)


def guard_text(text: str) -> str:
    """The text, guarded so that no spreadsheet reads it as a formula."""
    if _FORMULA.match(text) is None or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def unguard_text(text: str) -> str:
    """The text that was given to `guard_text`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


Rows = Callable[[], Iterator[Row]]
"""Goes through all rows, each time from the first one."""

Raw = frozenset[Literal["item", "key", "result"]]
"""Which cells are written as they are: what came with the input, or all of them."""

Writer = Callable[[Rows, Raw], Iterator[bytes]]

ALL_RAW: Raw = frozenset({"item", "key", "result"})

MOST_COLUMNS = 1000
"""Of the properties of items, and of those of outputs; where there are more they share one."""

_BLOCK = 1 << 16


def jsonl_pieces(rows: Rows, raw: Raw = ALL_RAW) -> Iterator[bytes]:
    """Yield an object per line; no program reads any of it as a formula."""
    del raw
    for row in rows():
        yield f"{json_text(public(row))}\n".encode()


def csv_pieces(rows: Rows, raw: Raw = frozenset(), delimiter: str = ",") -> Iterator[bytes]:
    """A header, and one row per item (RFC 4180, UTF-8).

    The columns are the key, those of the item, status, error, and those of the output; or its text,
    if no item has another output. Cells that are not `raw` are guarded against spreadsheets.
    """
    items, outputs = _Columns("item"), _Columns("output")
    for row in rows():
        items.take(row["item"])
        outputs.take(row["output"])
    text = not outputs.seen
    taken = {"key", "status", "error"}
    item, result = "item" not in raw, "result" not in raw
    own = [cell(name, guard=item) for name in items.header(taken)]
    last = [_free("text", "output", taken)] if text else outputs.header(taken)
    buffer = StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n", delimiter=delimiter)
    cells = [cell(name, guard=result) for name in last]
    writer.writerow(["key", *own, "status", "error", *cells])
    for row in rows():
        own = [cell(row["key"], guard="key" not in raw)]
        own += [cell(value, guard=item) for value in items.cells(row["item"])]
        answer = [row["text"]] if text else outputs.cells(row["output"])
        cells = [
            cell(value, guard=result)
            for value in (row["error"] and row["error"]["message"], *answer)
        ]
        writer.writerow([*own, row["status"], *cells])
        if buffer.tell() > _BLOCK:
            yield _drain(buffer)
    yield _drain(buffer)


WRITERS: Mapping[str, Writer] = {
    ".csv": csv_pieces,
    ".tsv": partial(csv_pieces, delimiter="\t"),
    ".jsonl": jsonl_pieces,
}


@slotted
class _Columns:
    """The columns of some values: one per property if all are objects, else one."""

    name: str
    seen: bool = False
    flat: bool = True
    names: dict[str, None] = field(default_factory=dict)

    def take(self, value: JsonValue) -> None:
        """Account for a value; null needs no column."""
        if value is None:
            return
        self.seen = True
        if not isinstance(value, Mapping):
            self.flat = False
        elif self.flat:
            self.names.update(dict.fromkeys(value))
            self.flat = len(self.names) <= MOST_COLUMNS

    def header(self, taken: set[str]) -> list[str]:
        """The column names, distinct from those `taken`, to which they are added."""
        names = tuple(self.names) if self.flat else (self.name,)
        return [_free(name, self.name, taken) for name in names]

    def cells(self, value: JsonValue) -> list[JsonValue]:
        if not self.flat:
            return [value]
        return (
            [value.get(name) for name in self.names]
            if isinstance(value, Mapping)
            else [None] * len(self.names)
        )


def _free(name: str, prefix: str, taken: set[str]) -> str:
    """A column name that is not `taken`, to which it is added."""
    while name in taken:
        name = f"{prefix}.{name}"
    taken.add(name)
    return name


def _drain(buffer: StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode("utf-8", "replace")


# The items are not complete: a partial table would replace a complete one.
_CUT_OFF = frozenset(
    {
        ExitCode.INTERRUPTED,
        ExitCode.TERMINATED,
        ExitCode.INTERNAL,
        ExitCode.BUDGET,
        ExitCode.USAGE,
        ExitCode.PAUSED,
    }
)


def came_through(end: StepFinished) -> bool:
    """Return true if a step processed all of its items, whatever their status."""
    code = None if end.error is None else end.error.code
    return code != "run_ended" if end.status == "skipped" else code in {None, "items"}


def write_table(items: ItemsFile, step: str, path: Path, raw: Raw | None = None) -> None:
    """Write a step's rows to a file, whole or not at all.

    Cells that are not `raw` are guarded against spreadsheets: by default those that did not come
    with the input.

    Raises:
        OSError: it cannot be written.
    """
    writer = WRITERS[path.suffix.lower()]
    known = items.parts_from_input(step) if raw is None else raw
    atomic_pieces(path, writer(partial(items.rows, step), known), shared=True)


def step_of(steps: Sequence[str], wanted: str | None, where: str | None = None) -> str:
    """The step with items to write: the only one, or the one that is `wanted`.

    Raises:
        UsageError: there is no such step, or several and none is named.
    """
    names = backticked(steps) or "none"
    if wanted is not None:
        if wanted in steps:
            return wanted
        message = f"no step `{wanted}` has items"
        raise UsageError(message, where=f"--step {wanted}", hint=f"steps that have: {names}")
    if not steps:
        raise UsageError("there are no items", where=where)
    if len(steps) > 1:
        message = f"several steps have items: {names}"
        raise UsageError(message, where=where, hint="`--step ID` selects one")
    return steps[0]


class ItemsExporter:
    """Writes one step's rows to a file, atomically; its suffix selects the format.

    Must follow the results file, which it reads. `say` reports why nothing was written, and
    `partly`, the command that writes the items of an interrupted run.
    """

    deltas = False

    def __init__(
        self,
        items: ItemsFile,
        step: str,
        path: Path,
        say: Callable[[str], None],
        raw: Raw | None = None,
        partly: str | None = None,
    ) -> None:
        self.name = str(path)
        self._items = items
        self._step = step
        self._path = path
        self._say = say
        self._raw = raw
        self._partly = partly
        # A step done by an earlier part of the run has no events here.
        self._through = True

    def __call__(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, StepFinished) and event.place == Place(self._step):
            self._through = came_through(event)
        if not isinstance(event, RunFinished):
            return
        if event.exit.code in _CUT_OFF or not self._through:
            self._say(f"note: `{self._path}` is not written: not all items have ended")
            if self._partly is not None:
                self._say(f"hint: `{self._partly}` writes the finished ones")
            return
        if self._items.broken:
            self._say(f"note: `{self._path}` is not written: not all results are stored")
            return
        write_table(self._items, self._step, self._path, self._raw)

    def close(self) -> None:
        """Nothing is buffered."""
