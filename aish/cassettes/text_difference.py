"""Two texts as the lines that differ: what `diff` says, at a bounded cost (C10)."""

import difflib
from itertools import islice

from aish.core.phrases import shorten_counted
from aish.core.text import shared_start

_AROUND = 2
_MOST_LINES = 1_000
_WIDEST = 2_000


def changed_lines(before: str, after: str) -> tuple[str, ...]:
    """Lines that begin with `-`, `+`, a space for what is around them, or `@@`; no file names.

    A long line is shown from near the place where it changed. The texts are a stranger's still.
    """
    old, new = before.split("\n"), after.split("\n")
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    old_rest, new_rest = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(old_rest), len(new_rest)) > _MOST_LINES:
        return (
            f"@@ from line {start + 1} @@",
            f"-{len(old_rest)} lines",
            f"+{len(new_rest)} lines, too many to be compared",
        )
    if len(old_rest) == len(new_rest) == 1:
        old_rest, new_rest = _near_change(old_rest[0], new_rest[0])
    lead = old[max(0, start - _AROUND) : start]
    tail = old[len(old) - end :][:_AROUND]
    found = difflib.unified_diff(
        [*lead, *old_rest, *tail], [*lead, *new_rest, *tail], n=_AROUND, lineterm=""
    )
    first = start + 1 - len(lead)
    return tuple(_placed(line, first) for line in islice(found, 2, None))


def _placed(line: str, first: int) -> str:
    """A hunk's head as the line it begins on, counted within the whole text."""
    if not line.startswith("@@ -"):
        return line[:1] + shorten_counted(line[1:], _WIDEST)
    begun = int(line[4:].partition(" ")[0].partition(",")[0]) or 1
    return f"@@ line {first + begun - 1} @@"


def _near_change(old: str, new: str) -> tuple[list[str], list[str]]:
    """Two lines, without most of the beginning that they share if they are long."""
    if max(len(old), len(new)) <= _WIDEST:
        return [old], [new]
    skipped = max(0, shared_start(old, new) - _WIDEST // 10)
    mark = "…" if skipped else ""
    shown = [mark + shorten_counted(line[skipped:], _WIDEST) for line in (old, new)]
    return shown[:1], shown[1:]


def _shared(old: list[str], new: list[str]) -> int:
    """How many lines two texts begin with alike."""
    pairs = zip(old, new, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
