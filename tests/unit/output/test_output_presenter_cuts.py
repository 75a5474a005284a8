"""Wherever a stream is cut, a person sees the same in the end, and nothing but our sequences."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from presenter_scenes import LINE, Scene
from samples import each_case
from scripted_events import HOSTILE, any_event, turn_finished
from terminal_cells import Cells

from aish.core.events import Stamped
from aish.core.text import for_terminal
from aish.output.live_text import Cleaner, LineAssembler, LinePiece
from aish.output.markdown.blocks import Blocks
from aish.output.style import Look

_PARTS = st.sampled_from(
    [
        *(
            "\n",
            "\n\n",
            "\r\n",
            "\r",
            "\t",
            " ",
            "    ",
            "a",
            "word ",
            "日本語",
            "e\u0301",
            "x" * 50,
        ),
        *(
            "# ",
            "## head\n",
            "- ",
            "  - ",
            "* ",
            "1. ",
            "12) ",
            "> ",
            ">> ",
            "| a | b |\n",
            "|---|:-:|\n",
        ),
        *("```", "```python\n", "~~~~\n", "---\n", "===\n", "***", "**", "_", "`", "``", "~~"),
        *("[link](http://a.b)", "![alt](x.png)", "<b>", "</b>", "<http://x.y>", "[", "](", ")"),
        *("&#27;[2J", "&#x202e;", "&amp;", "&#x200b;", "\\", "\x1b[2J", "\x9b", "\u202e", "\ud800"),
        *("CMD: ls *.py *\n", "CMD: ", "\x1b]0;t\x07", "\u2028", "\x00", "\x08", HOSTILE),
    ]
)
_MARKS = st.sampled_from(
    [
        *(
            " ",
            " ",
            "\n",
            "\n\n",
            "    ",
            "- ",
            "1. ",
            "> ",
            "# ",
            "|",
            " | ",
            "|---|---|\n",
            "```",
        ),
        *(
            "```\n",
            "~~~\n",
            "**",
            "*",
            "_",
            "`",
            "``",
            "[",
            "](",
            ")",
            "![",
            "<",
            ">",
            "<!--",
            "-->",
        ),
        *("\\", "&", ";", ' "', '")', "---\n", "===\n", "[a]: ", "http://", "\t", "CMD: ", "~~"),
    ]
)
# Each example draws a session or two.
PATIENT = settings(deadline=None)
_TEXTS = st.lists(_PARTS, max_size=30).map("".join)
_CUTS = st.lists(st.integers(1, 12), max_size=40)
_SEQUENCES = re.compile(r"\x1b\[(?:[0-9;]*m|2K|K|J|1A)")


def pieces(text: str, cuts: list[int]) -> Iterator[str]:
    at = 0
    for cut in cuts:
        yield text[at : at + cut]
        at += cut
    yield text[at:]


def scene(text: str, cuts: list[int], *, plain: bool, color: bool, width: int) -> Scene:
    drawn = Scene(width, plain=plain, look=Look(animate=True, color=color, width=width))
    drawn.said(pieces(text, cuts), ticks=bool(cuts))
    return drawn.take(turn_finished(LINE, text)).over()


def on_cells(drawn: Scene) -> str:
    terminal = Cells(drawn.size[0])
    terminal.feed(drawn.written)
    return terminal.text()


@pytest.mark.parametrize("plain", [False, True], ids=["markdown", "plain"])
@PATIENT
@given(text=_TEXTS, cuts=_CUTS, width=st.sampled_from([20, 40, 80]), color=st.booleans())
@example(text="a\r\nb", cuts=[2], width=20, color=False)
def test_an_answer_looks_the_same_wherever_it_was_cut(
    *, plain: bool, text: str, cuts: list[int], width: int, color: bool
) -> None:
    whole = scene(text, [], plain=plain, color=color, width=width)
    cut = scene(text, cuts, plain=plain, color=color, width=width)

    assert on_cells(cut) == on_cells(whole)
    for written in whole.out.each + cut.out.each:
        strange = _SEQUENCES.sub("", written.removeprefix("\r"))
        assert for_terminal(strange) == strange
        assert color or not re.search(r"\x1b\[[0-9;]*m", written)


@PATIENT
@given(text=_TEXTS, cuts=_CUTS)
def test_a_command_s_output_looks_the_same_wherever_it_was_cut(text: str, cuts: list[int]) -> None:
    def drawn(cuts: list[int]) -> str:
        shown = Scene(40).printed(*pieces(text, cuts), ticks=bool(cuts))
        shown.talk.close()
        return on_cells(shown)

    assert drawn(cuts) == drawn([])


@PATIENT
@given(
    text=st.lists(_PARTS | st.sampled_from(["\ufe0f", "❤", "1\ufe0f\u20e3"])).map("".join),
    cuts=_CUTS,
)
def test_a_text_cleaned_in_pieces_is_the_text_cleaned_whole(text: str, cuts: list[int]) -> None:
    cleaner = Cleaner()

    shown = "".join(map(cleaner.piece, pieces(text, cuts))) + cleaner.rest()

    assert shown == for_terminal(text)


def whole_lines(lines: list[LinePiece]) -> list[str]:
    """What a reader gets who puts the pieces of long lines together."""
    put: list[str] = []
    for line in lines:
        if line.part in {"whole", "first"}:
            put.append(f"{line.part}:{line.text}")
        else:
            put[-1] += "|end" if line.part == "end" else line.text
    return put


@pytest.mark.parametrize("overwrites", [False, True])
@PATIENT
@given(text=st.text("ab\n\r", max_size=40), cuts=_CUTS)
def test_lines_are_the_same_wherever_they_were_cut(
    *, overwrites: bool, text: str, cuts: list[int]
) -> None:
    def lines(cuts: list[int]) -> list[str]:
        reader = LineAssembler(4, overwrites=overwrites)
        read = [line for piece in pieces(text, cuts) for line in reader.feed(piece)]
        return whole_lines([*read, *reader.end()])

    assert lines(cuts) == lines([])


@PATIENT
@given(text=_TEXTS, cuts=_CUTS)
def test_blocks_are_the_same_wherever_they_were_cut(text: str, cuts: list[int]) -> None:
    whole, cut = Blocks(), Blocks()

    assert [b for p in pieces(text, cuts) for b in cut.feed(p)] + [*cut.end()] == [
        *whole.feed(text),
        *whole.end(),
    ]


@PATIENT
@given(run=st.lists(any_event(), max_size=12), plain=st.booleans(), width=st.integers(1, 90))
def test_whatever_happens_only_our_own_sequences_are_written(
    *, run: list[Stamped], plain: bool, width: int
) -> None:
    drawn = Scene(width, plain=plain, verbose=True, look=Look(color=True, animate=True))
    for stamped in run:
        drawn.talk(stamped)
        drawn.screen.tick()
    drawn.over()

    for written in drawn.out.each:
        strange = _SEQUENCES.sub("", written.removeprefix("\r"))
        assert for_terminal(strange) == strange


@PATIENT
@given(
    marks=st.lists(st.lists(_MARKS, max_size=4).map("".join), max_size=25),
    width=st.sampled_from([30, 80]),
)
@example(marks=["| a | b |\n|--|--|\n| ", " | 2 | ", " |\n"], width=80)
@example(marks=['[a](b "', '")'], width=80)
@example(marks=["> " * 30, ""], width=80)
@example(marks=["[a]: http://", ""], width=80)
def test_no_word_is_lost(marks: list[str], width: int) -> None:
    words = [f"W{n}W" for n in range(len(marks))]
    text = "".join(f"{mark}{word}" for mark, word in zip(marks, words, strict=True))
    drawn = Scene(width, look=Look(animate=True, width=width)).said([text])
    drawn.take(turn_finished(LINE, text)).over()

    shown = re.sub(r"[\s│]", "", on_cells(drawn))
    assert [word for word in words if word not in shown] == []


CODE = 'def f(*a):\n    """\n    ```\n    f(*a)\n    ```\n    """\n    return 1\n'
FENCES: list[tuple[str, str]] = [
    ("```python\n{}```\n", CODE),
    ("```python\n{}   ``` \n", CODE),
    ("~~~\n{}~~~~\n", "```\n    ~~~\n\t~~~\n~~\n"),
    ("- item\n\n  ```\n  {}  ```\n", "a\n"),
    ("1. item\n\n    ```\n    {}     ```\n", "a\n"),
    ("```\n{}```\n", "\t```\n"),
]


@pytest.mark.parametrize(("around", "code"), FENCES)
def test_only_a_fence_that_is_not_indented_more_ends_a_block_of_code(
    around: str, code: str
) -> None:
    """CommonMark 0.31.2, 4.5 (issue 27, C)."""
    blocks = Blocks()
    found = [*blocks.feed(f"{around.format(code)}The end.\n"), *blocks.end()]

    lines = [one.text for one in found if one.kind == "code"]
    assert lines == code.splitlines()
    assert (found[-1].kind, found[-1].text) == ("text", "The end.")


@each_case(
    "text, blocks",
    [
        ("1. ```sh\n   ls *\n   ```\n2. b\n", ["item:", "label:sh", "code:ls *", "item:b"]),
        ("- ~~~\n  a\n\n  ~~~\n- b\n", ["item:", "code:a", "code:", "item:b"]),
        ("    ```\n    a\n    ```\nb\n", ["code:```", "code:a", "code:```", "text:b"]),
        ("- a\n\n      ```\n- b\n", ["item:a", "code:```", "item:b"]),
        ("a\n    ***\n    ---\nb\n", ["text:a\n    ***\n    ---\nb"]),
        ("a\n  ===\nb\n", ["text:a\n===", "text:b"]),
        ("- a\n  ---\n  b\n- c\n---\n", ["item:a\n---", "text:b", "item:c", "text:---"]),
        ("-\n  a\n-\n- b\n", ["item:a", "item:", "item:b"]),
    ],
)
def test_what_an_indented_line_begins_depends_on_what_it_is_in(
    text: str, blocks: list[str]
) -> None:
    """CommonMark 0.31.2, 4.1, 4.3, 4.5 and 5.2 (issue 27, D)."""
    read = Blocks()
    found = [*read.feed(text), *read.end()]
    assert [f"{one.kind}:{one.text}" for one in found] == blocks
