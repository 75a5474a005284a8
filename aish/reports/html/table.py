"""The table of a page: rows to search, filter, sort and open, whatever they are.

Without scripts it is a plain table of its first rows. With it go the rows as data, a JSON array
each, and their bodies in blocks of inert HTML, several bodies each, which the page's script reads
when a row is opened; everything in them was made by `markup`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.reports.figures import cost_text, took_text
from aish.reports.markup import Markup, concat, group_attributes, tag

Kind = Literal["number", "key", "state", "text", "count", "cost", "seconds", "value", "drawn"]
"""`value` is a cell that can be filtered by; a `drawn` one has markup beside its number."""

_NUMBERS = frozenset({"number", "count", "cost", "seconds"})
_FIRST = 25
_MOST_PLAIN = 300
_BLOCK = 160_000
_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@frozen
class Column:
    """A column; `at` is its place in the values of a row, `id` its name in the page's address."""

    id: str
    title: str
    kind: Kind
    at: int
    shown: bool = True


@frozen
class TableRow:
    """A row: its values, the markup of `drawn` ones by their places, and the body below it.

    A row that is `bad` is in the plain table too.
    """

    values: Sequence[JsonValue]
    body: bytes
    bad: bool = False
    drawn: Mapping[int, Markup] = field(default_factory=dict)


@frozen
class TableWords:
    """Names: of one row, of the states that rows can be filtered by; the command of failed rows."""

    noun: str
    states: Mapping[str, str]
    retry: str | None = None


def table(
    anchor: str, columns: Sequence[Column], rows: Sequence[TableRow], words: TableWords
) -> Iterator[Markup]:
    """The table, piece by piece; `anchor` is its name in the page."""
    blocks = list(_blocks(rows))
    data = [
        [*row.values, number, place]
        for number, block in enumerate(blocks)
        for place, row in enumerate(block)
    ]
    settings: JsonObject = {
        "noun": words.noun,
        "states": dict(words.states),
        "retry": words.retry,
        "columns": [[one.id, one.title, one.kind, one.at, one.shown] for one in columns],
    }
    drawn = [concat(row.drawn.values()) for row in rows]
    whole = tag(
        "div",
        class_="items",
        data_items=anchor,
        data_settings=json.dumps(settings, separators=(",", ":")),
    )
    yield Markup(whole.removesuffix("</div>"))
    yield _plain_table(columns, rows, words)
    yield data_script("application/json", json_data(data), f"{anchor}-rows")
    if any(drawn):
        yield _inert(drawn, f"{anchor}-drawn")
    for number, block in enumerate(blocks):
        yield _inert((Markup(row.body.decode()) for row in block), f"{anchor}-{number}")
    yield Markup("</div>")


def json_data(value: JsonValue) -> str:
    """JSON that is safe in a `script` element: nothing in it can end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_IN_JSON)


def data_script(kind: str, content: str, id: str) -> Markup:
    """A block of data; the browser runs none of it."""
    assert "</script" not in content, "markup of ours only"
    return Markup(f'<script type="{kind}" id="{id}">{content}</script>\n')


def _inert(bodies: Iterable[Markup], id: str) -> Markup:
    return data_script("text/html", "".join(f"<div>{body}</div>" for body in bodies), id)


def _blocks(rows: Sequence[TableRow]) -> Iterator[list[TableRow]]:
    block: list[TableRow] = []
    size = 0
    for row in rows:
        if block and size + len(row.body) > _BLOCK:
            yield block
            block, size = [], 0
        block.append(row)
        size += len(row.body)
    if block:
        yield block


def _plain_table(columns: Sequence[Column], rows: Sequence[TableRow], words: TableWords) -> Markup:
    """The first rows and those that are bad, for a browser without scripts."""
    sample = [row for n, row in enumerate(rows) if n < _FIRST or row.bad][:_MOST_PLAIN]
    left = len(rows) - len(sample)
    shown = [column for column in columns if column.shown]
    note = (
        tag("p", f"{left:,} more are shown if scripts are enabled", class_="cut") if left else None
    )
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *(tag("th", one.title, scope="col") for one in shown))),
            tag("tbody", *(_plain_row(row, shown, words) for row in sample)),
        ),
        note,
        class_="plain-items",
        **group_attributes(aria_label=f"{words.noun}s"),
    )


def _plain_row(row: TableRow, columns: Sequence[Column], words: TableWords) -> Markup:
    return tag("tr", *(_plain_cell(row, column, words) for column in columns))


def _plain_cell(row: TableRow, column: Column, words: TableWords) -> Markup:
    value = row.values[column.at] if column.at < len(row.values) else None
    kind = "number" if column.kind in _NUMBERS else column.kind
    match column.kind, value:
        case "drawn", _:
            content: str = row.drawn.get(column.at, Markup())
        case "state", str(state):
            content = chip(state, words.states.get(state, state))
        case "cost", int() | float() | None:
            content = cost_text(value)
        case "seconds", int() | float() | None:
            content = took_text(value)
        case _, str():
            content = for_line(value)
        case _, None:
            content = ""
        case _:
            content = json.dumps(value)
    return tag("td", content, class_=kind)


def chip(state: str, word: str) -> Markup:
    return tag("span", word, class_=f"chip {state}")
