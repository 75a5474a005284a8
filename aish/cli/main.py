"""From argv to an exit code: builds just as much of the command line as argv needs."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from aish.cli.boundary import guarded
from aish.cli.catalogue import COMMANDS, GROUPS, Command
from aish.cli.optional_value import completed
from aish.cli.options import VersionOption

HELP = """Run language-model pipelines from a YAML file, unattended.

Results go to stdout, everything for people to stderr. The exit code is the status: 0 ok,
1 failed, 2 usage, 3 denied, 4 budget, 5 unavailable, 6 cassette, 7 lock, 130 interrupted.

Example: aish run pipelines/quickstart.yaml
"""


def run_command_line(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name) and return the exit code of design 1.3."""
    return guarded(lambda: _invoke(argv), verbose="-v" in argv or "--verbose" in argv)


def _invoke(argv: Sequence[str]) -> int:
    command = typer.main.get_command(build_app(wanted(argv)))
    if not argv or argv[0].startswith("-"):
        from aish.cli.completion import explained

        command = explained(command)
    streams = sys.stdout, sys.stderr
    try:
        result = command.main(args=completed(argv), prog_name="aish", standalone_mode=False)
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        # Its own way to end where a reader has gone (`| head`). What that is worth is decided in
        # one place for all commands.
        sys.stdout, sys.stderr = streams
        raise BrokenPipeError from None
    return int(result) if isinstance(result, int) else 0


def wanted(argv: Sequence[str]) -> tuple[Command, ...]:
    """The rows that `argv` can mean: one command, or all for help, completion and mistakes."""
    if any(name.endswith("_COMPLETE") for name in os.environ):
        return COMMANDS
    first = next((word for word in argv if not word.startswith("-")), None)
    named = tuple(row for row in COMMANDS if first in {row.name, row.group} and first is not None)
    top_level = {row.name for row in named if row.group is None} | {row.group for row in named}
    return named if argv and argv[0] == first and first in top_level else COMMANDS


def build_app(rows: Sequence[Command]) -> typer.Typer:
    """A typer application with these commands."""
    app = _group("aish", HELP)
    app.callback()(_top)
    groups: dict[str, typer.Typer] = {}
    for row in rows:
        parent = app
        if row.group is not None:
            if row.group not in groups:
                groups[row.group] = _group(row.group, GROUPS[row.group])
                groups[row.group].callback()(_nothing)
                app.add_typer(groups[row.group], name=row.group)
            parent = groups[row.group]
        module = import_module(row.module)
        parent.command(row.name, hidden=row.hidden)(module.command)
    return app


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=name == "aish",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _top(*, version: VersionOption = False) -> None:
    del version


def _nothing() -> None:
    pass
