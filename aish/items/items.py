"""The items of a step and their sources."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from aish.core.errors import did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.items.csv_rows import csv_lists, csv_rows, other_delimiter
from aish.items.globbing import files_of
from aish.items.json import json_array, json_lines
from aish.items.source import ItemsError, open_items
from aish.system.files import display_path

Reader = Callable[[BinaryIO, str], Iterator[tuple[int, JsonValue]]]
"""Gives each value with its line."""

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
    """An item; `index` counts from 0 over the whole source, whatever part of it is run.

    `line` is where it begins in the file that it is read from.
    """

    index: int
    value: JsonValue
    line: int | None = None


class Items:
    """The items of a step, each time from the first one; `total` if it is known already.

    `file` is the one they are in: opened when iteration begins, closed when it ends or is given up.
    """

    def __init__(
        self,
        values: Callable[[], Iterator[tuple[int | None, JsonValue]]],
        total: int | None,
        file: Path | None = None,
        delimiter: str | None = None,
    ) -> None:
        self.total = total
        self.file = file
        self._values = values
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[Item]:
        """Each item.

        Raises:
            ItemsError: the next item cannot be read.
        """
        for index, (line, value) in enumerate(self._values()):
            yield Item(index, value, line)

    def place(self, number: int) -> str:
        """The place of an item for display: its line, or its index if there are no lines."""
        return f"item {number}" if self.file is None else f"{display_path(self.file)}:{number}"

    def other_delimiter(self) -> str | None:
        """The hint for a table of one column that seems to have another delimiter."""
        if self.file is None or self._delimiter is None:
            return None
        try:
            with open_items(self.file) as file:
                _, header = next(csv_lists(file, display_path(self.file), self._delimiter))
        except ItemsError:
            # It is reported when the items are read.
            return None
        return other_delimiter(header)

    def column(self, name: str) -> Iterator[tuple[int, str]] | None:
        """A column's values, each with its line, where the items are the rows of a table.

        Faster than making an object of each row. `None` where they are something else.

        Raises:
            ItemsError: there is no such column; while it is gone through, what cannot be read.
        """
        if self.file is None or self._delimiter is None:
            return None
        return _column(self.file, self._delimiter, name)


def _column(path: Path, delimiter: str, name: str) -> Iterator[tuple[int, str]]:
    with open_items(path) as file:
        rows = csv_lists(file, display_path(path), delimiter)
        number, header = next(rows)
        if name not in header:
            known = backticked(header)
            hint = did_you_mean(name, header) or other_delimiter(header) or f"columns: {known}"
            raise ItemsError(
                f"unknown column `{name}`", where=f"{display_path(path)}:{number}", hint=hint
            )
        place = list(header).index(name)
        for number, row in rows:
            yield number, row[place]


def from_list(value: JsonValue) -> Items:
    """The items of a list, the value of an expression.

    Raises:
        ItemsError: it is not a list.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _no_list(value)
    return Items(partial(_without_lines, value), len(value))


def from_glob(pattern: str, folder: Path) -> Items:
    """The files below `folder` that match, as they are now: each item is a path relative to it.

    Raises:
        ItemsError: the pattern leads elsewhere, or there are too many files.
    """
    names = files_of(pattern, folder)
    return Items(partial(_without_lines, names), len(names))


def from_file(path: Path, delimiter: str | None = None) -> Items:
    """The items of a file, by the ending of its name; `counting` knows how many there are.

    Raises:
        ItemsError: it is not there, or its ending is none that is known.
    """
    reader = reader_of(path, delimiter)
    # A missing file is reported at once, not when the first item is requested.
    with open_items(path):
        usual = DELIMITERS.get(path.suffix.lower())
        return Items(partial(_read, path, reader), None, path, delimiter or usual)


def reader_of(path: Path, delimiter: str | None = None) -> Reader:
    """The reader of a file of this name, with `delimiter` between its values if one is given.

    Raises:
        ItemsError: its ending says nothing of its format, or it has no delimiter.
    """
    ending = path.suffix.lower()
    reader = READERS.get(ending)
    if reader is None:
        known = backticked(READERS)
        said = f"items are read from {known}, by the ending of the name"
        hint = "save the sheet as CSV" if ending in _SHEETS else None
        raise ItemsError(said, where=display_path(path), hint=hint)
    if delimiter is None:
        return reader
    if ending not in DELIMITERS:
        known = backticked(DELIMITERS, by=" and ")
        raise ItemsError(f"`delimiter` is for {known}", where=display_path(path))
    return partial(csv_rows, delimiter=delimiter)


def _without_lines(values: Sequence[JsonValue]) -> Iterator[tuple[None, JsonValue]]:
    for value in values:
        yield None, value


def _read(path: Path, reader: Reader) -> Iterator[tuple[int, JsonValue]]:
    with open_items(path) as file:
        yield from reader(file, display_path(path))


def _no_list(value: JsonValue) -> ItemsError:
    if isinstance(value, Mapping):
        said, hint = "an object", "`| items | list` converts it to a list of pairs"
    else:
        kinds = {bool: "a boolean", str: "a text", int: "a number", float: "a number"}
        said, hint = kinds.get(type(value), "null"), None
    return ItemsError(f"`foreach` takes a list, and the expression gives {said}", hint=hint)
