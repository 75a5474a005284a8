"""Words of the command line become keyword arguments: without typer where they are plain."""

from enum import Enum
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from aish.cli.arguments import bind_call, parameters, plain_arguments, with_values
from aish.cli.catalogue import COMMANDS, CommandEntry
from aish.cli.options import Argument, Option
from aish.cli.typer_parser import load_command
from aish.core.frozen import frozen


@frozen
class Size:
    """Two options."""

    width: Annotated[int, Option("-w --width", "", min=1)]
    height: Annotated[int, Option("--height", "")] = 3


def drawing(
    name: Annotated[str, Argument("NAME", "")],
    size: Size,
    *,
    loud: Annotated[bool, Option("--loud", "")] = False,
) -> int:
    """Draw."""
    return len(name) * size.width * size.height * (1 + loud)


def test_a_command_is_given_its_groups_and_the_command_line_sees_their_options() -> None:
    names = ["name", "width", "height", "loud", "verbose"]
    assert [one.name for one in parameters(drawing)] == names

    found = plain_arguments(drawing, ["-w", "2", "ab", "--loud"])

    assert found == {"name": "ab", "width": 2, "height": 3, "loud": True, "verbose": False}
    assert bind_call(drawing, found)() == 24


@pytest.mark.parametrize(
    "line",
    [
        "ab",
        "-w 2",
        "-w 2 a b",
        "-w 0 ab",
        "-w two ab",
        "-w2 ab",
        "-w=2 ab",
        "-w",
        "ab -w --loud",
        "ab -w 2 --lou",
        "ab -w 2 --loud=1",
        "ab -w 2 --help",
        "-w 2 -- ab",
    ],
)
def test_what_is_not_plain_is_left_to_typer(line: str) -> None:
    assert plain_arguments(drawing, line.split()) is None


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: f"{row.group or ''} {row.name}")
def test_the_catalogue_says_of_a_command_what_it_says_itself(row: CommandEntry) -> None:
    text = getdoc(import_module(row.module).command)

    assert text is not None
    assert row.summary == " ".join(text.partition("\n\n")[0].split())


# --- Both ways make the same of a line ------------------------------------------------------------

_TEXTS = "- -- a k=v k= latest 3 0 1.5 -1 007 1_0 1e3 ² text json enforce all --quiet -q --help ."
TEXTS = st.sampled_from(["", " 4", *_TEXTS.split()]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), max_size=4
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[CommandEntry, list[str]]:
    """A command, and words that are more or less what it takes."""
    row = draw(st.sampled_from(COMMANDS))
    known = list(parameters(import_module(row.module).command))
    needed = [one for one in known if isinstance(one.declared, Argument)]
    words = [draw(_value(one.kind)) for one in needed if draw(st.integers(0, 9))]
    options = [one for one in known if isinstance(one.declared, Option)]
    for one in draw(st.lists(st.sampled_from(options), max_size=4)) if options else []:
        assert isinstance(one.declared, Option)
        name = draw(st.sampled_from(one.declared.names))
        value = draw(_value(one.kind))
        given = draw(st.sampled_from(["plain", "plain", "plain", "joined", "cut", "alone"]))
        spelled = {
            "plain": [name] if one.kind is bool else [name, value],
            "joined": [f"{name}={value}"],
            "cut": [name[:-1], value],
            "alone": [name],
        }[given]
        place = draw(st.integers(0, len(words)))
        words[place:place] = spelled
    return row, words


def _value(kind: Any) -> st.SearchStrategy[str]:
    return st.one_of(_fitting(kind), _fitting(kind), TEXTS)


def _fitting(kind: Any) -> st.SearchStrategy[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([str(member.value) for member in kind])
    numbers = {int: st.integers(1, 99).map(str), float: st.sampled_from(["0", "0.50", "12"])}
    return numbers.get(kind, st.sampled_from(["p.yaml", "a", "b=c", "x y"]))


@given(lines())
def test_a_plain_line_means_what_typer_makes_of_it(line: tuple[CommandEntry, list[str]]) -> None:
    row, words = line
    command = import_module(row.module).command
    plain = plain_arguments(command, words)

    event("plain" if plain is not None else "left to typer")
    if plain is not None:
        call = load_command(row).main(args=words, prog_name="aish", standalone_mode=False)
        assert call.func is command
        assert call.keywords == bind_call(command, plain).keywords


# --- Options that stand alone or with a value -----------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("run p.yaml --resume", "run p.yaml --resume latest"),
        ("run --resume p.yaml", "run --resume latest p.yaml"),
        ("run --resume ./p", "run --resume latest ./p"),
        ("run p.yaml --resume -q", "run p.yaml --resume latest -q"),
        ("run p.yaml --resume a1b2", "run p.yaml --resume a1b2"),
        (
            "run p.yaml --resume 20261121T120000Z-p-a1b2 -q",
            "run p.yaml --resume 20261121T120000Z-p-a1b2 -q",
        ),
        ("run p.yaml --resume=a1b2", "run p.yaml --resume=a1b2"),
        ("run -- p.yaml --resume", "run -- p.yaml --resume"),
        ("plan p.yaml --resume", "plan p.yaml --resume"),
        ("run --control p.yaml", "run --control auto p.yaml"),
        ("run p.yaml --control [::1]:0 --control", "run p.yaml --control [::1]:0 --control auto"),
        ("shell --control p.yaml", "shell --control auto p.yaml"),
        ("shell p.yaml --control unix:s", "shell p.yaml --control unix:s"),
        ("shell p.yaml --resume --control", "shell p.yaml --resume latest --control auto"),
        ("run p.yaml --record", "run p.yaml --record cassette:"),
        ("run p.yaml --replay -q", "run p.yaml --replay cassette: -q"),
        ("run p.yaml --replay c.yaml -q", "run p.yaml --replay c.yaml -q"),
        ("run p.yaml --replay=c.yaml", "run p.yaml --replay=c.yaml"),
        ("run p.yaml --cassette --pace fast", "run p.yaml --cassette cassette: --pace fast"),
        ("test --record pipelines", "test --record changed pipelines"),
        ("test --record=all pipelines", "test --record=all pipelines"),
        ("", ""),
    ],
)
def test_an_option_without_a_value_gets_what_it_means_then(given: str, read: str) -> None:
    assert with_values(given.split()) == read.split()
