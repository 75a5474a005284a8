"""Results of items, one per line: `results.jsonl` in the folder of a run.

It is written after the journal: each line is made from events that were journaled before, in their
order, so lines missing at its end are added when a resumed run replays these events. A retried item
has another line, and the last one counts; a run that ends well leaves one line per item. Only the
positions of the lines are kept in memory, and where items have moved in a resumed run, their keys.

Positions of the lines of a results file: by step and item index, 8 bytes each.
"""

import errno
import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from aish.core.events import (
    VERSION,
    ItemFinished,
    ItemMoved,
    ItemStarted,
    Place,
    RunFinished,
    Stamped,
    StepStarted,
)
from aish.core.json import JsonValue, json_text
from aish.core.patterns import lazy_pattern
from aish.system.durable import write_whole
from aish.system.files import open_append

MOST_ITEMS = 50_000_000
"""More items in one step are refused: a number that large came from a damaged file."""

_NOWHERE = -1


class ItemsIndex:
    """The offset of the last line of each item; loose lines have no newer one."""

    def __init__(self) -> None:
        self._loose: array[int] = array("q")
        self._offsets: dict[str, array[int]] = {}
        self._displaced: dict[str, dict[bytes, int]] = {}

    def put(self, step: str, index: int, offset: int) -> None:
        offsets = self._offsets.get(step)
        if offsets is None:
            offsets = self._offsets[step] = array("q")
        if index >= len(offsets):
            offsets.extend([_NOWHERE] * (index + 1 - len(offsets)))
        offsets[index] = offset

    def clear(self, step: str, index: int) -> None:
        self._offsets[step][index] = _NOWHERE

    def lines_to_move(self, step: str) -> dict[bytes, int]:
        """Lines by key whose index belongs to another item now: they follow all others."""
        return self._displaced.setdefault(step, {})

    def count(self, step: str) -> int:
        return sum(1 for _ in self.offsets(step))

    def put_loose(self, offset: int) -> None:
        """Store a line that belongs to no index of a step."""
        self._loose.append(offset)

    def get(self, step: str, index: int) -> int | None:
        """The offset of the last line of an item."""
        offsets = self._offsets.get(step, ())
        offset = offsets[index] if index < len(offsets) else _NOWHERE
        return None if offset == _NOWHERE else offset

    def offsets(self, step: str) -> Iterator[int]:
        """Offsets of the lines of a step, in the order of its items."""
        yield from (offset for offset in self._offsets.get(step, ()) if offset != _NOWHERE)
        yield from self._displaced.get(step, {}).values()

    def steps(self) -> tuple[str, ...]:
        return tuple(self._offsets)

    def all_offsets(self) -> Iterator[int]:
        """Offsets of the last lines of all items and of the loose ones, in file order."""
        last = (offset for step in self._offsets for offset in self.offsets(step))
        return iter(sorted([*last, *self._loose]))


NAME = "results.jsonl"

Row = Mapping[str, Any]
"""A line of the file, read back."""

_HEAD = lazy_pattern(
    rb'\{"v":1,"seq":([0-9]{1,18}),"step":"([^"\\]*)"'
    rb'(,"within":"[^"\\]*(?:\\.[^"\\]*)*")?,"index":([0-9]{1,9})(,"was":[0-9]{1,9})?'
    rb',"key":("[^"\\]*(?:\\.[^"\\]*)*"),'
)
_BLOCK = 1 << 16
_OWN = frozenset({"v", "seq", "step", "was"})
_FAILED = (b'"status":"failed"', b'"status":"denied"')
_READ = frozenset({StepStarted, ItemStarted, ItemFinished, ItemMoved, RunFinished})


