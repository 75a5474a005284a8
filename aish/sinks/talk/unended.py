"""The text of a block that has not ended, in rows that stay where they are while it grows."""

from collections.abc import Sequence

from aish.sinks.look import cells
from aish.sinks.talk.layout import spans

_TAB = 4
_MARGIN = 4


class Unended:
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
