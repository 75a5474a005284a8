"""A question about a tool call as text, all of it (P2, P9). Pure: `tty` shows it.

What a stranger had a hand in stands behind a bar, wrapped by us at the width of the terminal, so
that no text of theirs can begin a line and pass for ours.
"""

import json
import unicodedata
from collections.abc import Iterator

from aish.strict_json import writable
from aish.text import for_line, for_terminal
from aish.vocab.protocols import Question

BAR = "  │ "
NARROWEST = 24
PROMPT = "send this call? [y/N] "


def question_text(question: Question, width: int) -> str:
    """The whole question up to and with the prompt, for a terminal `width` cells wide."""
    name = question.tool.name
    place = _place(question)
    arguments = _arguments(question.arguments)
    lines = [
        "",
        f"a tool call needs an answer{place}",
        *_field("server", for_line(name.server), width),
        *_field("tool", for_line(name.name), width),
        *_field("why", for_line(question.reason), width),
        f"arguments, all {len(arguments.splitlines()):,} lines:",
        *barred_arguments(question.arguments, width),
        PROMPT,
    ]
    return "\n".join(lines)


def barred_arguments(arguments: object, width: int) -> Iterator[str]:
    """The JSON that will be sent, all of it, behind the bar."""
    for line in _arguments(arguments).split("\n"):
        yield from _barred(line, width)


def _place(question: Question) -> str:
    """Where in the run, for a person who watches several steps at once."""
    place = question.place
    parts = [f"{key} {value}" for key in ("step", "item") if (value := getattr(place, key))]
    return for_line(f" ({', '.join(parts)})") if parts else ""


def _arguments(arguments: object) -> str:
    """The JSON that will be sent, laid out; the line ends inside its strings stay escaped."""
    sent = json.dumps(arguments, default=writable)
    return for_terminal(json.dumps(json.loads(sent), indent=2, ensure_ascii=False))


def _field(label: str, value: str, width: int) -> Iterator[str]:
    for number, line in enumerate(_wrapped(value, width - 10)):
        yield f"{label if number == 0 else '':>8}: {line}"


def _barred(line: str, width: int) -> Iterator[str]:
    for part in _wrapped(line, width - len(BAR)):
        yield BAR + part


def _wrapped(line: str, width: int) -> Iterator[str]:
    """Pieces that fit into `width` cells; never an empty sequence, nothing left out."""
    # One cell is kept free: terminals differ in what they do at the last column.
    room = max(width, NARROWEST) - 1
    piece: list[str] = []
    used = 0
    for character in line.expandtabs(4):
        cells = _cells(character)
        if used + cells > room:
            yield "".join(piece)
            piece, used = [], 0
        piece.append(character)
        used += cells
    yield "".join(piece)


def _cells(character: str) -> int:
    if character.isascii():
        return 1
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
