r"""An answer on the screen while it arrives: by blocks of Markdown, or as it was written.

A stranger's text made fit for a terminal piece by piece, as if it had come in one.

`for_terminal` looks at a character's neighbours in two cases: `\r\n` is a line's end, and the
selectors of emoji are harmless after a symbol. Where a text is cut there, the end waits.
"""

from collections.abc import Sequence
from typing import Protocol

from aish.core.text import for_terminal
from aish.output.markdown.blocks import Block, Blocks
from aish.output.markdown.render import PartialMarkdown
from aish.output.markdown.wrap import folded
from aish.output.screen import Screen

_SELECTORS = "\ufe0e\ufe0f"
_WAITING = f"\r{_SELECTORS}"


class Cleaner:
    """What is written piece by piece is what `for_terminal` makes of the whole."""

    def __init__(self) -> None:
        self._held = ""
        self._last = ""

    def piece(self, text: str) -> str:
        """What can be written now that `text` has come."""
        if not self._held and text.isascii() and text.isprintable():
            self._last = text[-1:] or self._last
            return text
        whole = self._held + text
        sure = whole.rstrip(_WAITING)
        self._held = whole[len(sure) :]
        if len(self._held) > 1:
            # Of several only the last one has a neighbour that is not known yet.
            sure, self._held = whole[:-1], whole[-1]
        return self._cleaned(sure)

    def rest(self) -> str:
        """What waited for more; nothing comes after it."""
        held, self._held = self._held, ""
        return self._cleaned(held)

    def _cleaned(self, text: str) -> str:
        if not text:
            return ""
        before = self._last if text[0] in _SELECTORS else ""
        self._last = text[-1]
        shown = for_terminal(before + text)
        return shown[len(for_terminal(before)) :]


_INDENT = " " * 4
# Of the screen, for what has not ended.
_SHARE = 3


class Answer(Protocol):
    """What one turn of a model says."""

    def feed(self, text: str) -> None:
        """Some more of it has come."""
        ...

    def end(self) -> None:
        """That was all."""
        ...

    def drop(self) -> None:
        """It is void; what was not drawn for good is taken away."""
        ...


class Raw:
    """Each piece as it comes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._cleaner = Cleaner()
        screen.end_line()

    def feed(self, text: str) -> None:
        """Write it."""
        self._screen.text(self._cleaner.piece(text))

    def end(self) -> None:
        """End the last line."""
        self._screen.text(self._cleaner.rest())
        self._screen.end_line()

    def drop(self) -> None:
        """What was written stays."""
        self._screen.end_line()


class Rendered:
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
