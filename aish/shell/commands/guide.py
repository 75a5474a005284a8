"""`:help`, which lists the catalogue, and `:quit`."""

from aish.core.errors import UsageError
from aish.shell.command import Command, nearest
from aish.shell.session import Described, Session

LINES = (
    "A line is for the model. `!command` runs a local command, whose output goes to the model"
    " with the next line; that of `$command` does not. A line that begins with a blank goes to"
    " the model."
)


async def _help(session: Session, rest: str) -> None:
    commands, out = session.open.commands, session.open.out
    words = rest.split()
    if not words:
        out.rows([(row.title, row.summary) for row in commands.values()])
        out.show(f"\n{LINES}")
        return
    row = _named(words[0].removeprefix(":"), session)
    out.show(f"{row.title}\n  {row.summary}")
    if row.details:
        out.show(f"\n{row.details}")
    if row.usage_rows():
        out.show("\n")
        out.rows(row.usage_rows())
    if row.also:
        out.show("\nalso called " + ", ".join(f":{name}" for name in row.also))


def _named(name: str, session: Session) -> Described:
    commands = session.open.commands
    for known, row in commands.items():
        if name == known or name in row.also:
            return row
    hint = nearest(name, commands) or "`:help` lists the commands"
    raise UsageError(f"unknown command `:{name}`", hint=hint)


async def _quit(session: Session, rest: str) -> None:
    del rest
    session.over = True


HELP = Command(
    "help",
    "[COMMAND]",
    "lists the commands, or describes one",
    _help,
    completes="command",
    also=("h", "?"),
)
QUIT = Command(
    "quit",
    "",
    "leaves the session; `aish shell --resume` resumes it",
    _quit,
    details="So does Ctrl-D at an empty prompt.",
    also=("q", "exit"),
)
