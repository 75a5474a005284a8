"""Routes each line of a session: to the model, to a command, or to the local shell.

What other programs want to be done comes between two lines.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.shell.commands.catalogue import command_of
from aish.shell.exchange import ask
from aish.shell.input.lines import INTERRUPTED
from aish.shell.recording import settle
from aish.shell.request_queue import SessionRequest
from aish.shell.session import ShellSession


@frozen
class TypedQuestion:
    text: str


@frozen
class CommandLine:
    name: str
    rest: str


@frozen
class LocalLine:
    """`!command`, whose output is sent to the model with the next turn, or `$command`."""

    command: str
    hand_over: bool


Route = TypedQuestion | CommandLine | LocalLine


def route(line: str) -> Route | None:
    """The kind of `line`; `None` if it is empty.

    Only its first character counts: a line that begins with a blank is for the model, whatever
    follows. A command is one line; local commands may have several.
    """
    if not line.strip():
        return None
    first, rest = line[0], line[1:].strip()
    if first == ":":
        name, *after = rest.split(None, 1) or [""]
        return CommandLine(name, after[0] if after else "")
    if first in "!$":
        return LocalLine(rest, hand_over=first == "!") if rest else None
    return TypedQuestion(line.strip())


async def take_lines(session: ShellSession) -> None:
    """Handle lines until the person leaves, the input ends or the reader of stdout is gone."""
    lines, requests = session.open.lines, session.open.requests
    while not (session.over or session.open.out.gone):
        if (request := requests.take()) is not None:
            await _serve(session, request)
            continue
        try:
            line = await lines.next()
        except AishError as error:
            # One line that cannot be read; the next one may be valid.
            session.tell_failure(error)
            continue
        if line is None:
            return
        if line != INTERRUPTED:
            await take(session, line)


async def take(session: ShellSession, line: str) -> None:
    await _within(session, partial(_do, session, line))


async def _serve(session: ShellSession, request: SessionRequest) -> None:
    async def work() -> None:
        try:
            request.end(await request.work())
        except AishError as error:
            request.end(error)
        except BaseException:
            request.end(None)
            raise

    await _within(session, work)


async def _within(session: ShellSession, work: Callable[[], Awaitable[None]]) -> None:
    """Do something that Ctrl-C stops; an error is reported."""
    interrupts, lines = session.open.interrupts, session.open.lines
    with interrupts.cancellable(), lines.busy(session.watch_keys()):
        try:
            await work()
        except AishError as error:
            session.tell_failure(error)
        finally:
            # Nobody waits any more for what was asked about its calls.
            session.open.box.runtime.gate.questions.withdraw(lambda _: True)
            settle(session.open.environment.recorder)
    if interrupts.stopped:
        # Ctrl-C counts as a key, too.
        session.halt()


async def _do(session: ShellSession, line: str) -> None:
    match route(line):
        case None:
            return
        case TypedQuestion(text):
            await ask(session, text)
        case LocalLine(command, hand_over):
            ran = await session.open.local.run_typed(command, hand_over=hand_over)
            session.note_command(ran.record, typed=True)
        case CommandLine(name, rest):
            await command_of(name).take(session, rest)
