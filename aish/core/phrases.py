"""Phrases used in messages: truncated texts, lists of names, counts, amounts of money.

Texts must be masked before they are truncated: a truncated secret would not be recognized.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import islice

_SMALL_CHANGE = 0.001


def shorten(text: str, most: int) -> str:
    """The first characters of a text, with an ellipsis if it was truncated."""
    return text if len(text) <= most else f"{text[:most]}…"


def shorten_counted(text: str, most: int) -> str:
    """The same, and how many characters were omitted."""
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({more} more characters)"


def first_of(words: Sequence[str], most: int, by: str = ", ") -> str:
    """The first few of many words, and the number of others."""
    return by.join(words[:most]) + and_more(len(words) - most)


def and_more(count: int) -> str:
    """Suffix after the first few of many: ` and 3 more`; empty if there are no others."""
    return f" and {count:,} more" if count > 0 else ""


def first_lines(lines: Sequence[str], most: int, lead: str = "") -> list[str]:
    """The first few of many lines, then one that begins with `lead` and counts the others."""
    more = len(lines) - most
    return [*lines[:most], *([f"{lead}and {more:,} more"] if more > 0 else ())]


def backticked(names: Iterable[object], most: int | None = None, by: str = ", ") -> str:
    """Names in backticks, the first few of many: ``"`a`, `b` and 3 more"``."""
    names = list(names)
    shown = by.join(f"`{name}`" for name in islice(names, most))
    return shown if most is None else shown + and_more(len(names) - most)


def plural(number: float, noun: str) -> str:
    """`step` for one, `steps` for any other number."""
    return noun if number == 1 else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {plural(number, noun)}"


def dollars(amount: float) -> str:
    """US dollars with as many digits as needed: `$0.50`, `$0.0123`."""
    if amount == 0 or math.isclose(amount, round(amount, 2), rel_tol=1e-9):
        return f"${amount:,.2f}"
    if amount >= _SMALL_CHANGE:
        return f"${amount:,.4f}"
    digits = 1 - math.floor(math.log10(amount))
    return f"${amount:.{digits}f}".rstrip("0")


_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A duration as files have it: `90s` is `1m30s`, a part of a second is in `ms`."""
    left, text = int(seconds), ""
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    part = round(seconds % 1 * 1000)
    return text + (f"{part}ms" if part else "") or "0s"
