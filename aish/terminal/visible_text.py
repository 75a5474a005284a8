"""Text without invisible characters, folded at the terminal's width.

Stricter than `aish.core.text`: what is harmless in an answer may not be in an approval: an unusual
space, a mark that strikes a letter through, a character that no font has. Each is escaped, as a
no-break space is. Untrusted text is shown behind a bar, so that it cannot begin a line and look
like ours; a broken bar means that a row continues the line above.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from aish.core.text import for_line

_MOST_MARKS = 3
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
_MARKS = frozenset({"Mn", "Me"})
# Visible by their category, but without ink: a Braille blank, a note without a head.
_BLANK = frozenset("\u2800\U0001d159")
_SELECTORS = frozenset("\ufe0e\ufe0f")
_OVERLAY = 1
_FIRST_LONG = 0x10000


def visible(text: str) -> str:
    """The text on one line, in characters that are all visible and distinguishable from nothing."""
    shown = for_line(text)
    if shown.isascii():
        return shown
    pieces: list[str] = []
    marks = _MOST_MARKS
    for character in shown:
        kind = _kind(character)
        # A mark needs a base letter, and stacked marks cover what is above and below.
        marks = marks + 1 if kind == "mark" else 0 if kind == "base" else _MOST_MARKS
        hidden = kind == "hidden" or (kind == "mark" and marks > _MOST_MARKS)
        pieces.append(escape(character) if hidden else character)
    return "".join(pieces)


def escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < _FIRST_LONG else f"\\U{code:08x}"


def cells(character: str) -> int:
    """The maximum number of columns of a character."""
    return 1 if character.isascii() else _wide(character)


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    """`base`, `mark`, `hidden`, or `other`: what no mark may follow."""
    category = unicodedata.category(character)
    if character == " ":
        return "other"
    if category in _HIDDEN or character in _BLANK or character in _SELECTORS:
        return "hidden"
    if category in _MARKS:
        covers = category == "Me" or unicodedata.combining(character) == _OVERLAY
        return "hidden" if covers else "mark"
    return "base" if category[0] in "LMN" else "other"


@lru_cache(maxsize=4096)
def _wide(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


BAR = "  │ "
FOLD = "  ┆ "
_GOES_ON = FOLD.lstrip()
_LEAST_ROOM = 12
_LONGEST_ESCAPE = 10
_TOKEN = re.compile(r"\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|U[0-9a-f]{8}|.)|.")
# Including an escaped line end, after which a reader expects the next row; but not for the quote
# that closes a text.
_TEXT_LINE = re.compile(r"(?:[^\\]+|\\[^n]|\\n(?=\",?$))*(?:\\n|\\?$)")
_NARROW = 40
_SPACE = re.compile(r"(?<=[^ ]) (?=[^ ])")


def with_bar(line: str, width: int) -> Iterator[str]:
    for number, row in enumerate(fold(line, width - len(BAR))):
        yield (FOLD if number else BAR) + row


def text_with_bar(text: str, width: int) -> Iterator[str]:
    """Untrusted text of any number of lines behind the bar, all of it visible."""
    for line in text.split("\n"):
        for number, row in enumerate(fold(visible(line), width - len(BAR), at_spaces=True)):
            yield (FOLD if number else BAR) + row


def with_label(label: str, value: str, width: int) -> Iterator[str]:
    """Our own label and a value on one line, or folded between its words."""
    size = 8 if width >= _NARROW else len(label)
    for number, row in enumerate(fold(value, width - size - 2, at_spaces=True)):
        yield f"{'':>{size}}{_GOES_ON}{row}" if number else f"{label:>{size}}: {row}"


def fold(line: str, width: int, *, at_spaces: bool = False) -> Iterator[str]:
    r"""Rows that fit into `width` columns, and end after each `\n` escape.

    `at_spaces` breaks them after a space if there is one. It remains at the end of its row, and is
    never one of several, which could not be counted there.
    """
    # One column is left free: terminals differ in how they treat the last one.
    room = max(width - 1, _LEAST_ROOM)
    rows = 0
    for found in _TEXT_LINE.finditer(line):
        part, start = found[0], 0
        while start < len(part):
            end = _cut(part, start, room)
            if at_spaces and end < len(part):
                end = _behind_a_space(part, start, end)
            yield part[start:end]
            start, rows = end, rows + 1
    if not rows:
        yield ""


def _cut(text: str, start: int, room: int) -> int:
    """Return where a row that begins at `start` ends; escapes are not split."""
    piece = text[start : start + room]
    if piece.isascii() and (start + room >= len(text) or "\\" not in piece[-_LONGEST_ESCAPE:]):
        return start + len(piece)
    used = 0
    for found in _TOKEN.finditer(text, start, start + room + _LONGEST_ESCAPE):
        used += sum(map(cells, found[0]))
        if used > room:
            return found.start()
    return len(text)


def _behind_a_space(text: str, start: int, end: int) -> int:
    """The last position to break a row at, or its end; several spaces there begin the next row."""
    found = [place.end() for place in _SPACE.finditer(text, start + 1, end)]
    if found:
        return found[-1]
    inked = start + len(text[start:end].rstrip(" "))
    is_several = text[inked : inked + 2] == "  "
    return inked if is_several and start < inked < end else end


def words(text: str, width: int) -> Iterator[str]:
    """Our own sentence, folded at its spaces if the terminal is narrow."""
    row = ""
    for word in text.split(" "):
        if row and len(row) + 1 + len(word) >= width:
            yield row
            row = word
        else:
            row = f"{row} {word}" if row else word
    yield row
