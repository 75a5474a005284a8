"""A Markdown page that holds to a size: what GitHub would drop whole is cut, and says so (B11).

All of it is HTML: a stranger's text is escaped by one function (`tag` of `reports.markup`), stands
in `code` and `pre`, where GitHub makes no mentions, references and links, and is never read as
Markdown. A block of HTML ends at an empty line, or, where it begins with `<pre`, at `</pre>`; so no
text within a block but that of a `pre` may have line ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from aish.core.json import JsonValue
from aish.core.json_text import json_text
from aish.core.text import for_line
from aish.reports.markup import Markup, joined, tag

_RESERVE = 1000
_CELL = 300
_TEXT = 20_000
_PROSE = 1_000
_LARGEST = 100_000
_DEEPEST = 4
_MOST_ROWS = 100
_MOST_COLUMNS = 12


class Page:
    """Blocks one after the other, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit - _RESERVE
        self._parts: list[str] = []
        self._cut = False

    def add(self, block: str, *, after: int = 0) -> bool:
        """Whether a block, and `after` bytes after it, still had room."""
        size = len(block.encode()) + 2
        if size + after > self._left:
            self._cut = True
            return False
        self._parts.append(f"{block}\n\n")
        self._left -= size
        return True

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
        """A table with as many rows as there is room for."""
        top, end = _row("th", heads), "</table>"
        kept: list[str] = []
        room = self._left - len(f"<table>\n{top}\n{end}".encode()) - 2
        for row in rows:
            line = _row("td", row)
            room -= len(line.encode()) + 1
            if room < 0:
                self._cut = True
                break
            kept.append(line)
        if kept:
            self.add("\n".join(["<table>", top, *kept, end]))

    def details(self, summary: Markup, blocks: Iterable[str], *, is_open: bool) -> bool:
        """A part that can be folded; whole or not at all."""
        opening = f"<details{' open' if is_open else ''}>\n{tag('summary', summary)}"
        return self.add("\n\n".join([opening, *blocks, "</details>"]))

    def text(self) -> str:
        """The page; empty where nothing had room."""
        note = "<p>The rest is cut off: GitHub shows no more than this.</p>\n\n"
        return "".join(self._parts) + (note if self._cut and self._parts else "")


def code(text: str, longest: int = _CELL) -> Markup:
    """A stranger's text on one line."""
    return tag("code", for_line(_short(text, longest)))


def pre(text: str) -> Markup:
    """A stranger's text with its line ends."""
    # A line end that comes first in a `pre` is not shown.
    return tag("pre", f"\n{_short(text, _TEXT)}")


def value(found: JsonValue) -> Markup:
    """What a step answered: objects and lists as tables and lists, text as it is."""
    if isinstance(found, str):
        return pre(found)
    shown = _value(found, 0)
    if not (found and isinstance(found, Mapping | list)):
        return tag("p", shown)
    return shown if len(shown) <= _LARGEST else pre(json_text(found, indent=2))


def within(text: str) -> Markup:
    """A text with its line ends, in a block that an empty line would end."""
    lines = _short(text.strip(), _PROSE).splitlines() or [""]
    first, *others = (code(line, _PROSE) for line in lines)
    return joined([first, *(part for line in others for part in (tag("br"), line))])


def _value(found: JsonValue, depth: int) -> Markup:
    match found:
        case str():
            return within(found)
        case Mapping() if found and depth < _DEEPEST:
            pairs = ((code(key), _value(inner, depth + 1)) for key, inner in found.items())
            return _rows(pairs, len(found))
        case list() if found and depth < _DEEPEST:
            return _list(found, depth)
        case _:
            return code(json_text(found, spaced=True), _PROSE)


def _list(found: Sequence[JsonValue], depth: int) -> Markup:
    """A table where all are objects with few keys, else a list."""
    objects = [one for one in found if isinstance(one, Mapping)]
    keys = list(dict.fromkeys(str(key) for one in objects for key in one))
    if len(objects) == len(found) and 0 < len(keys) <= _MOST_COLUMNS:
        rows = (
            [_value(one[key], depth + 1) if key in one else None for key in keys] for one in objects
        )
        return _rows(rows, len(found), [code(key) for key in keys])
    items = [tag("li", _value(one, depth + 1)) for one in found[:_MOST_ROWS]]
    left = len(found) - len(items)
    return tag("ul", *items, tag("li", f"and {left:,} more") if left else None)


def _rows(
    rows: Iterable[Sequence[str | None]], count: int, heads: Sequence[str] | None = None
) -> Markup:
    shown = [_row("td", row) for row in islice(rows, _MOST_ROWS)]
    top = _row("th", heads) if heads is not None else None
    left = count - len(shown)
    more = _row("td", [f"and {left:,} more"]) if left else None
    return tag("table", top, *shown, more)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _row(cell: str, texts: Sequence[str | None]) -> Markup:
    return tag("tr", *(tag(cell, text or "") for text in texts))
