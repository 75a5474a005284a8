"""Regular expressions over texts, for the process that parses untrusted input.

Imported there and nowhere else, so it imports the standard library and `PackError` only.
"""

import re

from aish.packs.pack_error import PackError

_NOT_BY_LINE = re.compile(r"\(\?(?!:)|\\[ABZz]|[*+?}]\+")
"""What may match within a line and yet not in a text of several: assertions, flags, what does not
go back."""

_MOST_MISSES = 100


def matching_lines(*texts: bytes, pattern: str, ignore_case: bool, most: int) -> list[list[int]]:
    """The numbers of the lines in which an expression matches, at most `most` (0: all) a text."""
    flags = re.IGNORECASE if ignore_case else 0
    try:
        by_line = re.compile(pattern, flags)
        whole = re.compile(pattern, flags | re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"`query` is not a regular expression: {str(error)[:200]}"
        raise PackError("bad_arguments", message) from None
    if _NOT_BY_LINE.search(pattern):
        return [_each_line(by_line, text.decode("utf-8", "replace"), most) for text in texts]
    return [_by_search(by_line, whole, text.decode("utf-8", "replace"), most) for text in texts]


def _each_line(pattern: re.Pattern[str], text: str, most: int) -> list[int]:
    numbers: list[int] = []
    for number, line in enumerate(_lines(text), 1):
        if pattern.search(line):
            numbers.append(number)
            if len(numbers) == most:
                break
    return numbers


def _by_search(by_line: re.Pattern[str], whole: re.Pattern[str], text: str, most: int) -> list[int]:
    """Search the whole text first for lines that may match.

    Each line that matches has a match in the whole text too; the other way round, one that goes
    over the end of its line counts only if the line matches by itself.
    """
    numbers: list[int] = []
    number, counted, place, misses = 1, 0, 0, 0
    while place <= len(text) and (match := whole.search(text, place)):
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.start())
        end = len(text) if end < 0 else end
        if begin == len(text) and begin > 0:
            # After the last line end there is no line.
            break
        number += text.count("\n", counted, begin)
        counted = begin
        if by_line.search(text[begin:end]):
            numbers.append(number)
            if len(numbers) == most:
                break
        elif (misses := misses + 1) > _MOST_MISSES:
            # An expression that goes over line ends: the search would begin anew each time.
            return _each_line(by_line, text, most)
        place = end + 1
    return numbers


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines
