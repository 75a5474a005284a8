"""One table of commands, and what is made of it: help, completion, docs (S5)."""

import importlib
import pkgutil
from pathlib import Path

import pytest

from aish.core.errors import UsageError
from aish.shell import commands
from aish.shell.command import ShellCommand
from aish.shell.commands.catalogue import COMMANDS, ROWS, command_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "shell.md"
WANTED = frozenset(
    {"help", "model", "mcp", "approve", "deny", "approvals", "run", "context", "clear", "compact"}
    | {"save", "sessions", "resume", "attach", "retry", "undo", "edit", "norris", "cost", "log"}
    | {"quit"}
)


def test_every_command_of_a_module_is_in_the_table() -> None:
    defined = {
        id(value): value
        for module in pkgutil.iter_modules(commands.__path__)
        for value in vars(importlib.import_module(f"{commands.__name__}.{module.name}")).values()
        if isinstance(value, ShellCommand)
    }

    assert sorted(one.name for one in defined.values()) == sorted(row.name for row in ROWS)


def test_no_two_commands_share_a_name() -> None:
    names = [name for row in ROWS for name in (row.name, *row.also)]

    assert len(names) == len(set(names))
    assert set(names) >= WANTED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_reference_tells_of_each_command(row: ShellCommand) -> None:
    page = PAGE.read_text("utf-8")

    assert f"## {row.name}\n\n`{row.title}`: {row.summary}." in page
    for form in row.forms:
        spelled = form.spelled.replace("|", "\\|")
        assert f"| `:{row.name} {spelled}` | {form.summary} |" in page


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_command_is_found_by_each_of_its_names(row: ShellCommand) -> None:
    assert all(command_of(name) is row for name in (row.name, *row.also))
    assert COMMANDS[row.name] is row
    assert row.summary
    assert not row.summary.endswith(".")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mdoel", "did you mean `:model`"), ("HELP", None), ("mo", None), ("xyzzy", None), ("", None)],
)
def test_an_unknown_name_is_told_with_what_to_do_next(name: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        command_of(name)

    assert (name or "followed by a command") in str(caught.value)
    assert caught.value.hint
    assert hint is None or caught.value.hint == hint
