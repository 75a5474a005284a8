"""All commands, one row each: `:help`, completion and the docs are generated from them (S5)."""

from collections.abc import Mapping

from aish.core.errors import UsageError
from aish.shell.command import Command, nearest
from aish.shell.commands.approvals import APPROVALS, APPROVE, DENY
from aish.shell.commands.attach import ATTACH
from aish.shell.commands.conversation import CLEAR, COMPACT, CONTEXT
from aish.shell.commands.export import EXPORT
from aish.shell.commands.guide import HELP, QUIT
from aish.shell.commands.mcp import MCP
from aish.shell.commands.model import AUTONOMOUS, MODEL
from aish.shell.commands.past import COST, LOG, RESUME, SAVE, SESSIONS
from aish.shell.commands.pipelines import RUN
from aish.shell.commands.prompts import PROMPT
from aish.shell.commands.turns import EDIT, RETRY, UNDO

ROWS: tuple[Command, ...] = (
    HELP,
    MODEL,
    MCP,
    APPROVE,
    DENY,
    APPROVALS,
    RUN,
    CONTEXT,
    CLEAR,
    COMPACT,
    SAVE,
    SESSIONS,
    RESUME,
    ATTACH,
    PROMPT,
    RETRY,
    UNDO,
    EDIT,
    AUTONOMOUS,
    EXPORT,
    COST,
    LOG,
    QUIT,
)

COMMANDS: Mapping[str, Command] = {row.name: row for row in ROWS}

_BY_NAME: Mapping[str, Command] = {name: row for row in ROWS for name in (row.name, *row.also)}
_LIST = "`:help` lists the commands; a line that begins with a blank goes to the model as it is"


def command_of(name: str) -> Command:
    """The command with this name.

    Raises:
        UsageError: there is no such command.
    """
    found = _BY_NAME.get(name)
    if found is None:
        said = f"unknown command `:{name}`" if name else "a `:` is followed by a command"
        raise UsageError(said, hint=_form_named(name) or nearest(name, _BY_NAME) or _LIST)
    return found


def _form_named(name: str) -> str | None:
    """The hint for `:connect`, which is `:mcp connect`."""
    rows = (row for row in ROWS for form in row.forms if form.name == name)
    return next((f"did you mean `:{row.name} {name}`" for row in rows), None)
