"""Results of items as a file for others: CSV, TSV, or JSON Lines (`-o results.csv`).

In the order of the items, whatever order they ended in, and in memory that does not grow with
them: the rows are gone through twice, for the columns and for the cells.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from io import StringIO
from typing import Literal

from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.sinks.items.csv_cells import cell
from aish.sinks.items.file import Row, public
from aish.sinks.json_text import json_text

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
    """One object a line; nothing takes any of it for a formula."""
    del raw
    for row in rows():
        yield f"{json_text(public(row))}\n".encode()


def csv_pieces(rows: Rows, raw: Raw = frozenset(), delimiter: str = ",") -> Iterator[bytes]:
    """A header, and one row for each item (RFC 4180, UTF-8).

    The columns are the key, those of the item, status, error, and those of the output; or its
    text, where no item has another output. Cells that are not `raw` are guarded against
    spreadsheets.
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
    said = [cell(name, guard=result) for name in last]
    writer.writerow(["key", *own, "status", "error", *said])
    for row in rows():
        own = [cell(row["key"], guard="key" not in raw)]
        own += [cell(value, guard=item) for value in items.cells(row["item"])]
        answer = [row["text"]] if text else outputs.cells(row["output"])
        said = [
            cell(value, guard=result)
            for value in (row["error"] and row["error"]["message"], *answer)
        ]
        writer.writerow([*own, row["status"], *said])
        if buffer.tell() > _BLOCK:
            yield _emptied(buffer)
    yield _emptied(buffer)


WRITERS: Mapping[str, Writer] = {
    ".csv": csv_pieces,
    ".tsv": partial(csv_pieces, delimiter="\t"),
    ".jsonl": jsonl_pieces,
}


@slotted
class _Columns:
    """The columns that some values need: one for each property if all are objects, else one."""

    name: str
    seen: bool = False
    flat: bool = True
    names: dict[str, None] = field(default_factory=dict)

    def take(self, value: JsonValue) -> None:
        """Look at a value; null needs nothing."""
        if value is None:
            return
        self.seen = True
        if not isinstance(value, Mapping):
            self.flat = False
        elif self.flat:
            self.names.update(dict.fromkeys(value))
            self.flat = len(self.names) <= MOST_COLUMNS

    def header(self, taken: set[str]) -> list[str]:
        """The names, each other than those that are `taken`, to which they are added."""
        wanted = tuple(self.names) if self.flat else (self.name,)
        return [_free(name, self.name, taken) for name in wanted]

    def cells(self, value: JsonValue) -> list[JsonValue]:
        """A value's part of a row."""
        if not self.flat:
            return [value]
        return (
            [value.get(name) for name in self.names]
            if isinstance(value, Mapping)
            else [None] * len(self.names)
        )


def _free(name: str, prefix: str, taken: set[str]) -> str:
    """A name of a column other than those that are `taken`, to which it is added."""
    while name in taken:
        name = f"{prefix}.{name}"
    taken.add(name)
    return name


def _emptied(buffer: StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode("utf-8", "replace")
