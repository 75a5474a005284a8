"""Commands are found in one table; no file is missing from it, and each row loads."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from aish.cli import commands
from aish.cli.catalogue import COMMANDS, GROUPS, CommandEntry


def test_every_command_file_is_in_the_catalogue() -> None:
    files = {path.stem for path in Path(commands.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == {row.module.rpartition(".")[2] for row in COMMANDS}


def test_every_group_has_a_description() -> None:
    assert {row.group for row in COMMANDS if row.group} == set(GROUPS)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_every_row_loads_and_says_what_it_does_with_an_example(row: CommandEntry) -> None:
    command = import_module(row.module).command
    text = inspect.getdoc(command)
    assert text is not None
    assert "Example: " in text
