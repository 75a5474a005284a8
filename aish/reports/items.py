"""The items of a step: a table for everybody, and the data of one that can be searched.

A row of the data is a JSON array in the order of `COLUMNS`. The bodies stand in blocks of inert
HTML, some items each, which the page's script reads when a row is opened; nothing in them was
not made by `markup`.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import starmap

from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.reports.figures import cost_text, took_text
from aish.reports.gathering import Row, StepPart
from aish.reports.markup import NOTHING, Markup, joined, tag
from aish.reports.verdicts import WORDS, State

COLUMNS = (
    "number", "key", "state", "preview", "tokens", "cost", "seconds", "turns", "calls",
    "block", "place",
)  # fmt: skip
_FIRST = 25
_MOST = 300
_BLOCK = 160_000
_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def items(part: StepPart, anchor: str, most: int) -> Markup:
    """The items of a step, of at most `most` of them with rows of their own."""
    rows = _chosen(part.ordered(), most)
    blocks = list(_blocks(rows))
    data = list(_data(blocks))
    return tag(
        "div",
        _plain_table(rows),
        _left_out(part, rows),
        _script("application/json", json_data(data), id=f"{anchor}-rows"),
        *(
            _script(
                "text/html",
                "".join(f"<div>{row.body.decode()}</div>" for row in block),
                id=f"{anchor}-{n}",
            )
            for n, block in enumerate(blocks)
        ),
        class_="items",
        data_items=anchor,
    )


def json_data(value: JsonValue) -> str:
    """JSON that may stand in a `script` element: nothing in it can end that."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_IN_JSON)


def _chosen(rows: list[Row], most: int) -> list[Row]:
    """The rows there is room for: all that did not go well come first."""
    if len(rows) <= most:
        return rows
    badly = [row for row in rows if row.state != "ok"][:most]
    kept = {row.key for row in badly}
    for row in rows:
        if len(kept) == most:
            break
        kept.add(row.key)
    return [row for row in rows if row.key in kept]


def _blocks(rows: Sequence[Row]) -> Iterator[list[Row]]:
    block: list[Row] = []
    size = 0
    for row in rows:
        if block and size + len(row.body) > _BLOCK:
            yield block
            block, size = [], 0
        block.append(row)
        size += len(row.body)
    if block:
        yield block


def _data(blocks: Sequence[Sequence[Row]]) -> Iterator[JsonValue]:
    number = 0
    for n, block in enumerate(blocks):
        for place, row in enumerate(block):
            usage = row.usage
            known = [count for count in (usage.input, usage.output) if count is not None]
            yield [
                number if row.index is None else row.index,
                for_line(row.key),
                row.state,
                row.preview,
                sum(known) if known else None,
                row.cost,
                round(row.seconds, 3) if row.seconds == row.seconds else None,
                row.turns,
                row.calls,
                n,
                place,
            ]
            number += 1


def _script(kind: str, content: str, id: str) -> Markup:
    """A block of data; the browser runs none of it."""
    assert "</script" not in content, "markup of ours only"
    return Markup(f'<script type="{kind}" id="{id}">{content}</script>\n')


def _plain_table(rows: Sequence[Row]) -> Markup:
    """The first ones and those that did not go well, for a browser without scripts."""
    shown = [row for n, row in enumerate(rows) if n < _FIRST or row.state != "ok"][:_MOST]
    left = len(rows) - len(shown)
    head = ("#", "Item", "Status", "Answer or reason", "Cost", "Time")
    note = (
        tag("p", f"{left:,} more are shown where scripts may run", class_="cut") if left else None
    )
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
            tag("tbody", *starmap(_plain_row, enumerate(shown))),
        ),
        note,
        class_="plain-items",
    )


def _plain_row(number: int, row: Row) -> Markup:
    return tag(
        "tr",
        tag("td", str(number if row.index is None else row.index), class_="number"),
        tag("td", for_line(row.key), class_="key"),
        tag("td", chip(row.state)),
        tag("td", row.preview, class_="preview"),
        tag("td", cost_text(row.cost), class_="number"),
        tag("td", took_text(row.seconds), class_="number"),
    )


def chip(state: State) -> Markup:
    """A status as a chip."""
    return tag("span", WORDS[state], class_=f"chip {state}")


def _left_out(part: StepPart, rows: Sequence[Row]) -> Markup:
    """Says what the page had no room for."""
    notes = []
    if gone := len(part.rows) - len(rows):
        notes.append(f"{gone:,} items that went well are counted and have no row.")
    if brief := sum(row.brief for row in rows):
        notes.append(
            f"{brief:,} items have no conversation here, to keep this file small."
            " The journal has everything."
        )
    return joined([tag("p", note, class_="cut") for note in notes]) if notes else NOTHING
