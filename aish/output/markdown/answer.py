"""An answer on the screen while it arrives, drawn as Markdown in whole blocks."""

from collections.abc import Sequence

from aish.core.text import for_terminal
from aish.output.live_text import Cleaner
from aish.output.markdown.blocks import Block, Blocks
from aish.output.rows import fold, spans
from aish.output.screen import Screen
from aish.output.style import cells

_INDENT = " " * 4
# The part of the screen for an incomplete block.
_SHARE = 3
_TAB = 4
_MARGIN = 4


class PartialMarkdown:
    """Lays out the same text repeatedly, each time with more at its end.

    All rows but the last are final: more text costs only its own length.
    """

    def __init__(self) -> None:
        self._text = ""
        self._width = 0
        self._rows: list[str] = []
        self._at = 0
        self._first = 0

    def rows(self, text: str, width: int, most: int, *, gap: bool) -> Sequence[str]:
        """The last rows of the current text, broken between words as they will be at the end.

        At most `most`: a narrowed window folds them, and what scrolls over its top cannot be
        removed any more. If there are too many, several are dropped at once, so that the others
        keep their places for a while.
        """
        text = text.expandtabs(_TAB) if "\t" in text else text
        grown = text.startswith(self._text)
        narrower = grown and width < self._width
        if not grown or width != self._width:
            self._width, self._rows, self._at, self._first = width, [], 0, 0
        self._text = text
        rest = text[self._at :]
        *whole, last = spans(rest, width)
        self._rows += [rest[start:end] for start, end in whole]
        self._at += last[0]
        rows = [*self._rows, _without_last_word(rest[last[0] :], width).rstrip(" ")]
        if narrower:
            # The window may become narrower still.
            self._first = len(rows) - 1
        elif len(rows) - self._first > most:
            self._first = len(rows) - max(1, most // 2)
        return rows[self._first :] if self._first or not gap else ["", *rows]


def _without_last_word(row: str, width: int) -> str:
    """A row without an unfinished word near the margin, which may still move to the next row."""
    if row.endswith(" ") or cells(row) * _MARGIN < width * (_MARGIN - 1):
        return row
    head, blank, _ = row.rpartition(" ")
    return head if head.strip() and blank else row


class MarkdownAnswer:
    """Whole blocks; the incomplete one is shown on the last lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._look = screen.look
        self._blocks = Blocks()
        self._cleaner = Cleaner()
        self._unended = PartialMarkdown()
        self._is_long = False
        screen.end_line()
        screen.pin(self._tail)

    def feed(self, text: str) -> None:
        self._screen.rest()
        if blocks := self._blocks.feed(text):
            self._screen.instead("".join([self._draw(block) for block in blocks]))

    def end(self) -> None:
        if rows := [self._draw(block) for block in self._blocks.end()]:
            self._screen.instead("".join(rows))
        self.drop()

    def drop(self) -> None:
        self._screen.pin(None)
        self._screen.end_line()

    def _draw(self, block: Block) -> str:
        gap = "\n" if block.gap else ""
        paint = self._look.paint
        match block.kind:
            case "text" | "item":
                return gap + "".join(f"{line}\n" for line in self._markdown(block))
            case "label":
                text = f"{_indent(block)}{self._look.glyphs.rule * 2} {block.text}"
                return f"{gap}{paint('dim', text)}\n"
            case "code":
                # Not folded, so that it can be copied.
                return f"{gap}{_indent(block)}{paint('cyan', block.text) if block.text else ''}\n"
            case "command":
                return f"{gap}{paint('bold', block.text)}\n"
            case "long":
                start = "" if self._is_long else " " * block.indent
                self._is_long = block.text != "\n"
                return gap + start + self._cleaner.piece(block.text)

    def _markdown(self, block: Block) -> Sequence[str]:
        # At the first block: importing rich takes as long as some requests.
        from aish.output.markdown.render import get_drawing

        return get_drawing(self._look).lines(block, self._screen.width)

    def _tail(self, width: int, height: int) -> Sequence[str]:
        """The end of the incomplete block, as it was written."""
        text = self._blocks.pending
        if self._is_long or not text.strip():
            return ()
        most = max(1, height // _SHARE)
        if self._blocks.in_code:
            recent = for_terminal(text[-width * most :].removesuffix("\r"))
            rows = fold(recent, width - 1 - len(_INDENT))
            return [_INDENT + row for row in rows[-most:]]
        line = for_terminal(text.removesuffix("\r"))
        return self._unended.rows(line, width, most, gap=self._blocks.has_gap)


def _indent(block: Block) -> str:
    return " " * block.indent + _INDENT
