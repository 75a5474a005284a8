"""What a session does with each line, and where its errors go (S1)."""

from aish.errors import AishError, UsageError, did_you_mean
from aish.shell.asking import ask
from aish.shell.command import Command
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.routing import CommandLine, LocalLine, Question, route
from aish.shell.session import Session

_LIST = "`:help` lists the commands; a line that begins with a blank goes to the model as it is"


async def take_lines(session: Session) -> None:
    """Take one line after the other until the person leaves or the input ends."""
    lines = session.open.lines
    while not session.over:
        try:
            line = await lines.next()
        except AishError as error:
            # One line that cannot be read; the next one may be.
            session.tell_failure(error)
            continue
        if line is None:
            return
        await take(session, line)


async def take(session: Session, line: str) -> None:
    """Do what a line says; whatever fails is told, and the session goes on."""
    with session.open.interrupts.running(), session.open.lines.busy(session.watch_keys()):
        try:
            await _do(session, line)
        except AishError as error:
            session.tell_failure(error)


async def _do(session: Session, line: str) -> None:
    match route(line):
        case None:
            return
        case Question(text):
            await ask(session, text)
        case LocalLine(command, hand_over):
            await session.open.local.run_typed(command, hand_over=hand_over)
        case CommandLine(name, rest):
            await command_of(name).run(session, rest)


def command_of(name: str) -> Command:
    """The command of a name.

    Raises:
        UsageError: there is none.
    """
    found = COMMANDS.get(name)
    if found is None:
        said = f"there is no command `:{name}`" if name else "a `:` is followed by a command"
        raise UsageError(said, hint=did_you_mean(name, COMMANDS) or _LIST)
    return found
