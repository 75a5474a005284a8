"""A recorded question at a terminal: approved only after all of it was shown (A9, P2)."""

import os
import termios
from functools import partial

import anyio
import pytest
from samples import each_case
from terminal_person import PersonAtTerminal, person_at_terminal

from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.protocols import Question
from aish.core.tools import Tool, ToolName
from aish.terminal.approver import (
    PROMPT_DECIDE,
    PROMPT_DENY,
    RESIZED,
    UNSEEN,
    VIEW_DECIDE,
    VIEW_DENY,
    Decision,
    ask_decision,
)

PAGE = "[Enter: next page, all: the rest, n: no]"
LONG: JsonObject = {"lines": [str(number) for number in range(300)]}


def question(arguments: JsonObject | None = None) -> Question:
    tool = Tool(ToolName("fs", "rm"), "fs__rm", "", {})
    return Question(tool, arguments or {"path": "x"}, "no rule approves it", Place(step="one"))


def decided(
    person: PersonAtTerminal, asked: Question, *lines: tuple[str, str], deny: bool = False
) -> Decision:
    return person.talk(partial(ask_decision, asked, person.turns, deny=deny), *lines)


@each_case(
    "typed, decision",
    [
        *(("y\n", "approve"), ("YES\n", "approve"), ("n\n", "deny"), (" No \n", "deny")),
        *(("\n", "open"), ("yy\n", "open"), ("a\n", "open"), ("\x04", "open"), ("deny\n", "open")),
    ],
)
def test_only_a_clear_word_decides(typed: str, decision: str) -> None:
    with person_at_terminal() as person:
        assert decided(person, question(), (f"{PROMPT_DECIDE} ", typed)) == decision


@pytest.mark.parametrize(("typed", "decision"), [("y\n", "deny"), ("n\n", "open"), ("\n", "open")])
def test_where_it_is_to_be_denied_yes_is_a_denial(typed: str, decision: str) -> None:
    with person_at_terminal() as person:
        said = decided(person, question(), (f"{PROMPT_DENY} ", typed), deny=True)

    assert said == decision


def test_a_long_call_is_approved_only_after_all_of_it_was_shown() -> None:
    with person_at_terminal() as person:
        said = decided(
            person,
            question(LONG),
            (f"{VIEW_DECIDE} ", "y\n"),
            (f"{VIEW_DECIDE} ", "v\n"),
            (f"{PAGE} ", "all\n"),
            (f"{PROMPT_DECIDE} ", "y\n"),
        )
        shown = person.seen

    assert said == "approve"
    assert UNSEEN in shown
    assert all(f'"{number}"' in shown for number in range(300))


@pytest.mark.parametrize(("typed", "deny"), [("n\n", False), ("y\n", True)])
def test_a_long_call_may_be_denied_unseen(typed: str, *, deny: bool) -> None:
    view = VIEW_DENY if deny else VIEW_DECIDE
    with person_at_terminal() as person:
        assert decided(person, question(LONG), (f"{view} ", typed), deny=deny) == "deny"


@pytest.mark.parametrize("lines", [[("view", "\n")], [("view", "v\n"), ("page", "n\n")]], ids=len)
def test_who_stops_reading_leaves_it_open(lines: list[tuple[str, str]]) -> None:
    prompts = {"view": f"{VIEW_DECIDE} ", "page": f"{PAGE} "}
    with person_at_terminal() as person:
        typed = [(prompts[prompt], line) for prompt, line in lines]
        assert decided(person, question(LONG), *typed) == "open"


def test_a_narrower_window_is_shown_the_call_again() -> None:
    with person_at_terminal(100) as person:

        async def resize_and_type() -> None:
            await person.hears(f"{PROMPT_DECIDE} ")
            termios.tcsetwinsize(person.slave, (24, 90))
            os.write(person.master, b"y\n")
            await person.hears(RESIZED)
            await person.hears(f"{PROMPT_DECIDE} ")
            os.write(person.master, b"n\n")

        async def scene() -> list[Decision]:
            said: list[Decision] = []
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(resize_and_type)
                    said.append(await ask_decision(question(), person.turns))
            return said

        assert anyio.run(scene) == ["deny"]
