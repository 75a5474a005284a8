"""`CMD: ` lines of an answer, which propose local commands. Pure.

Lines in a code fence are examples and not proposals. Fences are recognised as in CommonMark, as far
as it concerns whole lines at the margin.
"""

import re
from collections.abc import Sequence

from aish.core.phrases import counted, shorten
from aish.core.text import for_line

_SHOWN = 80
MARK = "CMD: "
MOST = 20
"""Proposals of one answer that anybody is asked about."""
LONGEST = 16 * 1024
"""Characters of a proposal; nobody looks through more."""

_FENCE = re.compile(r" {0,3}(?:(`{3,})[^`]*|(~{3,}).*)\Z")
# Line ends of Python, terminals and editors: text after one would not be seen as part of the
# command.
_LINE_ENDS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def proposals(text: str) -> tuple[str, ...]:
    """The commands of all `CMD: ` lines outside code fences, in order, without empty ones."""
    commands: list[str] = []
    fence = ""
    for whole in text.split("\n"):
        line = whole.removesuffix("\r")
        if fence:
            fence = "" if _closes(line, fence) else fence
        elif opened := _FENCE.match(line):
            fence = opened[1] or opened[2]
        elif line.startswith(MARK) and (command := line.removeprefix(MARK).strip(" \t")):
            commands.append(command)
    return tuple(commands)


def refusal(command: str) -> str | None:
    """The reason to refuse a proposal without asking, if there is one."""
    if "\0" in command:
        return "it has a NUL character"
    if not _LINE_ENDS.isdisjoint(command):
        return "it has a character that ends a line"
    if len(command) > LONGEST:
        return f"it has {len(command):,} characters, and at most {LONGEST:,} are allowed"
    return None


def too_many(count: int) -> str | None:
    if count <= MOST:
        return None
    lines = counted(count - MOST, "more `CMD:` line")
    return f"{lines} not run: at most {MOST} of an answer are offered"


def skipped_text(commands: Sequence[str]) -> str:
    first, *more = commands
    others = f" and {counted(len(more), 'more `CMD:` line')}" if more else ""
    verb = "are" if more else "is"
    return f"`{brief(first)}`{others} {verb} not run: interrupted"


def brief(command: str) -> str:
    return for_line(shorten(command, _SHOWN))


def _closes(line: str, fence: str) -> bool:
    """Return true for the same mark as the fence, at least as often, and nothing else."""
    bare = line.rstrip(" \t")
    mark = bare.lstrip(" ")
    return len(bare) - len(mark) <= _INDENT and len(mark) >= len(fence) and set(mark) == {fence[0]}


# A line with more indentation is code because of that.
_INDENT = 3
