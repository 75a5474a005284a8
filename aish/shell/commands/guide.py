"""`:help`, whose list is the catalogue, and `:quit`."""

from aish.errors import UsageError, did_you_mean
from aish.shell.command import Command
from aish.shell.session import Session

_LINES = (
    "A line is for the model. `!command` runs a local command, whose output goes to the model"
    " with the next line; that of `$command` does not. A line that begins with a blank goes to"
    " the model."
)


async def _help(session: Session, rest: str) -> None:
    commands = session.open.commands
    name = rest.removeprefix(":")
    if not name:
        session.open.out.rows([(row.title, row.summary) for row in commands.values()])
        session.open.out.show(f"\n{_LINES}")
        return
    row = commands.get(name)
    if row is None:
        hint = did_you_mean(name, commands) or "`:help` lists the commands"
        raise UsageError(f"there is no command `:{name}`", hint=hint)
    said = f"{row.title}\n  {row.summary}"
    session.open.out.show(f"{said}\n\n{row.details}" if row.details else said)


async def _quit(session: Session, rest: str) -> None:
    del rest
    session.over = True


HELP = Command(
    "help", "[COMMAND]", "lists the commands, or tells of one", _help, completes="command"
)
QUIT = Command("quit", "", "leaves; `aish shell --resume` goes on later", _quit)
