"""A proposed command, asked about at the terminal (S2)."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from aish.shell.lines import Lines
from aish.shell.local.deciding import Reaction
from aish.terminal.command_question import CommandQuestion


class CommandAsking:
    """`local.deciding.Asking`: `run '<command>'? [y/N/e]`, and the editor for `e`."""

    def __init__(self, lines: Lines, pause: Callable[[], AbstractContextManager[object]]) -> None:
        self._lines = lines
        self._question = CommandQuestion(pause=pause)

    async def ask(self, command: str) -> Reaction:
        """The answer; anything but `y` and `e` is no."""
        return await self._question.ask(command)

    async def edit(self, command: str) -> str | None:
        """The command as the person makes it."""
        return await self._lines.edit(command, "run")
