"""Sentences of ours folded between words, the rows after the first set in.

A word that fills more than a row is left whole for the terminal to break, so that a path or an
address can still be copied.
"""

import re
from collections.abc import Iterator, Sequence

from aish.sinks.look import cells

_NARROW = 40
_WORDS = re.compile(r" *[^ ]+")


def sentence(text: str, width: int, indent: str = "  ") -> Iterator[str]:
    """The rows of one line, at most `width` cells wide where its words allow it."""
    row, used, start = "", 0, ""
    for found in _WORDS.finditer(text.rstrip(" ")):
        word = found[0]
        size = cells(word)
        if used > len(indent) and used + size > width:
            yield start + row
            start = indent
            row = word.lstrip(" ")
            used = cells(start) + cells(row)
        else:
            row += word
            used += size
    yield start + row


def parts_in_rows(parts: Sequence[str], dot: str, width: int) -> Iterator[str]:
    """Parts with dots between them; none is broken that fits into a row."""
    row = ""
    for part in filter(None, parts):
        longer = f"{row} {dot} {part}" if row else part
        if row and cells(longer) > width:
            yield row
            longer = f"  {part}"
        row = longer
    yield row


def hint_rows(hint: str, width: int) -> Iterator[str]:
    """What to do next, below what went wrong."""
    return sentence(f"  hint: {hint}", width, " " * (8 if width >= _NARROW else 2))
