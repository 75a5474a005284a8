"""Rows of CSV as objects of strings (RFC 4180): strict, because a guess would shift columns.

The delimiter may be other than a comma, set by the file's name, the pipeline, or a first line
`sep=;` as spreadsheets write it, and never guessed; the rest is the same.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted
from aish.items.json import JsonLineReader
from aish.items.source import LONGEST_ITEM, ItemsError

LONGEST_VALUE = 1024 * 1024
"""Characters of one value."""

_SEPARATOR = lazy_pattern(r"(?i)sep=([,;|\t])")
# The maximum length of a column's name in messages.
_LONGEST_NAME = 80

# Messages of the CSV reader.
_REASONS = (
    ("field larger", f"a value is longer than {LONGEST_VALUE} characters: is a quote left open"),
    ("unexpected end", "a quote is left open until the end of the file"),
    ("expected after", "something follows a closing quote: a quote in a value is written twice"),
    ("new-line character", "the line contains a carriage return"),
)


def csv_rows(
    file: BinaryIO, name: str, delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row under the names of the first one, with its line; empty lines are left out.

    Raises:
        ItemsError: it is not valid CSV, has no proper header, or a row has more or fewer values.
    """
    rows = csv_lists(file, name, delimiter)
    _, header = next(rows)
    for number, row in rows:
        yield number, dict(zip(header, row, strict=True))


def csv_lists(
    file: BinaryIO, name: str, delimiter: str = ","
) -> Iterator[tuple[int, Sequence[str]]]:
    """The header, and each row as the list of its values, with the line that it begins in.

    Raises:
        ItemsError: as `csv_rows`.
    """
    lines = JsonLineReader(file, name)
    rows = _rows(lines, delimiter)
    number, header = next(rows, (1, ()))
    if number == 1 and (told := separator(delimiter.join(header))) is not None:
        rows = _rows(lines, told)
        number, header = next(rows, (1, ()))
    _check_header(header, lines, number)
    empty = [place for place, column in enumerate(header) if not column.strip()]
    yield number, _without(empty, header)
    for numbered in rows:
        if len(numbered[1]) != len(header):
            number, row = numbered
            values = f"the row has {counted(len(row), 'value')}"
            said = f"{values}, and the header has {counted(len(header), 'name')}"
            raise lines.error(said, line=number, hint=other_delimiter(header))
        if empty:
            number, row = numbered
            for place in empty:
                if row[place].strip():
                    said = f"column {place + 1} has a value and no name in the header"
                    raise _bad(said, lines, number)
            yield number, _without(empty, row)
        else:
            yield numbered


def separator(line: str) -> str | None:
    """The delimiter that a spreadsheet has told in the first line: `sep=;`."""
    found = _SEPARATOR.fullmatch(line)
    return None if found is None else found[1]


def _without(places: Sequence[int], row: Sequence[str]) -> Sequence[str]:
    """A row without the columns that are empty in the whole table, as spreadsheets leave them."""
    return [value for place, value in enumerate(row) if place not in places] if places else row


def other_delimiter(header: Sequence[str]) -> str | None:
    """The hint for a table that was read as one column, because it has another delimiter."""
    found = [one for one in (";", "\t", "|") if len(header) == 1 and one in header[0]]
    if not found:
        return None
    shown = json.dumps(found[0])
    return f"one column that contains {shown}: set `delimiter: {shown}`"


def _rows(lines: JsonLineReader, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows, each with the line it begins in."""
    csv.field_size_limit(LONGEST_VALUE)
    reader = csv.reader(_limit_rows(lines), strict=True, delimiter=delimiter)
    while True:
        number, lines.taken = lines.number + 1, 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise lines.error(_reason(str(error)), line=number) from error
        if row is None:
            return
        if row:
            yield number, row


def _limit_rows(lines: JsonLineReader) -> Iterator[str]:
    """The lines, as long as one row does not span too many of them."""
    for line in lines:
        if lines.taken > LONGEST_ITEM:
            raise lines.error(f"the row is longer than {LONGEST_ITEM} bytes")
        yield line


def _reason(said: str) -> str:
    return next((reason for sign, reason in _REASONS if sign in said), said)


def _check_header(header: Sequence[str], lines: JsonLineReader, number: int) -> None:
    if not header:
        raise _bad("the header is missing: the first line has to name the columns", lines, 1)
    if not any(column.strip() for column in header):
        raise _bad("the header has no names", lines, number)
    seen: set[str] = set()
    for place, column in enumerate(header, 1):
        if column.strip() and column in seen:
            # Never a part of it: half of a secret that is cut in two would not be masked.
            name = f"the name `{column}`" if len(column) <= _LONGEST_NAME else "a long name"
            places = f"columns {header.index(column) + 1} and {place}"
            raise _bad(f"the header has {name} twice, in {places}", lines, number)
        seen.add(column)


def _bad(said: str, lines: JsonLineReader, number: int) -> ItemsError:
    return lines.error(said, line=number)
