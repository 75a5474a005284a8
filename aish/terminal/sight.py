r"""A text with nothing in it that a person cannot see (P2, P9): stricter than `aish.core.text`.

What is fine in an answer is not in what a person says yes to: a space that is none, a mark that
strikes a letter through, a character that no font has. Each is spelled out, as `\u00a0` is.
"""

import unicodedata
from functools import lru_cache

from aish.core.text import for_line

_MOST_MARKS = 3
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
_MARKS = frozenset({"Mn", "Me"})
# These have a category that is seen, and no ink: a blank of Braille, a note without a head.
_BLANK = frozenset("\u2800\U0001d159")
_SELECTORS = frozenset("\ufe0e\ufe0f")
_OVERLAY = 1
_FIRST_LONG = 0x10000


def visible(text: str) -> str:
    """The text on one line, in characters that can all be seen and told apart from nothing."""
    shown = for_line(text)
    if shown.isascii():
        return shown
    pieces: list[str] = []
    marks = _MOST_MARKS
    for character in shown:
        kind = _kind(character)
        # A mark needs a letter to stand on, and stacks of them cover what is above and below.
        marks = marks + 1 if kind == "mark" else 0 if kind == "base" else _MOST_MARKS
        hidden = kind == "hidden" or (kind == "mark" and marks > _MOST_MARKS)
        pieces.append(spelled(character) if hidden else character)
    return "".join(pieces)


def spelled(character: str) -> str:
    """A character by its number."""
    code = ord(character)
    return f"\\u{code:04x}" if code < _FIRST_LONG else f"\\U{code:08x}"


def cells(character: str) -> int:
    """The columns that a character takes at most."""
    return 1 if character.isascii() else _wide(character)


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    """`base`, `mark`, `hidden`, or `other`: what no mark may stand on."""
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
