"""From argv to an exit code."""

import os
from collections.abc import Sequence
from importlib import import_module

from aish.cli.arguments import called, completed, plain_arguments
from aish.cli.boundary import guarded
from aish.cli.catalogue import find_command


def run_command_line(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name) and return the exit code of design 1.3."""
    return guarded(lambda: _run(completed(argv)), verbose="-v" in argv or "--verbose" in argv)


def _run(argv: Sequence[str]) -> int:
    row, words = find_command(argv)
    if row is not None and "_AISH_COMPLETE" not in os.environ:
        command = import_module(row.module).command
        given = plain_arguments(command, words)
        if given is not None:
            return called(command, given)()
    # Help, completion and usage errors.
    from aish.cli.typer_parser import parsed_call

    return parsed_call(argv)()
