"""The columns that the items and the answers of a step have, and what their values sum up to."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.reports.distribution import Distribution

Origin = Literal["item", "output"]
_WHOLE = ""
_MOST_COLUMNS = 60
_MOST_CHOICES = 100
_LONGEST = 120


@slotted
class ValueColumn:
    """A property of the items or of the answers; with the name `` they have no properties.

    `choices` counts the values of an `enum` of the schema, and booleans.
    """

    origin: Origin
    name: str
    choices: Counter[str] = field(default_factory=Counter)
    numbers: Distribution = field(default_factory=Distribution)
    is_choice: bool = False

    def add(self, value: JsonValue, sign: int) -> None:
        if isinstance(value, bool) or (self.is_choice and isinstance(value, str)):
            text = value if isinstance(value, str) else json_text(value)
            self.is_choice = True
            if text in self.choices or len(self.choices) < _MOST_CHOICES:
                self.choices[text] += sign
        elif isinstance(value, int | float):
            self.numbers.add(value, sign)


@slotted
class ValueColumns:
    """The columns in the order of the schema, then as they are met; they are only added."""

    of: dict[tuple[Origin, str], ValueColumn] = field(default_factory=dict)

    def declare(self, schema: JsonObject) -> None:
        """Add the columns of the answers."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            properties = {_WHOLE: schema} if "enum" in schema else {}
        for name, rule in properties.items():
            column = self._column("output", name)
            choices = _choices(rule, schema)
            if column is not None and choices:
                column.is_choice = True
                for choice in choices[:_MOST_CHOICES]:
                    column.choices.setdefault(choice, 0)

    def take(self, item: JsonValue, output: JsonValue, key: str) -> Sequence[JsonValue]:
        """Return the cells of an item, one for each column so far."""
        values: dict[tuple[Origin, str], JsonValue] = {}
        if isinstance(item, Mapping):
            values |= {("item", name): value for name, value in item.items()}
        elif item is not None and item != key:
            values["item", _WHOLE] = item
        if isinstance(output, Mapping):
            values |= {("output", name): value for name, value in output.items()}
        elif output is not None and (not isinstance(output, str) or ("output", "") in self.of):
            values["output", _WHOLE] = output
        cells = {}
        for place, value in values.items():
            if self._column(*place) is not None:
                cells[place] = _cell(value)
        self.count(found := [cells.get(place) for place in self.of])
        return found

    def count(self, cells: Sequence[JsonValue], sign: int = 1) -> None:
        """Count the values of a row; with a `sign` of -1 no longer."""
        for column, value in zip(self.of.values(), cells, strict=False):
            column.add(value, sign)

    def _column(self, origin: Origin, name: str) -> ValueColumn | None:
        column = self.of.get((origin, name))
        if column is None and len(self.of) < _MOST_COLUMNS:
            column = self.of[origin, name] = ValueColumn(origin, name)
        return column


def _cell(value: JsonValue) -> JsonValue:
    """A value as a cell shows it: a scalar, or others as one line of JSON."""
    match value:
        case str():
            return shorten(for_line(value[: 2 * _LONGEST]), _LONGEST)
        case None | bool():
            return value
        case int() if abs(value) < 1 << 53:
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return shorten(for_line(json_text(value, spaced=True)), _LONGEST)


def _choices(rule: JsonValue, schema: JsonObject) -> list[str]:
    """The texts that an `enum` allows, also through one reference within the schema."""
    if not isinstance(rule, Mapping):
        return []
    target = rule.get("$ref")
    if isinstance(target, str) and target.startswith("#/"):
        found: JsonValue = schema
        for part in target[2:].split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        rule = found if isinstance(found, Mapping) else {}
    values = rule.get("enum")
    if not isinstance(values, list):
        return ["true", "false"] if rule.get("type") == "boolean" else []
    return [str(_cell(value)) for value in values if isinstance(value, str)]


def titles(columns: ValueColumns) -> Iterator[str]:
    """The title of each column; where items and answers have the same name, that of both."""
    names = Counter(column.name for column in columns.of.values())
    for column in columns.of.values():
        if not column.name:
            yield "Item value" if column.origin == "item" else "Answer"
        else:
            name = for_line(column.name)
            yield f"{column.origin}.{name}" if names[column.name] > 1 else name
