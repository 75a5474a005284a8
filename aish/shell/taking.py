"""What a session does with each line, and where its errors go (S1)."""

from aish.core.errors import AishError
from aish.shell.asking import ask
from aish.shell.commands.catalogue import command_of
from aish.shell.recording import settle
from aish.shell.routing import CommandLine, LocalLine, Question, route
from aish.shell.session import Session


async def take_lines(session: Session) -> None:
    """Take one line after the other until the person leaves, the input ends or the reader goes."""
    lines = session.open.lines
    while not (session.over or session.open.out.gone):
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
    interrupts, lines = session.open.interrupts, session.open.lines
    with interrupts.running(), lines.busy(session.watch_keys()):
        try:
            await _do(session, line)
        except AishError as error:
            session.tell_failure(error)
        finally:
            settle(session.open.environment.tape)
    if interrupts.stopped:
        # Ctrl-C is a key, too.
        session.halt()


async def _do(session: Session, line: str) -> None:
    match route(line):
        case None:
            return
        case Question(text):
            await ask(session, text)
        case LocalLine(command, hand_over):
            ran = await session.open.local.run_typed(command, hand_over=hand_over)
            session.note_command(ran.record, typed=True)
        case CommandLine(name, rest):
            await command_of(name).take(session, rest)
