"""What a write changed, as a unified diff in bounded time and length (K6, K7)."""

import difflib
from collections.abc import Iterator
from itertools import islice

from aish.core.frozen import frozen
from aish.core.text import for_line

ROOM = 20_000
"""Characters of a diff that are returned."""
_COMPARED = 1000
"""Changed lines that are compared one by one; more are shown as taken out and put in."""
_CONTEXT = 3
_LONGEST = 2000


@frozen
class Diff:
    """The text, and whether there was more of it."""

    text: str
    truncated: bool


def diff_of(before: str, after: str, path: str) -> Diff:
    """The difference between two texts."""
    if before == after:
        return Diff("", truncated=False)
    rows: list[str] = []
    size = 0
    for row in _rows(_lines(before), _lines(after), for_line(path)):
        cut = row if len(row) <= _LONGEST else row[:_LONGEST] + "…\n"
        size += len(cut)
        if size > ROOM:
            return Diff("".join(rows), truncated=True)
        rows.append(cut)
    return Diff("".join(rows), truncated=False)


def _lines(text: str) -> list[str]:
    """Lines with their ends; a last one without says so, as `diff` does."""
    lines = text.split("\n")
    last = lines.pop()
    ended = [line + "\n" for line in lines]
    return [*ended, f"{last}\n\\ No newline at end of file\n"] if last else ended


def _rows(before: list[str], after: list[str], path: str) -> Iterator[str]:
    same = 0
    shortest = min(len(before), len(after))
    while same < shortest and before[same] == after[same]:
        same += 1
    alike = 0
    while alike < shortest - same and before[-1 - alike] == after[-1 - alike]:
        alike += 1
    start = max(same - _CONTEXT, 0)
    end = max(alike - _CONTEXT, 0)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    yield f"--- a/{path}\n"
    yield f"+++ b/{path}\n"
    if max(len(old), len(new)) > _COMPARED:
        yield from _replaced(old, new, start, same - start)
        return
    # Its own header has no file names.
    for row in islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None):
        yield _moved(row, start) if row.startswith("@@") else row


def _replaced(old: list[str], new: list[str], start: int, same: int) -> Iterator[str]:
    """All old lines and then all new ones."""
    yield f"@@ -{start + 1},{len(old)} +{start + 1},{len(new)} @@\n"
    yield from (" " + line for line in old[:same])
    yield from ("-" + line for line in old[same:])
    yield from ("+" + line for line in new[same:])


def _moved(header: str, by: int) -> str:
    """A hunk's header with its line numbers counted from the file's beginning."""
    parts = header.split(" ")
    for place in (1, 2):
        number, comma, count = parts[place][1:].partition(",")
        parts[place] = f"{parts[place][0]}{int(number) + by}{comma}{count}"
    return " ".join(parts)
