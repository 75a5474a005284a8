"""`:retry`, `:undo` and `:edit`: the last question once more, not at all, or another way."""

from aish.errors import UsageError
from aish.shell.asking import ask
from aish.shell.command import Command
from aish.shell.session import Session
from aish.vocab.messages import Turn, UserTurn

_NOTHING = "nothing was asked yet"


def without_last(turns: list[Turn]) -> list[Turn]:
    """The conversation before its last question; the same if it has none."""
    for at in range(len(turns) - 1, -1, -1):
        if isinstance(turns[at], UserTurn):
            return turns[:at]
    return turns


def _last(session: Session) -> str:
    if session.asked is None:
        raise UsageError(_NOTHING)
    return session.asked.text


def _take_back(session: Session, why: str) -> None:
    """Leave the last question and all that followed it out, if it is still there."""
    turns = session.history.turns
    kept = without_last(turns)
    if session.stands and len(kept) < len(turns):
        session.put_back(kept, why)


async def _undo(session: Session, rest: str) -> None:
    del rest
    turns = session.history.turns
    kept = without_last(turns)
    if len(kept) == len(turns):
        raise UsageError(_NOTHING)
    session.put_back(kept, "undone")
    session.open.out.show(
        "the last question and its answer are left out; what tools did is not undone"
    )


async def _retry(session: Session, rest: str) -> None:
    del rest
    text = _last(session)
    _take_back(session, "asked again")
    await ask(session, text)


async def _edit(session: Session, rest: str) -> None:
    del rest
    text = await session.open.lines.edit(_last(session), "edit")
    if text is None or not text.strip():
        session.open.out.show("nothing was changed")
        return
    _take_back(session, "asked another way")
    await ask(session, text.strip())


RETRY = Command("retry", "", "asks the last question again, its answer left out", _retry)
UNDO = Command("undo", "", "leaves out the last question and its answer", _undo)
EDIT = Command("edit", "", "edits the last question and asks it in its place", _edit)