class ItemsFile:
    """Appends the result of each item to an open file, which it owns, and reads it back.

    `last` is the number of the event of the last line; `broken` means that a line was lost.
    """

    name = "the results of the items"
    deltas = False

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self.last = 0
        self.broken = False
        self._descriptor = descriptor
        self._path = path
        self._index = ItemsIndex()
        self._places: dict[str, dict[bytes, int]] = {}
        self._values: dict[Place, JsonValue] = {}
        self._given: dict[str, frozenset[Literal["item", "key"]]] = {}
        self._failed: set[tuple[bytes, bytes]] = set()
        """Steps and keys of items that an earlier part has left failed: they may run again."""
        self._superseded = False
        self._ended = False
        self._size = 0
        self._find_lines()

    def __call__(self, stamped: Stamped) -> None:
        if stamped.event.__class__ not in _READ:
            return
        match stamped.event:
            case StepStarted(place=Place(step=str(step)), given=inputs):
                self._given[step] = frozenset(inputs)
            case ItemStarted(place=place, value=value):
                self._values[place] = value
            case ItemFinished() as finished:
                value = self._values.pop(finished.place, None)
                if stamped.seq > self.last:
                    self.broken = True
                    self._append(stamped, finished, value)
                    self.broken = False
            case ItemMoved() as moved if stamped.seq > self.last:
                self.broken = True
                self._move(stamped, moved)
                self.broken = False
            case RunFinished(exit=end):
                self._ended = end.code in {0, 1}
            case _:
                pass

    def close(self) -> None:
        """If the run has ended well, reduce to one line per item; close the file."""
        try:
            if self._superseded and self._ended and self._path is not None:
                from aish.system.files import atomic_pieces

                lines = (self._line(offset) + b"\n" for offset in self._index.all_offsets())
                atomic_pieces(self._path, lines)
        finally:
            os.close(self._descriptor)

    def count(self, step: str) -> int:
        return self._index.count(step)

    def clear(self) -> None:
        """Remove all results, which will be written again.

        Raises:
            OSError: the file cannot be truncated.
        """
        os.ftruncate(self._descriptor, 0)
        self._index = ItemsIndex()
        self._places.clear()
        self._superseded, self._size, self.last = False, 0, 0

    def steps(self) -> tuple[str, ...]:
        return self._index.steps()

    def parts_from_input(self, step: str) -> frozenset[Literal["item", "key"]]:
        """The parts of a step's items that came with the input, as far as known so far."""
        return self._given.get(step, frozenset())

    def rows(self, step: str) -> Iterator[Row]:
        """The result of each item of a step, in the order of the items.

        Without the items of a pipeline that runs within an item of a step: their indexes are not
        unique.

        Raises:
            OSError: a line is damaged.
        """
        for offset in self._index.offsets(step):
            yield _parse(self._line(offset))

    def row(self, step: str, index: int) -> Row | None:
        """The result of one item, if it has one.

        Raises:
            OSError: its line is damaged.
        """
        offset = self._index.get(step, index)
        return None if offset is None else _parse(self._line(offset))

    def _append(self, stamped: Stamped, event: ItemFinished, value: JsonValue) -> None:
        if event.index >= MOST_ITEMS:
            raise OSError(errno.EFBIG, f"the item {event.index} is more than {MOST_ITEMS} on")
        step, within = event.place.step or "", _within(event)
        self._write(
            {
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
                "error": event.error,
                "usage": event.usage,
                "cost_usd": event.cost_usd,
                "seconds": event.seconds,
            }
        )

    def _move(self, stamped: Stamped, event: ItemMoved) -> None:
        """Copy the line of an item to its new index."""
        step, key = event.place.step or "", json_text(event.key).encode()
        if _within(event) is not None or not self._index.count(step):
            return
        was = self._places_of(step).get(key)
        if was == event.index:
            return
        displaced = self._index.lines_to_move(step).get(key)
        offset = displaced if was is None else self._index.get(step, was)
        if offset is None:
            return
        row = _parse(self._line(offset))
        head = {name: row[name] for name in ("v", "seq", "step")}
        moved = {"seq": stamped.seq, "index": event.index, "was": row["index"]}
        self._write({**head, **moved, **{name: row[name] for name in row if name not in moved}})

    def _write(self, row: Row) -> None:
        line = f"{json_text(row)}\n".encode()
        write_whole(self._descriptor, line)
        self._note(line)
        self._size += len(line)

    def _note(self, line: bytes) -> bool:
        """Index a line at the end; returns whether its format is valid."""
        head = _HEAD.match(line)
        if head is None or int(head[4]) >= MOST_ITEMS:
            return False
        self.last = max(self.last, int(head[1]))
        if head[3]:
            self._index.put_loose(self._size)
            return True
        step, index, key = head[2].decode(), int(head[4]), head[6]
        older = self._index.get(step, index)
        other = None if older is None else self._head_at(older)[6]
        # `--force` resumes with items that have moved: each key keeps one line.
        is_back = older is None and (head[2], key) in self._failed
        if head[5] or other not in {None, key} or step in self._places or is_back:
            places = self._places_of(step)
            # The line there may have turned out to be an old one of an item that is elsewhere.
            older = self._index.get(step, index)
            if older is not None and other is not None and other != key:
                # The results of items that are there no more are kept.
                self._index.lines_to_move(step)[other] = older
                places.pop(other, None)
            self._superseded |= self._index.lines_to_move(step).pop(key, None) is not None
            if places.get(key, index) != index:
                self._index.clear(step, places[key])
                self._superseded = True
            places[key] = index
        self._superseded |= other == key
        self._index.put(step, index, self._size)
        return True

    def _places_of(self, step: str) -> dict[bytes, int]:
        """The index of each key, read from the lines when the first item of the step has moved."""
        if step not in self._places:
            places = self._places[step] = {}
            for offset in sorted(self._index.offsets(step)):
                head = self._head_at(offset)
                index = int(head[4])
                if head[6] in places:
                    self._index.clear(step, places[head[6]])
                    self._superseded = True
                places[head[6]] = index
        return self._places[step]

    def _head_at(self, offset: int) -> re.Match[bytes]:
        head = _HEAD.match(self._line(offset))
        if head is None:
            raise OSError(errno.EILSEQ, f"`{NAME}` has changed")
        return head

    def _find_lines(self) -> None:
        """Index the existing lines; truncate at the first damaged one."""
        held = os.dup(self._descriptor)
        with os.fdopen(held, "rb", buffering=_BLOCK) as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"}\n") or not self._note(line):
                    os.ftruncate(self._descriptor, self._size)
                    return
                self._size += len(line)
                if any(status in line for status in _FAILED) and (head := _HEAD.match(line)):
                    self._failed.add((head[2], head[6]))

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


def open_items_file(folder: Path | None) -> ItemsFile:
    """The results of the run in `folder`; without one, in an anonymous temporary file.

    Raises:
        UsageError: the path is not a regular file of this user.
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


def _within(event: ItemFinished | ItemMoved) -> str | None:
    """The item that contains this one, if a pipeline runs once per item."""
    whole = event.place.item or ""
    return whole.removesuffix(f"/{event.key}") if whole != event.key else None


def public(row: Row) -> dict[str, Any]:
    """A row as it leaves the run's folder: without the fields about the file."""
    return {name: value for name, value in row.items() if name not in _OWN}


# `json.loads` asks each time which encoding a text of bytes has.
_DECODER = json.JSONDecoder()


def _parse(line: bytes) -> Row:
    try:
        row: Row = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise OSError(errno.EILSEQ, f"`{NAME}` has changed") from error
    return row
