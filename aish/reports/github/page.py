"""A Markdown page that holds to a size: what GitHub would drop whole is cut, and says so (B11).

All of it is HTML: a stranger's text is escaped by one function (`tag` of `reports.markup`), stands
in `code` and `pre`, where GitHub makes no mentions, references and links, and is never read as
Markdown. A block of HTML ends at an empty line, or, where it begins with `<pre`, at `</pre>`; so no
text within a block but that of a `pre` may have line ends.
"""

from collections.abc import Iterable, Sequence

from aish.reports.markup import Markup, tag
from aish.text import for_line

# A step may write 1024 KiB, and a summary over that is dropped whole.
LIMIT = 1000 * 1024
_RESERVE = 1000
_CELL = 300
_TEXT = 20_000


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


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _row(cell: str, texts: Sequence[str | None]) -> Markup:
    return tag("tr", *(tag(cell, text or "") for text in texts))
