"""JSON Lines: a value a line, of any kind; empty lines are left out."""

from collections.abc import Iterator
from json import JSONDecodeError
from typing import BinaryIO

from aish.core.json import JsonValue
from aish.items.lines import Lines
from aish.items.values import value_of


def json_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, JsonValue]]:
    """Each line's value, with the line.

    Raises:
        ItemsError: a line is no JSON, or too long.
    """
    lines = Lines(file, name)
    for line in lines:
        if line.isspace() or not line:
            continue
        try:
            value = value_of(line)
        except JSONDecodeError as error:
            said = f"the line is no JSON: {error.msg} (column {error.colno})"
            raise lines.error(said) from error
        except ValueError as error:
            raise lines.error(f"the line is no JSON that can be used: {error}") from error
        yield lines.number, value
