"""All commands, one row each: `:help`, completion and the docs are generated from them."""

from collections.abc import Mapping

from aish.core.errors import UsageError
from aish.shell.command import ShellCommand, nearest
from aish.shell.commands.approvals import APPROVALS, APPROVE, DENY
from aish.shell.commands.attach import ATTACH
from aish.shell.commands.conversation import CLEAR, COMPACT, CONTEXT
from aish.shell.commands.export import EXPORT
from aish.shell.commands.mcp import MCP
from aish.shell.commands.model import AUTONOMOUS, MODEL
from aish.shell.commands.past import COST, LOG, RESUME, SAVE, SESSIONS
from aish.shell.commands.pipelines import RUN
from aish.shell.commands.prompts import PROMPT
from aish.shell.commands.turns import EDIT, RETRY, UNDO
from aish.shell.session import ShellSession

LINES = (
    "A line is for the model. `!command` runs a local command, whose output goes to the model"
    " with the next line; that of `$command` does not. A line that begins with a blank goes to"
    " the model."
)


async def _help(session: ShellSession, rest: str) -> None:
    out, words = session.open.out, rest.split()
    if not words:
        out.rows([(row.title, row.summary) for row in ROWS])
        out.show(f"\n{LINES}")
        return
    name = words[0].removeprefix(":")
    row = _BY_NAME.get(name)
    if row is None:
        hint = nearest(name, COMMANDS) or "`:help` lists the commands"
        raise UsageError(f"unknown command `:{name}`", hint=hint)
    out.show(f"{row.title}\n  {row.summary}")
    if row.details:
        out.show(f"\n{row.details}")
    if row.forms:
        out.show("\n")
        out.rows([(f":{row.name} {form.spelled}", form.summary) for form in row.forms])
    if row.also:
        out.show("\nalso called " + ", ".join(f":{name}" for name in row.also))


async def _quit(session: ShellSession, _rest: str) -> None:
    session.over = True


HELP = ShellCommand(
    "help [COMMAND]",
    "lists the commands, or describes one",
    _help,
    completes="command",
    also=("h", "?"),
)
QUIT = ShellCommand(
    "quit",
    "leaves the session; `aish shell --resume` resumes it",
    _quit,
    details="So does Ctrl-D at an empty prompt.",
    also=("q", "exit"),
)

ROWS: tuple[ShellCommand, ...] = (
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

COMMANDS: Mapping[str, ShellCommand] = {row.name: row for row in ROWS}

_BY_NAME: Mapping[str, ShellCommand] = {name: row for row in ROWS for name in (row.name, *row.also)}
_LIST = "`:help` lists the commands; a line that begins with a blank goes to the model as it is"


def command_of(name: str) -> ShellCommand:
    command = _BY_NAME.get(name)
    if command is None:
        message = f"unknown command `:{name}`" if name else "a `:` is followed by a command"
        raise UsageError(message, hint=_form_named(name) or nearest(name, _BY_NAME) or _LIST)
    return command


def _form_named(name: str) -> str | None:
    """The hint for `:connect`, which is `:mcp connect`."""
    rows = (row for row in ROWS for form in row.forms if form.name == name)
    return next((f"did you mean `:{row.name} {name}`" for row in rows), None)
