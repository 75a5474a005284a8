"""Cuts a document into passages: at its headings, then at paragraphs, lines and words.

Markdown and reStructuredText have headings; a code fence of Markdown stays whole.
"""

import re
from collections.abc import Iterator

from aish.core.frozen import frozen

SIZE = 500
"""Characters of a passage."""
OVERLAP = 50
"""Characters at the end of a passage that the next one begins with."""
LARGEST_FENCE = 8_000
"""Characters of a code fence that stays whole."""
_SECTION = 300
_LONGEST_LINE = 2_000
"""No heading is longer: patterns are not applied to more."""
_HASHES = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|$)(.*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}[ \t]*")
_MARKDOWN_LEVELS = "=-"


@frozen
class TextChunk:
    section: str
    content: str


@frozen
class _TextBlock:
    """Lines without a heading among them: text, or a code fence."""

    text: str
    is_fence: bool = False


def chunks_of(text: str, language: str) -> Iterator[TextChunk]:
    """The passages of a document in their order; none of an empty one."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if language in {"markdown", "restructuredtext"}:
        sections = _Parser(language).sections(plain.split("\n"))
    else:
        sections = iter([("", [_TextBlock(plain)])])
    for section, blocks in sections:
        for content in _passages(blocks):
            yield TextChunk(section, content)


class _Parser:
    """Reads lines, and knows the headings above each."""

    def __init__(self, language: str) -> None:
        self._is_markdown = language == "markdown"
        self._headings: list[tuple[int, str]] = []
        self._underlines: list[str] = list(_MARKDOWN_LEVELS) if self._is_markdown else []
        self._blocks: list[_TextBlock] = []
        self._plain: list[str] = []

    def sections(self, lines: list[str]) -> Iterator[tuple[str, list[_TextBlock]]]:
        """Yield the text below each heading, with all headings above."""
        number = 0
        while number < len(lines):
            line = lines[number]
            if fenced := self._fence(lines, number):
                number += fenced
                continue
            found, used = self._heading(line, lines[number + 1] if number + 1 < len(lines) else "")
            number += used
            if found is None:
                self._plain.append(line)
                continue
            if not self._is_markdown and self._plain and _UNDERLINE.fullmatch(self._plain[-1]):
                # A line above a heading belongs to it.
                self._plain.pop()
            yield self._section()
            while self._headings and self._headings[-1][0] >= found[0]:
                self._headings.pop()
            self._headings.append(found)
        yield self._section()

    def _section(self) -> tuple[str, list[_TextBlock]]:
        self._end_text()
        blocks, self._blocks = self._blocks, []
        return " > ".join(title for _, title in self._headings)[:_SECTION], blocks

    def _end_text(self) -> None:
        if self._plain:
            self._blocks.append(_TextBlock("\n".join(self._plain)))
            self._plain.clear()

    def _fence(self, lines: list[str], begin: int) -> int:
        """Count the lines of the code fence that begins here; 0 for other lines."""
        line = lines[begin]
        if not self._is_markdown or len(line) > _LONGEST_LINE:
            return 0
        opened = _FENCE.fullmatch(line)
        if opened is None or (opened[1][0] == "`" and "`" in opened[2]):
            return 0
        end = begin + 1
        while end < len(lines) and not _closes(lines[end], opened[1]):
            end += 1
        end = min(end + 1, len(lines))
        self._end_text()
        self._blocks.append(_TextBlock("\n".join(lines[begin:end]), is_fence=True))
        return end - begin

    def _heading(self, line: str, below: str) -> tuple[tuple[int, str] | None, int]:
        """The level and the title of a heading, if this is one, and how many lines were used."""
        if len(line) > _LONGEST_LINE or not line.strip():
            return None, 1
        if self._is_markdown and (hashes := _HASHES.fullmatch(line)):
            return (len(hashes[1]), hashes[2].strip().rstrip("#").strip()), 1
        rule = _UNDERLINE.fullmatch(below) if len(below) <= _LONGEST_LINE else None
        if rule is None or _UNDERLINE.fullmatch(line):
            return None, 1
        if self._is_markdown:
            if rule[1] not in self._underlines or line.lstrip()[:1] in {"-", "*", "|", ">"}:
                return None, 1
        elif len(below.rstrip()) < len(line.rstrip()):
            return None, 1
        elif rule[1] not in self._underlines:
            self._underlines.append(rule[1])
        return (self._underlines.index(rule[1]) + 1, line.strip()), 2


def _closes(line: str, opened: str) -> bool:
    mark = _FENCE.match(line) if len(line) <= _LONGEST_LINE else None
    return mark is not None and mark[1].startswith(opened) and not mark[2].strip(" \t")


def _passages(blocks: list[_TextBlock]) -> Iterator[str]:
    """Blocks joined as long as they fit; those that are too long in pieces."""
    current, is_code = "", False
    for unit in _units(blocks):
        if current and len(current) + 2 + len(unit.text) > SIZE:
            yield current
            current = "" if is_code or unit.is_fence else _tail(current, SIZE - len(unit.text) - 2)
        if len(unit.text) > SIZE:
            *whole, current = _fence_pieces(unit.text) if unit.is_fence else _pieces(unit.text)
            yield from whole
        else:
            current = f"{current}\n\n{unit.text}" if current else unit.text
        is_code = unit.is_fence
    if current:
        yield current


def _units(blocks: list[_TextBlock]) -> Iterator[_TextBlock]:
    """Paragraphs and fences, without the empty lines around them."""
    for block in blocks:
        if block.is_fence:
            yield block
            continue
        for paragraph in block.text.split("\n\n"):
            # The first line keeps its indentation, which means something in code.
            text = paragraph.strip("\n").rstrip()
            if text.strip():
                yield _TextBlock(text)


def _pieces(text: str) -> list[str]:
    """A paragraph in pieces, each beginning with the end of the one before it."""
    pieces: list[str] = []
    at = 0
    while len(text) - at > SIZE:
        end = _cut(text, at)
        piece = text[at:end].rstrip()
        pieces.append(piece)
        tail = _tail(piece, OVERLAP)
        at = at + len(piece) - len(tail) if tail else end
    pieces.append(text[at:].rstrip())
    return [piece for piece in pieces if piece]


def _cut(text: str, at: int) -> int:
    """Find the end of the piece at `at`: after a line, a sentence or a word."""
    least, most = at + SIZE // 2, at + SIZE
    for end in ("\n", ". ", " "):
        offset = text.rfind(end, least, most)
        if offset >= 0:
            return offset + len(end)
    return most


def _tail(text: str, most: int) -> str:
    """The last whole words that fit into the overlap."""
    size = min(OVERLAP, most)
    if size <= 0 or len(text) <= size:
        return ""
    tail = text[-size:]
    begin = next((place for place, letter in enumerate(tail) if letter.isspace()), None)
    return "" if begin is None else tail[begin:].strip()


def _fence_pieces(text: str) -> list[str]:
    """A code fence: whole unless it is very long."""
    pieces: list[str] = []
    rest = text
    while len(rest) > LARGEST_FENCE:
        end = rest.rfind("\n", LARGEST_FENCE // 2, LARGEST_FENCE) + 1 or LARGEST_FENCE
        pieces.append(rest[:end].rstrip("\n"))
        rest = rest[end:]
    return [*pieces, rest]
