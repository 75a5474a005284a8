"""Where the items of a step come from, and the items, one after the other (F5)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from aish.items.csv_rows import csv_rows
from aish.items.globbing import files_of
from aish.items.json_array import json_array
from aish.items.json_lines import json_lines
from aish.items.source import ItemsError, opened, shown
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonValue

Reader = Callable[[BinaryIO, str], Iterator[JsonValue]]

DELIMITERS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
"""What stands between two values, by the ending of the name."""

READERS: Mapping[str, Reader] = {
    **{ending: partial(csv_rows, delimiter=usual) for ending, usual in DELIMITERS.items()},
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_array,
}

_SHEETS = frozenset({".xlsx", ".xls", ".ods"})


@frozen
class Item:
    """One item; `index` counts from 0 over the whole source, whatever part of it is run."""

    index: int
    value: JsonValue


class Items:
    """The items of a step, each time from the first one; `total` where it is known already.

    `file` is the one they are in: opened when iteration begins, closed when it ends or is given up.
    """

    def __init__(
        self,
        values: Callable[[], Iterator[JsonValue]],
        total: int | None,
        file: Path | None = None,
    ) -> None:
        self.total = total
        self.file = file
        self._values = values

    def __iter__(self) -> Iterator[Item]:
        """Each item.

        Raises:
            ItemsError: what comes next cannot be read.
        """
        for index, value in enumerate(self._values()):
            yield Item(index, value)


def from_list(value: JsonValue) -> Items:
    """The items of a list, which an expression gave.

    Raises:
        ItemsError: it is no list.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _no_list(value)
    return Items(partial(iter, value), len(value))


def from_glob(pattern: str, folder: Path) -> Items:
    """The files below `folder` that match, as they are now: each item is a path relative to it.

    Raises:
        ItemsError: the pattern leads elsewhere, or there are too many files.
    """
    names = files_of(pattern, folder)
    return Items(partial(iter, names), len(names))


def from_file(path: Path, delimiter: str | None = None) -> Items:
    """The items of a file, by the ending of its name; `counting` knows how many there are.

    Raises:
        ItemsError: it is not there, or its ending is none that is known.
    """
    reader = reader_of(path, delimiter)
    # A file that is not there is said at once, not when the first item is asked for.
    with opened(path):
        return Items(partial(_read, path, reader), None, path)


def reader_of(path: Path, delimiter: str | None = None) -> Reader:
    """How a file of this name is read, with `delimiter` between its values if one is given.

    Raises:
        ItemsError: its ending says nothing of its format, or it has no delimiter.
    """
    ending = path.suffix.lower()
    reader = READERS.get(ending)
    if reader is None:
        known = ", ".join(f"`{suffix}`" for suffix in READERS)
        said = f"items are read from {known}, by the ending of the name"
        hint = "save the sheet as CSV" if ending in _SHEETS else None
        raise ItemsError(said, where=shown(path), hint=hint)
    if delimiter is None:
        return reader
    if ending not in DELIMITERS:
        known = " and ".join(f"`{suffix}`" for suffix in DELIMITERS)
        raise ItemsError(f"`delimiter` is for {known}", where=shown(path))
    return partial(csv_rows, delimiter=delimiter)


def _read(path: Path, reader: Reader) -> Iterator[JsonValue]:
    with opened(path) as file:
        yield from reader(file, shown(path))


def _no_list(value: JsonValue) -> ItemsError:
    if isinstance(value, Mapping):
        said, hint = "an object", "`| items | list` makes a list of pairs of it"
    else:
        kinds = {bool: "a boolean", str: "a text", int: "a number", float: "a number"}
        said, hint = kinds.get(type(value), "null"), None
    return ItemsError(f"`foreach` takes a list, and the expression gives {said}", hint=hint)
