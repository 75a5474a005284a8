"""Markdown blocks as terminal rows. Imported when the first one is drawn, for import is slow.

The text is complete and inert: HTML is text, links and images show their targets, characters that
Markdown writes by number are sanitized like all others, and line ends are kept. Table columns have
their natural width, or are folded to the available one. The parser is rich's; its renderer is not
used, for it drops what it does not know and takes four times as long.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from aish.core.frozen import frozen
from aish.core.text import for_terminal
from aish.output.markdown.blocks import Block
from aish.output.rows import GAP, Side, column_rows, fold, spans
from aish.output.style import ASCII, Look, cells


@frozen
class StyledText:
    """Text in one style; `codes` are those of a terminal, empty for none."""

    text: str
    codes: str = ""


def rows(runs: Sequence[StyledText], width: int) -> list[str]:
    """The rows of a text whose line ends are kept."""
    text = "".join([run.text for run in runs])
    placed = list(spans(text, width))
    if all(not run.codes for run in runs):
        return [text[start:end] for start, end in placed]
    return list(_paint_rows(runs, placed))


def _paint_rows(runs: Sequence[StyledText], placed: Sequence[tuple[int, int]]) -> Iterator[str]:
    at = index = 0
    for start, end in placed:
        row: list[str] = []
        while index < len(runs):
            run = runs[index]
            begin = max(start, at)
            stop = min(end, at + len(run.text))
            if begin < stop:
                piece = run.text[begin - at : stop - at]
                row.append(f"\x1b[{run.codes}m{piece}\x1b[0m" if run.codes else piece)
            if at + len(run.text) > end:
                break
            at += len(run.text)
            index += 1
        yield "".join(row)


_CODES: Mapping[str, str] = {"strong": "1", "em": "3", "s": "9", "code_inline": "36"}
_ENCODED = re.compile(r"%3C(secret:[^<>%\s]+)%3E")


def inline_runs(nodes: Sequence[SyntaxTreeNode], look: Look) -> list[StyledText]:
    """The text of the nodes in runs of one style; without colour some marks are kept."""
    return list(_runs(nodes, look, ""))


def _runs(nodes: Sequence[SyntaxTreeNode], look: Look, codes: str) -> Iterator[StyledText]:
    for node in nodes:
        own = _CODES.get(node.type, "")
        inner = ";".join(filter(None, (codes, own))) if look.color else ""
        match node.type:
            case "softbreak" | "hardbreak":
                yield StyledText("\n")
            case "code_inline":
                mark = "" if look.color else node.markup
                yield StyledText(f"{mark}{for_terminal(node.content)}{mark}", inner)
            case "image":
                yield StyledText(for_terminal(f"[{node.content}] ({_lead(node, 'src')})"), codes)
            case "link":
                children = list(_runs(node.children, look, codes))
                yield from children
                lead = for_terminal(_lead(node, "href"))
                if lead != "".join(run.text for run in children):
                    yield StyledText(f" ({lead})", codes)
            case _ if node.children:
                yield from _runs(node.children, look, inner)
            case _:
                yield StyledText(for_terminal(node.content), codes)


def _lead(node: SyntaxTreeNode, name: str) -> str:
    """The target of a link, with its title if it has one."""
    title = node.attrs.get("title")
    # The parser has made an address of it; the name of a secret has to be readable.
    lead = _ENCODED.sub(r"<\1>", str(node.attrs.get(name, "")))
    return f'{lead} "{title}"' if title else lead


Cell = Sequence[StyledText]

_SIDES: Mapping[object, Side] = {"text-align:right": "right", "text-align:center": "center"}


def side_of(style: object) -> Side:
    """The alignment of a column, from the style that the parser gives its cells."""
    return _SIDES.get(style, "left")


def table_rows(
    lines: Sequence[Sequence[Cell]], sides: Sequence[Side], look: Look, width: int
) -> Iterator[str]:
    """The table, its head first; what does not fit into a cell is folded."""
    needed = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    widths = _share_width(needed, width - len(GAP) * (len(sides) - 1))
    head, *body = lines
    bold = [[StyledText(run.text, f"1;{run.codes}".rstrip(";")) for run in cell] for cell in head]
    yield from column_rows(list(map(rows, bold if look.color else head, widths)), widths, sides)
    yield look.paint("dim", GAP.join(look.glyphs.rule * column for column in widths))
    is_tall = any(need > have for need, have in zip(needed, widths, strict=True))
    for number, line in enumerate(body):
        if is_tall and number:
            # Between lines that may be folded only an empty one marks where the next begins.
            yield ""
        yield from column_rows(list(map(rows, line, widths)), widths, sides)


def _width(cell: Cell) -> int:
    return max((cells(line) for line in "".join(run.text for run in cell).split("\n")), default=0)


def _share_width(needed: Sequence[int], width: int) -> Sequence[int]:
    """The width of each column: narrow ones have what they need, the others share the rest."""
    widths = [max(1, need) for need in needed]
    left = width
    for done, column in enumerate(sorted(range(len(widths)), key=widths.__getitem__)):
        widths[column] = min(widths[column], max(1, left // (len(widths) - done)))
        left -= widths[column]
    return widths


_CODE_INDENT = "    "
_NARROWEST = 10
_NARROWEST_COLUMN = 6
# Beyond its own limit the parser omits content.
_DEEPEST = 18
_MARKS = re.compile(r"[\\`*_\[\]<&~|]|^[#>=+-]", re.MULTILINE)
_BARS = re.compile(r"(?<!\\)\|")
# What makes a block more than a paragraph.
_BLOCKS = re.compile(r"^ *(?:[-#>=+*~`_|:]|\d+[.)])|\|", re.MULTILINE)

# The tag of a secret; the parser would read it as the address of a link.
_SECRET = re.compile(r"<secret:[^<>\s]+>")


def _secret(state: StateInline, silent: bool) -> bool:  # ruff: ignore[boolean-type-hint-positional-argument] - the parser calls it so
    """Read the tag of a secret as text, whatever markup characters are in it."""
    match = _SECRET.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("text", "", 0).content = match.group()
    state.pos = match.end()
    return True


class Drawing:
    """Draws blocks for one terminal."""

    def __init__(self, look: Look) -> None:
        self._look = look
        # Without HTML, and without definitions, which would be shown nowhere.
        parser = MarkdownIt("commonmark", {"html": False})
        self._parser = parser.enable(["table", "strikethrough"]).disable("reference")
        self._parser.inline.ruler.before("autolink", "secret", _secret)
        is_ascii = look.glyphs == ASCII
        self._bullet = "-" if is_ascii else "•"

    def lines(self, block: Block, width: int) -> Sequence[str]:
        """A paragraph or an item in lines of at most `width` cells, if they fit."""
        head = " " * min(block.indent, width // 2)
        if block.kind != "item":
            return [head + row for row in self._draw(block.text, width - len(head))]
        marker = block.marker if block.marker[0].isdigit() else self._bullet
        tail = head + " " * (len(marker) + 1)
        first, *others = self._draw(block.text, width - len(tail)) or [""]
        start = f"{head}{self._look.paint('yellow', marker)} {first}"
        return [start, *(tail + row for row in others)]

    def _draw(self, text: str, width: int) -> Sequence[str]:
        width = max(_NARROWEST, width)
        if not _MARKS.search(text):
            return rows([StyledText(text)], width)
        try:
            drawn = self._parse(text, width)
        except Exception:  # ruff: ignore[blind-except] - untrusted text never ends a session: it is shown as written
            return fold(text, width)
        return drawn

    def _parse(self, text: str, width: int) -> Sequence[str]:
        if not _BLOCKS.search(text):
            inline = SyntaxTreeNode(self._parser.parseInline(text)).children[0]
            return rows(inline_runs(inline.children, self._look), width)
        tokens = self._parser.parse(text)
        if any(token.level >= _DEEPEST for token in tokens):
            return fold(text, width)
        columns = _columns(tokens)
        if columns * _NARROWEST_COLUMN > width or (columns and _is_ragged(text, columns)):
            return fold(text, width)
        return list(self._rows(SyntaxTreeNode(tokens).children, width))

    def _rows(self, nodes: Sequence[SyntaxTreeNode], width: int) -> Iterator[str]:
        width = max(_NARROWEST, width)
        before = ""
        for node in nodes:
            if before == node.type == "paragraph":
                yield ""
            before = node.type
            yield from self._node(node, width)

    def _node(self, node: SyntaxTreeNode, width: int) -> Iterator[str]:
        glyphs, paint = self._look.glyphs, self._look.paint
        match node.type:
            case "inline":
                yield from rows(inline_runs(node.children, self._look), width)
            case "heading":
                yield from self._draw_heading(node, width)
            case "hr":
                yield paint("dim", glyphs.rule * width)
            case "fence" | "code_block":
                if label := for_terminal(node.info.strip()):
                    yield _CODE_INDENT + paint("dim", f"{glyphs.rule * 2} {label}")
                for line in for_terminal(node.content).rstrip("\n").split("\n"):
                    yield _CODE_INDENT + (paint("cyan", line) if line else "")
            case "blockquote":
                bar = paint("dim", f"{glyphs.bar} ")
                yield from (bar + row for row in self._rows(node.children, width - 2))
            case "bullet_list" | "ordered_list":
                yield from self._list(node, width)
            case "table":
                yield from self._table(node, width)
            case _:
                yield from self._rows(node.children, width)

    def _draw_heading(self, node: SyntaxTreeNode, width: int) -> Iterator[str]:
        level = int(node.tag[1:])
        style = "1;4" if level == 1 else "1"
        runs = [run for child in node.children for run in inline_runs(child.children, self._look)]
        if self._look.color:
            runs = [
                StyledText(run.text, f"{style};{run.codes}" if run.codes else style) for run in runs
            ]
        else:
            # Without a style only its mark shows what it is.
            runs.insert(0, StyledText(f"{'#' * level} "))
        return iter(rows(runs, width))

    def _list(self, node: SyntaxTreeNode, width: int) -> Iterator[str]:
        """A list within a quote; others arrive item by item."""
        first = int(node.attrs.get("start", 1))
        for number, item in enumerate(node.children, first):
            marker = f"{number}. " if node.type == "ordered_list" else f"{self._bullet} "
            drawn = list(self._rows(item.children, width - len(marker))) or [""]
            yield self._look.paint("yellow", marker) + drawn[0]
            yield from (" " * len(marker) + row for row in drawn[1:])

    def _table(self, node: SyntaxTreeNode, width: int) -> Iterator[str]:
        lines = [line for part in node.children for line in part.children]
        sides = [side_of(cell.attrs.get("style")) for cell in lines[0].children]
        table = [[self._cell(cell) for cell in line.children] for line in lines]
        return table_rows(table, sides, self._look, width)

    def _cell(self, node: SyntaxTreeNode) -> Sequence[StyledText]:
        return [run for part in node.children for run in inline_runs(part.children, self._look)]


def _columns(tokens: Sequence[Token]) -> int:
    """The number of columns of the widest table."""
    count = widest = 0
    for token in tokens:
        count = 0 if token.type == "tr_open" else count + (token.type in {"th_open", "td_open"})
        widest = max(widest, count)
    return widest


def _is_ragged(text: str, columns: int) -> bool:
    """Return true if a line may have more cells than the head; the parser would omit them."""
    return any(len(_BARS.findall(line.strip(" |"))) >= columns for line in text.split("\n"))


@lru_cache(maxsize=4)
def get_drawing(look: Look) -> Drawing:
    """The drawing of a look: cached, for it is slow to make."""
    return Drawing(look)
