"""An answer on the screen while it arrives, drawn as the Markdown it is, by whole blocks."""

from collections.abc import Sequence

from aish.core.text import for_terminal
from aish.output.live_text import Cleaner
from aish.output.markdown.blocks import Block, Blocks
from aish.output.rows import folded, spans
from aish.output.screen import Screen
from aish.output.style import cells

_INDENT = " " * 4
# Of the screen, for what has not ended.
_SHARE = 3
_TAB = 4
_MARGIN = 4


class PartialMarkdown:
    """Lays out the same text again and again, each time with some more at its end.

    All rows but the last one stand: what comes next costs what it is long itself.
    """

    def __init__(self) -> None:
        self._text = ""
        self._width = 0
        self._rows: list[str] = []
        self._at = 0
        self._first = 0

    def rows(self, text: str, width: int, most: int, *, gap: bool) -> Sequence[str]:
        """The last rows of what there is now, broken between words as they will be in the end.

        Not more than `most`: a window made narrower folds them, and what it pushes over its top
        cannot be taken away any more. Where there are too many several go at once, so that the
        others stay where they are for a while.
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
        rows = [*self._rows, _settled(rest[last[0] :], width).rstrip(" ")]
        if narrower:
            # It may get narrower still.
            self._first = len(rows) - 1
        elif len(rows) - self._first > most:
            self._first = len(rows) - max(1, most // 2)
        return rows[self._first :] if self._first or not gap else ["", *rows]


def _settled(row: str, width: int) -> str:
    """A row without a word that has begun near the margin, and may go to the next row yet."""
    if row.endswith(" ") or cells(row) * _MARGIN < width * (_MARGIN - 1):
        return row
    head, blank, _ = row.rpartition(" ")
    return head if head.strip() and blank else row


class MarkdownAnswer:
    """Whole blocks, and meanwhile what there is of the next one, on the last lines."""

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
        """Draw the blocks that are whole now."""
        self._screen.rest()
        if blocks := self._blocks.feed(text):
            self._screen.instead("".join([self._drawn(block) for block in blocks]))

    def end(self) -> None:
        """Draw what is left."""
        if shown := [self._drawn(block) for block in self._blocks.end()]:
            self._screen.instead("".join(shown))
        self.drop()

    def drop(self) -> None:
        """Take the block away that has not ended."""
        self._screen.pin(None)
        self._screen.end_line()

    def _drawn(self, block: Block) -> str:
        gap = "\n" if block.gap else ""
        paint = self._look.paint
        match block.kind:
            case "text" | "item":
                return gap + "".join(f"{line}\n" for line in self._markdown(block))
            case "label":
                said = f"{_indent(block)}{self._look.glyphs.rule * 2} {block.text}"
                return f"{gap}{paint('dim', said)}\n"
            case "code":
                # Not folded, so that it can be copied.
                return f"{gap}{_indent(block)}{paint('cyan', block.text) if block.text else ''}\n"
            case "command":
                return f"{gap}{paint('bold', block.text)}\n"
            case "long":
                return gap + self._long(block)

    def _markdown(self, block: Block) -> Sequence[str]:
        # By the first block: to import rich takes as long as some requests do.
        from aish.output.markdown.render import drawing_for

        return drawing_for(self._look).lines(block, self._screen.width)

    def _long(self, block: Block) -> str:
        start = "" if self._is_long else " " * block.indent
        self._is_long = block.text != "\n"
        return start + self._cleaner.piece(block.text)

    def _tail(self, width: int, height: int) -> Sequence[str]:
        """The end of the block that has not ended, as it was written."""
        text = self._blocks.pending
        if self._is_long or not text.strip():
            return ()
        most = max(1, height // _SHARE)
        if self._blocks.in_code:
            recent = for_terminal(text[-width * most :].removesuffix("\r"))
            rows = folded(recent, width - 1 - len(_INDENT))
            return [_INDENT + row for row in rows[-most:]]
        shown = for_terminal(text.removesuffix("\r"))
        return self._unended.rows(shown, width, most, gap=self._blocks.has_gap)


def _indent(block: Block) -> str:
    return " " * block.indent + _INDENT
