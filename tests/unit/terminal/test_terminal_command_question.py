import os
import termios
from collections.abc import Iterator
from functools import partial

import anyio
import pytest
from terminal_person import PersonAtTerminal, person_at_terminal

from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import CommandAnswer, ask_command


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[PersonAtTerminal]:
    monkeypatch.setenv("TERM", "dumb")
    with person_at_terminal() as found:
        yield found


def answer(person: PersonAtTerminal, command: str, typed: str) -> CommandAnswer:
    return person.talk(partial(ask_command, command, person.turns), ("[y/N/e]", typed))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("y\n", "yes"),
        ("YES\n", "yes"),
        ("e\n", "edit"),
        ("edit\n", "edit"),
        ("\n", "no"),
        ("n\n", "no"),
        ("a\n", "no"),
        ("\x04", "no"),
    ],
)
def test_a_command_is_run_or_edited_only_where_somebody_says_so(
    person: PersonAtTerminal, typed: str, expected: CommandAnswer
) -> None:
    assert answer(person, "ls -l", typed) == expected
    assert "\nrun 'ls -l'? [y/N/e] " in person.seen


def test_two_lines_at_once_run_no_command(
    person: PersonAtTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the moment could be over before anybody looks for the rest, which is there.
    monkeypatch.setattr("aish.terminal.tty._PASTE_MOMENT", 20.0)
    assert answer(person, "ls -l", "y\ny\n") == "no"
    assert "\nrun 'ls -l'? [y/N/e] " in person.seen


def test_what_cannot_be_seen_in_a_command_is_spelled_out(person: PersonAtTerminal) -> None:
    assert answer(person, "ls \u202etxt\x1b[2J\u00a0b", "y\n") == "yes"
    assert "run 'ls \\u202etxt\\x1b[2J\\u00a0b'? [y/N/e] " in person.seen
    assert "invisible characters are spelled out" in person.seen


def test_a_long_command_is_folded_behind_the_bar(person: PersonAtTerminal) -> None:
    command = "echo " + "run 'x'? [y/N/f] " * 20 + "é"
    assert answer(person, command, "y\n") == "yes"
    rows = person.seen.split("\n")
    shown = [row for row in rows if row.startswith(("  │ ", "  ┆ "))]
    assert "".join(row[4:] for row in shown) == command
    assert rows[-2:] == ["run this? [y/N/e] y", ""] or rows[-1] == "run this? [y/N/e] "


@pytest.mark.parametrize(("next_page", "expected"), [("\n", "yes"), ("y\n", "no"), ("n\n", "no")])
def test_a_command_taller_than_the_screen_is_seen_from_its_beginning(
    person: PersonAtTerminal, next_page: str, expected: CommandAnswer
) -> None:
    command = "rm -rf x;" + " " * 2000 + "ls"
    asked = partial(ask_command, command, person.turns)
    pages = [("the rest, n: no]", next_page)]
    found = person.talk(asked, *pages, *([("[y/N/e]", "y\n")] if expected == "yes" else []))
    assert found == expected
    first, *_ = person.seen.partition("more rows")
    assert "│ rm -rf x;" in first
    assert "ls" not in first


def test_a_window_made_narrower_in_the_meantime_shows_the_command_again(
    person: PersonAtTerminal,
) -> None:
    async def resized() -> None:
        await person.hears("[y/N/e]")
        termios.tcsetwinsize(person.slave, (24, 40))
        os.write(person.master, b"y\n")
        await person.hears("[y/N/e]")
        os.write(person.master, b"n\n")

    async def scene() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(resized)
                assert await ask_command("echo " + "x" * 90, person.turns) == "no"

    anyio.run(scene)
    assert person.seen.count("run this? [y/N/e]") == 2


@pytest.mark.parametrize("command", ["ls\nrm x", "ls\rrm x", "ls\u2028rm", "", "  ", "a\x85b"])
def test_more_than_one_line_is_not_even_asked_about(person: PersonAtTerminal, command: str) -> None:
    assert person.talk(partial(ask_command, command, person.turns)) == "no"


def test_a_secret_in_a_command_is_hidden_and_what_it_is_given_to_is_not(
    person: PersonAtTerminal,
) -> None:
    secrets = Secrets()
    secrets.add("TOKEN", "s3cr3t-of-the-house")
    secrets.add("HOME", "/home/somebody")
    command = "curl -H s3cr3t-of-the-house -o /home/somebody/x http://h/"
    asked = partial(ask_command, command, person.turns, secrets=secrets)
    assert person.talk(asked, ("[y/N/e]", "n\n")) == "no"
    assert "'curl -H <secret:TOKEN> -o /home/somebody/x http://h/'" in person.seen
