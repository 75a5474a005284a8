"""From argv to an exit code."""

import os
from collections.abc import Sequence
from importlib import import_module

from aish.cli.arguments import bind_call, plain_arguments, with_values
from aish.cli.boundary import run_guarded
from aish.cli.catalogue import find_command


def run_command_line(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name) and return the exit code."""
    return run_guarded(lambda: _run(with_values(argv)), verbose="-v" in argv or "--verbose" in argv)


def _run(argv: Sequence[str]) -> int:
    row, words = find_command(argv)
    if row is not None and "_AISH_COMPLETE" not in os.environ:
        command = import_module(row.module).command
        values = plain_arguments(command, words)
        if values is not None:
            return bind_call(command, values)()
    # Help, completion and usage errors.
    from aish.cli.typer_parser import parse_call

    return parse_call(argv)()
