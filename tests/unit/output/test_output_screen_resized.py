"""What moves on the last lines of a window that changes its size: no part of it is left behind."""

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from presenter_scenes import LINE, Scene
from scripted_events import turn_finished
from terminal_cells import Cells

from aish.output.markdown.answer import PartialMarkdown
from aish.output.style import Look, look_of, rows_taken

SENTENCE = "The quick brown foxes jumped over several lazy dogs yesterday evening. "
FRAMES = 6
"""More than a window has to keep its size for."""


class Sight:
    """A terminal that is told what a scene writes, and made narrower or wider with it."""

    def __init__(self, width: int, *, reflows: bool) -> None:
        self.reflows = reflows
        self.scene = Scene(width, look=Look(animate=True, follows=True, reflows=reflows))
        self.terminal = Cells(width)
        self._fed = 0

    def text(self) -> str:
        self.terminal.feed(self.scene.written[self._fed :])
        self._fed = len(self.scene.written)
        return self.terminal.text()

    def say(self, text: str) -> None:
        """Word by word, as models do, with a frame after each."""
        for word in text.split(" "):
            self.scene.said([f"{word} "], ticks=True)

    def resize(self, width: int, *, known: bool = True) -> None:
        """`known`: the program has learned of it."""
        self.text()
        self.terminal.resize(width, reflows=self.reflows)
        if known:
            self.know()

    def know(self) -> None:
        self.scene.size = (self.terminal.width, 24)
        for _ in range(FRAMES):
            self.scene.screen.tick()

    def end(self, text: str) -> str:
        self.scene.take(turn_finished(LINE, text)).over()
        return self.text()


@pytest.mark.parametrize("reflows", [True, False], ids=["folds anew", "leaves lines"])
@pytest.mark.parametrize("widths", [(50,), (45, 70), (57, 50, 44, 36, 30), (20, 80)])
def test_a_paragraph_stands_once_however_the_window_was_resized_in_it(
    *, reflows: bool, widths: tuple[int, ...]
) -> None:
    sight = Sight(60, reflows=reflows)
    sight.scene.talk.line("above")
    said = SENTENCE * 4
    sight.say(said.strip())
    for width in widths:
        sight.resize(width)
        sight.say(SENTENCE.strip())
        said += SENTENCE

    shown = sight.end(said).replace("\n", " ")
    assert " ".join(shown.split()) == f"above {said.strip()}"
    # What is erased from the top of the screen on, tmux keeps; a row erased in part stays long.
    assert not re.search(r"\x1b\[[0-9]*J|\x1b\[K", sight.scene.written)


def test_words_that_come_before_the_new_size_is_known_leave_nothing_behind() -> None:
    sight = Sight(60, reflows=True)
    sight.say(SENTENCE.strip())
    sight.resize(50, known=False)
    sight.say(SENTENCE.strip())
    sight.know()
    sight.say(SENTENCE.strip())

    assert sight.end(SENTENCE * 3).replace("\n", " ") == (SENTENCE * 3).strip()


@settings(deadline=None)
@given(
    widths=st.lists(st.integers(20, 90), min_size=1, max_size=4),
    words=st.lists(st.sampled_from(["a", "word", "longer", "日本語", "unforgettable"]), min_size=1),
    reflows=st.booleans(),
)
def test_nothing_is_said_twice_or_lost_at_any_widths(
    *, widths: list[int], words: list[str], reflows: bool
) -> None:
    sight = Sight(60, reflows=reflows)
    sight.scene.talk.line("above")
    said = " ".join(words)
    sight.say(said)
    for width in widths:
        sight.resize(width)

    assert sight.end(f"{said} ").split() == ["above", *words]


def test_what_grows_is_written_on_and_nothing_is_drawn_again() -> None:
    sight = Sight(60, reflows=True)
    sight.say("The")
    before = len(sight.scene.written)
    sight.say((SENTENCE * 4).strip())
    grown = sight.scene.written[before:]
    # Its thread ends with it: no other test of this process is to find it.
    sight.scene.over()

    assert "\x1b" not in grown
    assert "\r" not in grown


def test_rows_stay_where_they_are_when_their_paragraph_ends() -> None:
    sight = Sight(60, reflows=True)
    sight.say((SENTENCE * 3).strip())
    before = sight.text()

    assert sight.end(SENTENCE * 3).startswith(before)


def test_a_word_near_the_margin_is_shown_when_it_is_known_where_it_stands() -> None:
    def rows(text: str) -> list[str]:
        return [*PartialMarkdown().rows(text, 20, 9, gap=False)]

    assert rows("fourteen cells yest") == ["fourteen cells"]
    assert rows("fourteen cells yest ") == ["fourteen cells yest"]
    assert rows("fourteen cells yesterday") == ["fourteen cells", "yesterday"]
    assert rows("x" * 30) == ["x" * 20, "x" * 10]


@pytest.mark.parametrize(
    ("line", "width", "rows"),
    [
        ("", 9, 1),
        ("x" * 59, 60, 1),
        ("x" * 59, 50, 2),
        ("日" * 10, 7, 4),
        ("\x1b[2mxx\x1b[0m", 2, 1),
    ],
)
def test_a_line_takes_as_many_rows_as_the_terminal_folds_it_to(
    line: str, width: int, rows: int
) -> None:
    assert rows_taken(line, width) == rows


@pytest.mark.parametrize(
    ("environ", "reflows"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/tmux"}, True),
        ({"TERM": "screen", "TMUX": "/tmp/tmux", "XTERM_VERSION": "XTerm(379)"}, True),
        ({"TERM": "xterm", "XTERM_VERSION": "XTerm(379)"}, False),
        ({"TERM": "screen.xterm", "STY": "1.pts"}, False),
        ({"TERM": "linux"}, False),
    ],
)
def test_who_folds_lines_anew_is_known_by_name(*, environ: dict[str, str], reflows: bool) -> None:
    assert look_of(io.StringIO(), environ).reflows is reflows
