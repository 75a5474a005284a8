import io
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from aish.core.messages import Usage
from aish.output.status import seconds_text, tokens_text
from aish.output.style import ASCII, Glyphs, Look, cells, look_of, wants_console


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        yield stream
    os.close(leader)


@pytest.mark.parametrize(
    ("environ", "color", "animate"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True),
    ],
)
def test_the_look_of_a_terminal(
    terminal: TextIO, environ: dict[str, str], *, color: bool, animate: bool
) -> None:
    look = look_of(terminal, environ)

    assert (look.color, look.animate) == (color, animate)


@pytest.mark.parametrize(("environ", "color"), [({}, False), ({"FORCE_COLOR": "3"}, True)])
def test_without_a_terminal_nothing_moves(environ: dict[str, str], *, color: bool) -> None:
    look = look_of(io.StringIO(), {"TERM": "xterm", **environ})

    assert (look.color, look.animate, look.width) == (color, False, 80)


@pytest.mark.parametrize(
    ("columns", "width"), [("120", 120), ("40", 40), ("3", 20), ("0", 80), ("-5", 80), ("x", 80)]
)
def test_the_width_is_what_columns_says(columns: str, width: int) -> None:
    assert look_of(io.StringIO(), {"COLUMNS": columns}).width == width


def test_the_width_is_what_the_terminal_says(terminal: TextIO) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))

    assert look_of(terminal, {"TERM": "xterm"}).width == 57


@pytest.mark.parametrize(("encoding", "glyphs"), [("utf-8", Glyphs()), ("ascii", ASCII)])
def test_the_characters_are_those_the_stream_can_write(encoding: str, glyphs: Glyphs) -> None:
    assert look_of(io.TextIOWrapper(io.BytesIO(), encoding=encoding), {}).glyphs == glyphs


@pytest.mark.parametrize(
    ("environ", "is_terminal", "watched"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"CI": "true"}, True, False),
        ({"CI": "true", "FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"CI": "false"}, True, True),
    ],
)
def test_a_console_is_for_people_who_watch(
    environ: dict[str, str], *, is_terminal: bool, watched: bool
) -> None:
    assert wants_console(environ, is_terminal=is_terminal) is watched


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 6, "日本語"), ("日本語", 5, "日本…")],
)
def test_a_line_is_cut_to_its_cells_and_says_so(text: str, width: int, fitted: str) -> None:
    assert Look().fit(text, width) == fitted
    assert cells(fitted) <= width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.004, "0.00 s"), (0.35, "0.35 s"), (1.84, "1.8 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s")],
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(412, 96), "412 in / 96 out tokens"),
        (Usage(41_200, None), "41,200 in / ? out tokens"),
        (Usage(0, 0), "0 in / 0 out tokens"),
        (Usage(), ""),
    ],
)
def test_unknown_tokens_are_not_zero(usage: Usage, text: str) -> None:
    assert tokens_text(usage) == text
