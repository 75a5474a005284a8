"""Which lines of an answer propose commands: those outside code fences, and no others."""

import re

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from samples import each_case

from aish.shell.local.proposals import LONGEST, MOST, proposals, refusal, too_many

PIECES = (
    "CMD: ls",
    "CMD: echo ```",
    "CMD: ",
    "CMD:",
    "CMD:ls",
    " CMD: indented",
    "    CMD: code",
    "cmd: lower",
    "so CMD: in the middle",
    "```",
    "````",
    "`````",
    "   ```",
    "    ```",
    "\t```",
    "```sh",
    "``` a`b",
    "``` ",
    "```\t",
    "~~~",
    "~~~~",
    "  ~~~",
    "~~~ a`b ~",
    "``",
    "text",
    "",
)


@each_case(
    "text, found",
    [
        ("CMD: git log -1", ("git log -1",)),
        ("I look.\n\nCMD: ls\nand\nCMD: pwd\n", ("ls", "pwd")),
        ("CMD: ls\r\nCMD: pwd\r\n", ("ls", "pwd")),
        ("CMD:   spaced out  \t", ("spaced out",)),
        ("CMD: \nCMD:  \t \nCMD:", ()),
        ("CMD:ls\ncmd: ls\n CMD: ls\n> CMD: ls\n- CMD: ls\n`CMD: ls`", ()),
        ("```\nCMD: ls\n```\nCMD: pwd", ("pwd",)),
        ("```sh\nCMD: ls\n```  \nCMD: pwd", ("pwd",)),
        ("~~~\nCMD: ls\n```\nCMD: ls\n~~~\nCMD: pwd", ("pwd",)),
        ("````\n```\nCMD: ls\n```\nCMD: ls\n`````\nCMD: pwd", ("pwd",)),
        ("```\nCMD: ls\n    ```\nCMD: ls", ()),
        ("   ```\nCMD: ls\n  ```\nCMD: pwd", ("pwd",)),
        ("    ```\nCMD: pwd", ("pwd",)),
        ("```\r\nCMD: ls\r\n```\r\nCMD: pwd\r\n", ("pwd",)),
        ("```\nCMD: the fence stays open", ()),
        ("```\nCMD: ls\n``` not the end\nCMD: ls", ()),
        ("``` has a ` in it\nCMD: pwd", ("pwd",)),
        ("~~~ has a ` in it\nCMD: ls", ()),
        ("CMD: echo CMD: ls", ("echo CMD: ls",)),
        ("CMD: ls\vCMD: pwd", ("ls\vCMD: pwd",)),
        ("", ()),
    ],
)
def test_lines_outside_fences_propose_commands(text: str, found: tuple[str, ...]) -> None:
    assert proposals(text) == found


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_fences_begin_and_end_where_a_markdown_parser_says(lines: list[str], end: str) -> None:
    text = "\n".join(lines)
    fenced: set[int] = set()
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            assert token.map is not None
            fenced.update(range(*token.map))
    outside = (line for number, line in enumerate(lines) if number not in fenced)
    expected = [line[5:].strip(" \t") for line in outside if line.startswith("CMD: ")]

    assert proposals(end.join(lines)) == tuple(filter(None, expected))


@given(st.text(st.sampled_from("CMD: `~x\n\r\t\v\0\u2028\u202e") | st.characters(), max_size=200))
@example("CMD: \ud800")
def test_no_text_is_too_odd_to_look_through(text: str) -> None:
    for command in proposals(text):
        assert command == command.strip(" \t")
        assert f"CMD: {command}" in re.sub(r"CMD: [ \t]+", "CMD: ", text)
        assert "\n" not in command


@each_case("command", ["a\0b", "a\rb", "a\vb", "a\fb", "a\x1cb", "a\x85b", "a\u2028b", "a\u2029b"])
def test_what_hides_the_end_of_a_command_is_refused(command: str) -> None:
    assert refusal(command) is not None


def test_what_can_be_shown_is_asked_about() -> None:
    assert refusal("printf '\x1b[2J' \u202e é 雪 \t") is None
    assert refusal("x" * LONGEST) is None
    assert refusal("x" * (LONGEST + 1)) == (
        "it has 16,385 characters, and at most 16,384 are allowed"
    )


def test_an_answer_proposes_no_more_than_anybody_reads() -> None:
    assert too_many(MOST) is None
    assert too_many(MOST + 1) == ("1 more `CMD:` line not run: at most 20 of an answer are offered")
    assert too_many(MOST + 2) == (
        "2 more `CMD:` lines not run: at most 20 of an answer are offered"
    )
