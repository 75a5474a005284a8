"""Styled text laid out in rows: broken between words, and within those that are too long."""

import re
from collections.abc import Iterator, Sequence

from aish.core.frozen import frozen
from aish.sinks.look import cells

_WORDS = re.compile(r" *[^ ]+")


@frozen
class Run:
    """Some text in one style; `codes` are those of a terminal, empty for none."""

    text: str
    codes: str = ""


def rows(runs: Sequence[Run], width: int) -> list[str]:
    """The rows of a text whose lines end where they were ended."""
    text = "".join([run.text for run in runs])
    placed = list(spans(text, width))
    if all(not run.codes for run in runs):
        return [text[start:end] for start, end in placed]
    return list(_painted(runs, placed))


def _painted(runs: Sequence[Run], placed: Sequence[tuple[int, int]]) -> Iterator[str]:
    at = index = 0
    for start, end in placed:
        row: list[str] = []
        while index < len(runs):
            run = runs[index]
            begin = max(start, at)
            stop = min(end, at + len(run.text))
            if begin < stop:
                piece = run.text[begin - at : stop - at]
                row.append(f"\x1b[{run.codes}m{piece}\x1b[0m" if run.codes else piece)
            if at + len(run.text) > end:
                break
            at += len(run.text)
            index += 1
        yield "".join(row)


def spans(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Where each row of a text begins and ends."""
    start = 0
    width = max(1, width)
    for line in text.split("\n"):
        if len(line) <= width and cells(line) <= width:
            yield start, start + len(line)
        else:
            for begin, end in _broken(line, width):
                yield start + begin, start + end
        start += len(line) + 1


def _broken(line: str, width: int) -> Iterator[tuple[int, int]]:
    start = end = used = 0
    for word in _WORDS.finditer(line.rstrip(" ")):
        size = cells(word[0])
        if used + size <= width:
            end = word.end()
            used += size
            continue
        begin = word.end() - len(word[0].lstrip(" "))
        long = cells(line[begin : word.end()])
        if long <= width:
            yield start, end
            start, end, used = begin, word.end(), long
            continue
        # A word that fills more than a row begins where the last one ended.
        at = begin if used == 0 else word.start()
        start = begin if used == 0 else start
        for index in range(at, word.end()):
            step = cells(line[index])
            if used + step > width and index > start:
                yield start, index
                start, used = index, 0
            used += step
        end = word.end()
    yield start, end
