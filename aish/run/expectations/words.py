"""How expectations speak of values: short, and with a diff where that says more."""

from collections.abc import Callable, Iterator, Sequence

from aish.core.json import JsonValue
from aish.core.json_text import json_text

Mask = Callable[[str], str]
"""A text without its secrets, taken out before it is cut: no half would be known for one."""

_LONGEST = 120
_LONGEST_LINE = 200
_MOST_LINES = 24
# What `difflib` is given; its cost grows with the product.
_MOST_COMPARED = 300


def about(path: str | None, otherwise: str = "the text") -> str:
    """What an expectation is about, in words."""
    return otherwise if path is None else f"`{path}`"


def short(value: JsonValue, mask: Mask) -> str:
    """A value on one line, cut where it is long."""
    text = mask(value if isinstance(value, str) else json_text(value, spaced=True))
    line = text.strip("\n").replace("\r", "").replace("\n", " ⏎ ")
    if len(line) <= _LONGEST:
        return f"`{line}`"
    return f"`{line[:_LONGEST]}…` ({len(text):,} characters)"


def as_text(value: JsonValue) -> str:
    """A value as a person reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value, indent=2)


def instead(wanted: str, got: str, mask: Mask) -> str:
    """What there is instead of a text: itself if it is short, else the lines that differ."""
    differ_in_secret = wanted != got
    wanted, got = mask(wanted), mask(got)
    if differ_in_secret and wanted == got:
        return "another text, which differs in a secret"
    if "\n" not in wanted.strip("\n") + got.strip("\n") and len(got) <= _LONGEST:
        return short(got, str)
    lines = [f"  {line}" for line in _difference(wanted.splitlines(), got.splitlines())]
    return "\n".join(["another text (`-` expected, `+` got):", *lines])


def _difference(wanted: Sequence[str], got: Sequence[str]) -> Iterator[str]:
    from difflib import unified_diff

    start = 0
    while start < min(len(wanted), len(got)) and wanted[start] == got[start]:
        start += 1
    # One equal line before the first that differs is shown.
    begin = max(start - 1, 0)
    cut = slice(begin, begin + _MOST_COMPARED)
    made = unified_diff(wanted[cut], got[cut], lineterm="", n=1)
    lines = [line for line in made if not line.startswith(("---", "+++"))]
    if not lines:
        yield "only white space or line ends differ"
    for line in lines[:_MOST_LINES]:
        if line.startswith("@@"):
            yield f"line {begin + int(line.split()[1].lstrip('-').split(',')[0])}:"
        else:
            yield line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES} more lines"
