"""What the YAML scanner says, in words for people (F10)."""

import re
from typing import Any

from aish.core.errors import Position, Problem

_TEMPLATE = re.compile(r"(?<![\"'{])\{[{%#]")
_QUOTE = 'put quotes around the whole value: `key: "{{ … }}"`'
_UNQUOTED = "an unquoted `"
_CLOSE = re.compile(r"[}%]\}")
_BAD_START = re.compile(r"found character '?(.+?)'? that cannot start any token")
# Beginnings of the scanner's own words, and ours.
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed here",
        "a `: ` where no key can be",
        "quote text that holds `: `, and check the indentation",
    ),
    ("expected <block end>", "this does not belong here", "check the indentation"),
    ("found unexpected end of stream", "a quote is opened here and never closed", None),
    ("expected ',' or ']'", "a `[` is never closed, or a comma is missing", None),
    ("expected ',' or '}'", "a `{` is never closed, or a comma is missing", None),
    ("could not find expected ':'", "a key without `:`", None),
    ("expected '<document start>'", "this does not belong here", "check the indentation"),
)


def syntax_problem(error: Exception, text: str, file: str) -> Problem:
    """One problem for an error of the YAML library."""
    line, column = _place(error, text)
    position = Position(file, line + 1, column + 1)
    lines = text.splitlines()
    there = lines[line] if line < len(lines) else ""
    tab = _tab_before_text(there)
    if tab is not None or there[column : column + 1] == "\t":
        where = column if tab is None else tab
        return tab_problem(Position(file, line + 1, where + 1))
    brace = _unquoted_template(there, column)
    if brace is not None:
        where, opening = brace
        return template_problem(Position(file, line + 1, where + 1), opening)
    return Problem(position, "", *_in_words(error, there, column))


def template_problem(position: Position, opening: str = "{{") -> Problem:
    """A template that stands in the file without quotes."""
    return Problem(position, "", f"{_UNQUOTED}{opening}`: to YAML a mapping begins here", _QUOTE)


def without_template(text: str, problem: Problem) -> str | None:
    """The text with null where a template without quotes stands; `None` where none is to blame."""
    if not problem.message.startswith(_UNQUOTED):
        return None
    lines = text.splitlines(keepends=True)
    line, column = problem.position.line - 1, problem.position.column - 1
    if line >= len(lines) or lines[line][column : column + 1] != "{":
        return None  # the library counts lines in its own way
    ending = lines[line][len(lines[line].rstrip("\r\n")) :]
    before, rest = lines[line][:column], lines[line][column:]
    close = _CLOSE.search(rest)
    after = ending if close is None else rest[close.end() :]
    if before.rstrip()[-1:] not in {"", ":", "-", "[", ",", "{", "?"}:
        return None  # within a longer text, of which it is not known where it ends
    lines[line] = f"{before}~{after}"
    return "".join(lines)


def tab_problem(position: Position) -> Problem:
    """A tab between the parts of the file; tabs inside quoted or block text are fine."""
    return Problem(position, "", "a tab: YAML is indented with spaces", hint="use spaces")


def _unquoted_template(line: str, column: int) -> tuple[int, str] | None:
    """A template that opens on this line, not after the place where reading failed."""
    found = _TEMPLATE.search(line.split(" #", maxsplit=1)[0])
    if found is None or found.start() > column or found[0] == "{#":
        return None
    if found[0] == "{%" and column > found.start() + 1:
        return None
    return found.start(), found[0]


def _tab_before_text(line: str) -> int | None:
    blank = line[: len(line) - len(line.lstrip(" \t"))]
    return blank.index("\t") if "\t" in blank else None


def _place(error: Any, text: str) -> tuple[int, int]:
    """Line and column from 0; a reader's error has an offset, others may have nothing."""
    opened = "unexpected end of stream" in str(getattr(error, "problem", ""))
    marks = [getattr(error, "context_mark", None), getattr(error, "problem_mark", None)]
    mark = next((m for m in (marks if opened else reversed(marks)) if m is not None), None)
    if mark is not None:
        return mark.line, mark.column
    offset = getattr(error, "position", None)
    if isinstance(offset, int):
        before = text[:offset]
        return before.count("\n"), offset - (before.rfind("\n") + 1)
    return 0, 0


def _in_words(error: Any, line: str, column: int) -> tuple[str, str | None]:
    """The message and the hint."""
    character = getattr(error, "character", None)
    if character is not None:
        code = character if isinstance(character, int) else ord(character)
        return f"the control character U+{code:04X} may not stand in YAML", None
    said = str(getattr(error, "problem", None) or "")
    bad = _BAD_START.match(said)
    if bad:
        sign = line[column : column + 1]
        return f"text cannot begin with `{sign}`", "put quotes around it"
    for beginning, message, hint in _WORDS:
        if said.startswith(beginning):
            return message, hint
    said = said or next(iter(str(error).splitlines()), "unreadable")
    return f"not YAML: {said}", None
