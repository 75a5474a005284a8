"""`:save`, `:sessions`, `:resume`, `:cost` and `:log`: past sessions, costs and the journal."""

import errno
import os
import stat
import time
from contextlib import ExitStack
from pathlib import Path

from aish.core.errors import AishError, UsageError
from aish.core.messages import Usage
from aish.core.phrases import counted, dollars
from aish.core.text import for_line
from aish.shell.command import ShellCommand
from aish.shell.resume import find_session, past_sessions
from aish.shell.session import ShellSession
from aish.shell.transcript import title, transcript
from aish.system.files import atomic_write


async def _save(session: ShellSession, rest: str) -> None:
    if not rest:
        raise UsageError("`:save PATH` is the form", hint="for example `:save notes.md`")
    path = Path(os.path.expanduser(rest))  # ruff: ignore[os-path-expanduser, blocking-path-method-in-async-function] - looked up at once
    id = session.open.environment.folder.id
    text = session.open.plan.secrets.mask(transcript(session.history.turns, id))
    try:
        if not _is_ours(path, title(id)):
            raise UsageError(f"`{path}` already exists", hint="use another name, or delete it")
        atomic_write(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise AishError(f"cannot write it: {error.strerror}", where=str(path)) from error
    session.show(f"the conversation is in {for_line(str(path))}")


def _is_ours(path: Path, title: str) -> bool:
    """Return true if the path is free, or holds what this session saved before."""
    first = f"{title}\n".encode()
    try:
        # Do not block on a pipe without a writer, and do not follow a link, which may be another's.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and os.read(descriptor, len(first)) == first
    finally:
        os.close(descriptor)


async def _sessions(session: ShellSession, _rest: str) -> None:
    with ExitStack() as stack:
        there = past_sessions(session.open.place, stack)
    this, rows = session.open.environment.folder.id, []
    sessions = [row for row in there if row.id == this or not row.empty]
    for row in sessions:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.began))
        mark = "*" if row.id == this else " "
        rows.append((f"{mark} {row.id}", when, counted(row.questions, "line"), row.first))
    session.open.out.rows(rows)
    if not sessions:
        session.show("there are no sessions here")


async def _cost(session: ShellSession, _rest: str) -> None:
    used = session.following.spending.total
    usage, cost = used.usage or Usage(), used.cost_usd
    money = "unknown: a model has no price" if cost is None else dollars(cost)
    session.show(
        f"{counted(used.turns, 'turn')}, {usage.input or 0:,} tokens in,"
        f" {usage.output or 0:,} out, cost {money}"
    )


async def _log(session: ShellSession, _rest: str) -> None:
    folder = session.open.environment.folder.shown
    if folder is None:
        session.show("an ephemeral session keeps no log")
    else:
        session.show(for_line(f"{folder}/events.jsonl"))


async def _resume(session: ShellSession, rest: str) -> None:
    if not rest:
        raise UsageError("`:resume ID` is the form", hint="`:sessions` lists them")
    # Read in full now: an error is reported here, and nothing has changed.
    from aish.shell.resume import find_earlier

    opened = session.open
    with ExitStack() as stack:
        _, id = find_session(opened.place, rest, opened.plan.pipeline.name, stack)
        if id == opened.environment.folder.id:
            raise UsageError("this is the current session", hint="`:sessions` lists all")
        find_earlier(opened.plan.pipeline, opened.place, id, str, stack)
    session.resume = id
    session.over = True


SAVE = ShellCommand(
    "save PATH",
    "writes the conversation as Markdown",
    _save,
    details="A file is replaced only by the session that has saved it.",
    completes="path",
)
SESSIONS = ShellCommand(
    "sessions", "lists the sessions", _sessions, details="Empty sessions are omitted."
)
RESUME = ShellCommand(
    "resume ID",
    "leaves this session and resumes that one",
    _resume,
    details="ID is that of `:sessions`, or the end of it. The conversation comes back as it was, "
    "with\nattachments and output that wait, the model, what limits have counted and what you\n"
    "denied. What you approved (`:approve`, `always`, `:norris`) and servers that were\n"
    "connected do not: they are given anew.",
    completes="session",
)
COST = ShellCommand("cost", "tokens and money so far", _cost)
LOG = ShellCommand("log", "where the journal of this session is", _log)
