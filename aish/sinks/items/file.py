"""Results of items, one a line: `results.jsonl` in the folder of a run (B1, B4).

It stands behind the journal: each line is made of events that were journaled before, in their
order, so what is missing at its end is added when a resumed run is told of them again. An item
that was tried again has a newer line, and the last one counts; a run that ends well leaves one
line for each item. What is kept in memory is where the lines stand.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from aish.core.events import ItemFinished, ItemStarted, Place, RunFinished, Stamped, StepStarted
from aish.core.json import JsonObject, JsonValue
from aish.sinks.items.index import MOST_ITEMS, ItemsIndex
from aish.sinks.json_text import json_text
from aish.sinks.lines import VERSION, plain
from aish.system.files import open_append

NAME = "results.jsonl"

Row = Mapping[str, Any]
"""A line of the file, read back."""

_HEAD = re.compile(
    rb'\{"v":1,"seq":([0-9]{1,18}),"step":"([^"\\]*)"'
    rb'(,"within":"(?:[^"\\]|\\.)*")?,"index":([0-9]{1,9}),"key":("(?:[^"\\]|\\.)*"),'
)
_LONGEST_HEAD = 1 << 13
_BLOCK = 1 << 16
_OWN = frozenset({"v", "seq", "step"})


class ItemsFile:
    """Appends the result of each item to an open file, which it owns, and reads it back.

    `last` is the number of the event behind the last line; `broken` says that one was lost.
    """

    name = "the results of the items"
    deltas = False

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self.last = 0
        self.broken = False
        self._descriptor = descriptor
        self._path = path
        self._index = ItemsIndex()
        self._values: dict[Place, JsonValue] = {}
        self._given: dict[str, frozenset[Literal["item", "key"]]] = {}
        self._superseded = False
        self._ended = False
        self._size = 0
        self._find_lines()

    def __call__(self, stamped: Stamped) -> None:
        """Write the line of an item that has ended."""
        match stamped.event:
            case StepStarted(place=Place(step=str(step)), given=given):
                self._given[step] = frozenset(given)
            case ItemStarted(place=place, value=value):
                self._values[place] = value
            case ItemFinished() as finished:
                value = self._values.pop(finished.place, None)
                if stamped.seq > self.last:
                    self.broken = True
                    self._append(stamped, finished, value)
                    self.broken = False
            case RunFinished(exit=end):
                self._ended = end.code in {0, 1}
            case _:
                pass

    def close(self) -> None:
        """Leave one line for each item, if the run has ended well, and close the file."""
        try:
            if self._superseded and self._ended and self._path is not None:
                self._compact(self._path)
        finally:
            os.close(self._descriptor)

    def count(self, step: str) -> int:
        """How many items of a step have results."""
        return self._index.count(step)

    def clear(self) -> None:
        """Forget all results, which are told of again.

        Raises:
            OSError: the file cannot be cut.
        """
        os.ftruncate(self._descriptor, 0)
        self._index = ItemsIndex()
        self._superseded, self._size, self.last = False, 0, 0

    def steps(self) -> tuple[str, ...]:
        """The steps whose items have results."""
        return self._index.steps()

    def given(self, step: str) -> frozenset[Literal["item", "key"]]:
        """What of the items of a step came with the input, as far as the step has been told of."""
        return self._given.get(step, frozenset())

    def rows(self, step: str) -> Iterator[Row]:
        """The result of each item of a step, in the order of the items.

        Not of the items that a pipeline has within an item of the step that runs it: there, each
        index is there many times.

        Raises:
            OSError: a line is not as it was written.
        """
        for offset in self._index.offsets(step):
            yield _parsed(self._line(offset))

    def row(self, step: str, index: int) -> Row | None:
        """The result of one item, if it has one.

        Raises:
            OSError: its line is not as it was written.
        """
        offset = self._index.get(step, index)
        return None if offset is None else _parsed(self._line(offset))

    def _append(self, stamped: Stamped, event: ItemFinished, value: JsonValue) -> None:
        if event.index >= MOST_ITEMS:
            raise OSError(errno.EFBIG, f"the item {event.index} is more than {MOST_ITEMS} on")
        step, within = event.place.step or "", _within(event)
        row: JsonObject = {
            "v": VERSION,
            "seq": stamped.seq,
            "step": step,
            **({} if within is None else {"within": within}),
            "index": event.index,
            "key": event.key,
            "item": value,
            "status": event.status,
            "text": event.text,
            "output": event.output,
            "error": plain(event.error),
            "usage": plain(event.usage),
            "cost_usd": event.cost_usd,
            "seconds": event.seconds,
        }
        line = f"{json_text(row)}\n".encode()
        written = os.write(self._descriptor, line)
        if written < len(line):
            # A full disk takes a part; half a line would spoil the next one too.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._note(line)
        self._size += written

    def _note(self, line: bytes) -> bool:
        """Note a line that stands at the end; whether it is one of ours."""
        head = _HEAD.match(line)
        if head is None or int(head[4]) >= MOST_ITEMS:
            return False
        self.last = max(self.last, int(head[1]))
        if head[3]:
            self._index.put_loose(self._size)
            return True
        step = head[2].decode()
        older = self._index.put(step, int(head[4]), self._size)
        if older is not None and self._key_at(older) == head[5]:
            self._superseded = True
        elif older is not None:
            # `--force` goes on with items that have moved: what is done of the others stays.
            self._index.displace(step, older)
        return True

    def _key_at(self, offset: int) -> bytes | None:
        head = _HEAD.match(os.pread(self._descriptor, _LONGEST_HEAD, offset))
        return None if head is None else head[5]

    def _find_lines(self) -> None:
        """Note the lines that are there; cut off where one is not as it was written."""
        held = os.dup(self._descriptor)
        with os.fdopen(held, "rb", buffering=_BLOCK) as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"}\n") or not self._note(line):
                    os.ftruncate(self._descriptor, self._size)
                    return
                self._size += len(line)

    def _line(self, offset: int) -> bytes:
        pieces: list[bytes] = []
        while piece := os.pread(self._descriptor, _BLOCK, offset):
            end = piece.find(b"\n")
            if end >= 0:
                pieces.append(piece[:end])
                break
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _compact(self, path: Path) -> None:
        """Put a file in the place of this one that has the last line of each item only."""
        from aish.system.files import atomic_pieces

        lines = (self._line(offset) + b"\n" for offset in self._index.all_offsets())
        atomic_pieces(path, lines)


def open_items_file(folder: Path | None) -> ItemsFile:
    """The results of the run in `folder`; without one, in a file that nobody else ever sees.

    Raises:
        UsageError: what stands there is no plain file of our own.
        OSError: it cannot be opened.
    """
    if folder is None:
        from tempfile import TemporaryFile

        with TemporaryFile() as file:
            return ItemsFile(os.dup(file.fileno()))
    path = folder / NAME
    descriptor = open_append(path, readable=True)
    try:
        return ItemsFile(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise


def _within(event: ItemFinished) -> str | None:
    """The item that this one is within, where a pipeline runs once for each item."""
    whole = event.place.item or ""
    return whole.removesuffix(f"/{event.key}") if whole != event.key else None


def public(row: Row) -> dict[str, Any]:
    """A row as it leaves the run's folder: without what is about the file."""
    return {name: value for name, value in row.items() if name not in _OWN}


def _parsed(line: bytes) -> Row:
    try:
        row: Row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OSError(errno.EILSEQ, f"`{NAME}` is not as it was written") from error
    return row
