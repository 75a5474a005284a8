"""Every command, one row each: what `:help`, completion and the docs are made of (S5)."""

from collections.abc import Mapping

from aish.errors import UsageError, did_you_mean
from aish.shell.command import Command
from aish.shell.commands.approvals import APPROVALS, APPROVE, DENY
from aish.shell.commands.attach import ATTACH
from aish.shell.commands.conversation import CLEAR, COMPACT, CONTEXT
from aish.shell.commands.export import EXPORT
from aish.shell.commands.guide import HELP, QUIT
from aish.shell.commands.mcp import MCP
from aish.shell.commands.model import MODEL, NORRIS
from aish.shell.commands.past import COST, LOG, RESUME, SAVE, SESSIONS
from aish.shell.commands.pipelines import RUN
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
    RETRY,
    UNDO,
    EDIT,
    NORRIS,
    EXPORT,
    COST,
    LOG,
    QUIT,
)

COMMANDS: Mapping[str, Command] = {row.name: row for row in ROWS}

_BY_NAME: Mapping[str, Command] = {name: row for row in ROWS for name in (row.name, *row.also)}
_LIST = "`:help` lists the commands; a line that begins with a blank goes to the model as it is"


def command_of(name: str) -> Command:
    """The command of a name.

    Raises:
        UsageError: there is none.
    """
    found = _BY_NAME.get(name)
    if found is None:
        said = f"there is no command `:{name}`" if name else "a `:` is followed by a command"
        hint = did_you_mean(f":{name}", [f":{known}" for known in COMMANDS])
        raise UsageError(said, hint=hint or _LIST)
    return found
