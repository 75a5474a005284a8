"""`:retry`, `:undo` and `:edit`: repeat, remove or change the last question."""

from aish.agent.compaction import last_question
from aish.core.errors import UsageError
from aish.core.messages import ToolTurn
from aish.core.phrases import shorten
from aish.core.sources import NO_SOURCES, Sources
from aish.core.text import for_line
from aish.shell.command import ShellCommand
from aish.shell.exchange import ask
from aish.shell.session import ShellSession

_NOTHING = "there is no question in this conversation yet"
_SHOWN = 59
_GOES_AGAIN = "Its attachments and output of `!` lines are sent again."


def _last(session: ShellSession) -> str:
    if session.asked is not None:
        return session.asked.text
    if last_question(session.history.turns) is None:
        raise UsageError(_NOTHING)
    message = "the last question is part of a summary, and cannot be undone"
    raise UsageError(message, hint="`:clear` starts a new conversation")


def _sources(session: ShellSession) -> Sources:
    return NO_SOURCES if session.asked is None else session.asked.sources


def _take_back(session: ShellSession, why: str) -> None:
    asked = session.asked
    if not session.stands:
        return
    turns = session.history.turns
    asked_as = [turn for turn, question in session.questions if question is asked]
    for at, turn in enumerate(turns):
        if any(turn is other for other in asked_as):
            session.put_back(turns[:at], why)
            return


async def _undo(session: ShellSession, _rest: str) -> None:
    session.look_back()
    text, before = _last(session), session.history.turns
    _take_back(session, "undone")
    gone = before[len(session.history.turns) :]
    session.look_back()
    question = shorten(session.open.box.runtime.mask(text), _SHOWN)
    session.show(for_line(f"left out, with its answer: {question}"))
    if any(isinstance(turn, ToolTurn) for turn in gone):
        session.show("effects of tools are not undone")
    if session.attached.names:
        names = ", ".join(session.attached.names)
        session.show(for_line(f"is sent with the next line again: {names}"))


async def _retry(session: ShellSession, _rest: str) -> None:
    text, sources = _last(session), _sources(session)
    _take_back(session, "asked again")
    await ask(session, text, sources)


async def _edit(session: ShellSession, _rest: str) -> None:
    text, sources = _last(session), _sources(session)
    if not session.open.attended:
        raise UsageError(
            "it can be edited only at a terminal", hint="`:undo`, and then the other question"
        )
    edited = await session.open.lines.edit(text, "edit: ")
    if edited is None or not edited.strip():
        session.show("nothing was changed")
        return
    _take_back(session, "asked another way")
    await ask(session, edited.strip(), sources)


RETRY = ShellCommand(
    "retry",
    "asks the last question again, without its answer",
    _retry,
    details=f"Also one that was interrupted or failed. {_GOES_AGAIN}",
)
UNDO = ShellCommand(
    "undo",
    "removes the last question and its answer",
    _undo,
    details="Repeat it to remove the question before. Effects of tools and commands are not "
    f"undone. {_GOES_AGAIN}",
)
EDIT = ShellCommand(
    "edit",
    "edits and asks the last question again",
    _edit,
    details=f"Ctrl-C changes nothing. {_GOES_AGAIN}",
)
