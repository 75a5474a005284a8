"""A proposed command, asked about at the terminal (S2)."""

from aish.shell.lines import Lines
from aish.shell.local.deciding import Reaction
from aish.system.secrets.secrets import Secrets
from aish.terminal.command_question import ask_command
from aish.terminal.turns import Turns


class CommandAsking:
    """`local.deciding.Asking`: `run '<command>'? [y/N/e]`, and the editor for `e`."""

    def __init__(self, lines: Lines, turns: Turns, secrets: Secrets) -> None:
        self._lines = lines
        self._turns = turns
        self._secrets = secrets

    async def ask(self, command: str) -> Reaction:
        """The answer; anything but `y` and `e` is no."""
        return await ask_command(command, self._turns, secrets=self._secrets)

    async def edit(self, command: str) -> str | None:
        """The command as the person makes it."""
        return await self._lines.edit(command, "run: ")
