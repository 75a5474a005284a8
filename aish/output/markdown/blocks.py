"""Markdown split into blocks while it arrives: pure, lines in, blocks out.

A block can be drawn without knowing what follows: a paragraph, a heading, one item of a list, a
table, a quote; of code each line. `markdown.render` draws them. The blocks are the same wherever
the text is split, and their size is limited to what is cheap to draw.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from aish.core.frozen import frozen
from aish.core.text import for_terminal
from aish.output.live_text import LineAssembler, LinePiece

_FENCE = re.compile(r"^( *)(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_HEADING = re.compile(r"^ {0,3}#{1,6}(?: |$)")
_UNDERLINE = re.compile(r"(?:=+|-+)$")
_RULE = re.compile(r"^ {0,3}([-*_])(?: *\1){2,} *$")
_ITEM = re.compile(r"^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|$)")
_QUOTE = re.compile(r"^ {0,3}>")
_TABLE_RULE = re.compile(r"^ {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$")
_SIGN = re.compile(r"[-=*_+#>`~]|\d+[.)]")
_CODE_INDENT = 4
_MOST_CHARACTERS = 16_384
_MOST_LINES = 200
_LONGEST_HEAD = 1000

Kind = Literal["text", "item", "label", "code", "command", "long"]
Mode = Literal["", "text", "item", "quote"]


@frozen
class Block:
    """A unit to draw; `gap` requests an empty line before it.

    `label` is the info string of a fence, `command` a proposed command line, `long` a line in
    pieces, which is drawn as is.
    """

    kind: Kind
    text: str
    indent: int = 0
    marker: str = ""
    gap: bool = False


class Blocks:
    """Parses one answer."""

    def __init__(self) -> None:
        self._lines = LineAssembler()
        self._mode: Mode = ""
        self._block: list[str] = []
        self._size = 0
        self._indent = 0
        self._marker = ""
        self._fence: tuple[int, str] | None = None
        self._content: int | None = None
        """Where the text of the last item of a list begins, as long as the list goes on."""
        self._gap = False
        self._begun = False

    @property
    def pending(self) -> str:
        """The text that is not part of a complete block yet; may be read by another thread."""
        return "\n".join((*self._block, self._lines.partial))

    @property
    def has_gap(self) -> bool:
        """True if an empty line precedes the pending text."""
        return self._gap and self._begun

    @property
    def in_code(self) -> bool:
        """True if the text continues within a fence."""
        return self._fence is not None

    def feed(self, text: str) -> Sequence[Block]:
        """The blocks that `text` completes."""
        if self._lines.hold(text):
            return ()
        return [block for line in self._lines.feed(text) for block in self._take(line)]

    def end(self) -> Iterator[Block]:
        """The rest, at the end of the text."""
        for line in self._lines.end():
            yield from self._take(line)
        yield from self._end_block()

    def _take(self, line: LinePiece) -> Iterator[Block]:
        if line.part == "whole":
            text = for_terminal(line.text.removesuffix("\r"))
            yield from self._in_fence(text) if self._fence else self._line(text)
            return
        if line.part == "first":
            yield from self._end_block()
            yield self._make_block("long", line.text, _CODE_INDENT if self._fence else 0)
        else:
            yield Block("long", "\n" if line.part == "end" else line.text)

    def _in_fence(self, line: str) -> Iterator[Block]:
        assert self._fence is not None
        indent, mark = self._fence
        spread = line.expandtabs(_CODE_INDENT)
        deeper = len(spread) - len(spread.lstrip(" ")) - indent
        closing = line.strip(" \t")
        if deeper < _CODE_INDENT and len(closing) >= len(mark) and not closing.strip(mark[0]):
            self._fence = None
            return
        start = len(line) - len(line.lstrip(" "))
        yield self._make_block("code", line[min(indent, start) :], indent)

    def _line(self, line: str) -> Iterator[Block]:
        text = line.expandtabs(4) if "\t" in line else line
        if not text.strip():
            yield from self._end_block()
            self._gap = True
        elif self._is_full(text):
            yield from self._continue_block(line)
        elif (fence := _FENCE.match(text)) is not None and self._deeper(text) < _CODE_INDENT:
            yield from self._end_block()
            yield from self._begin_code(fence, len(fence[1]))
        elif line.startswith("CMD: "):
            # Markdown would remove characters from it.
            yield from self._end_block()
            yield self._make_block("command", line)
        else:
            yield from self._text_line(text)

    def _begin_code(self, fence: re.Match[str], indent: int) -> Iterator[Block]:
        self._fence = (indent, fence[2])
        if label := fence[3].strip():
            yield self._make_block("label", label, indent)

    def _deeper(self, line: str) -> int:
        """Return how much more a line is indented than the text of the item it may belong to."""
        return len(line) - len(line.lstrip(" ")) - (self._content or 0)

    def _text_line(self, line: str) -> Iterator[Block]:
        deeper = self._deeper(line)
        is_inside = self._mode == "text" or (self._mode == "item" and deeper >= 0)
        if is_inside and _UNDERLINE.match(line.strip(" ")) and deeper < _CODE_INDENT:
            self._add(line.strip(" "))
            yield from self._end_block()
        elif _HEADING.match(line) or _RULE.match(line):
            yield from self._end_block()
            self._content = None
            self._gap = True
            yield self._make_block("text", line.strip())
        elif (item := _ITEM.match(line)) is not None and self._is_item(item):
            yield from self._end_block()
            fence = _FENCE.match(item[3] or "")
            self._begin("item", "" if fence else item[3] or "", len(item[1]), item[2])
            self._content = item.start(3) if item[3] else item.end(2) + 1
            if fence is not None:
                yield from self._end_block()
                yield from self._begin_code(fence, self._content)
        elif _QUOTE.match(line):
            if self._mode != "quote":
                yield from self._end_block()
                self._begin("quote", line.strip(" "), 0)
            else:
                self._add(line.strip(" "))
        elif self._mode:
            # What is indented so much begins nothing.
            is_text = deeper >= _CODE_INDENT and _SIGN.match(line.strip(" "))
            self._add(f"    {line.strip(' ')}" if is_text else line.strip(" "))
        else:
            yield from self._begin_block(line)

    def _begin_block(self, line: str) -> Iterator[Block]:
        """The beginning of a paragraph, or of indented code."""
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if indent < 2:  # ruff: ignore[magic-value-comparison] - the text of an item is indented by two
            self._content = None
        code = _CODE_INDENT + (self._content or 0)
        if indent >= code:
            yield self._make_block("code", line[code:], self._content or 0)
        else:
            self._begin("text", text, 0 if self._content is None else indent)

    def _is_item(self, item: re.Match[str]) -> bool:
        if self._content is not None:
            return True
        if self._mode:
            return bool(item[3]) and (item[2] in "-*+" or int(item[2][:-1]) == 1)
        return len(item[1]) < _CODE_INDENT

    def _is_full(self, line: str) -> bool:
        lines = len(self._block)
        return lines > 0 and (self._size + len(line) > _MOST_CHARACTERS or lines >= _MOST_LINES)

    def _continue_block(self, line: str) -> Iterator[Block]:
        """A block that is too big continues in another one; a table repeats its head."""
        mode, indent = self._mode, self._indent
        is_table = len(self._block) > 1 and _TABLE_RULE.match(self._block[1]) is not None
        head = "\n".join(self._block[:2])
        yield from self._end_block()
        if is_table and len(head) < _LONGEST_HEAD:
            self._begin(mode, head, indent)
            self._add(line)
        else:
            yield from self._line(line)

    def _begin(self, mode: Mode, text: str, indent: int, marker: str = "") -> None:
        self._mode = mode
        self._indent = indent
        self._marker = marker
        self._add(text)

    def _add(self, line: str) -> None:
        self._block.append(line)
        self._size += len(line)

    def _end_block(self) -> Iterator[Block]:
        if not self._mode:
            return
        kind: Kind = "item" if self._mode == "item" else "text"
        text = "\n".join(self._block).removeprefix("\n")
        self._mode = ""
        self._block = []
        self._size = 0
        yield self._make_block(kind, text, self._indent, self._marker)

    def _make_block(self, kind: Kind, text: str, indent: int = 0, marker: str = "") -> Block:
        block = Block(kind, text, indent, marker, gap=self._gap and self._begun)
        self._gap = False
        self._begun = True
        return block
