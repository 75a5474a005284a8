"""What there is before a session is: its folder, its journal, the prompt (S1, S6).

Only what is quick to import: the rest comes while the person looks at the prompt.
"""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.output.event_log import Sink
from aish.shell.late import Late
from aish.shell.lines import Lines, PipedLines
from aish.shell.outlets import Outlets, Told, open_outlets
from aish.shell.piped import Lost
from aish.shell.place import sessions_place
from aish.system.clock import SystemClock
from aish.system.paths import state_folder


@frozen
class Wanted:
    """What the command line said of a session; `resume` names one to go on with."""

    told: Told
    lost: Lost
    run_dir: Path | None = None
    ephemeral: bool = False
    resume: str | None = None


class AnyEarlier(Protocol):
    """A session that is gone on with, `earlier.Earlier`: its room is imported only then."""

    @property
    def folder(self) -> RunFolder:
        """The session's folder."""
        ...

    @property
    def last_seq(self) -> int:
        """The number of the last record of its journal."""
        ...

    def go_on(self) -> Sink:
        """The journal, to be appended to."""
        ...


@frozen
class Stage:
    """A session that has not begun; `stack` closes what is open, and whatever is opened later."""

    plan: Plan
    options: RunOptions
    told: Told
    place: RunsPlace
    folder: RunFolder
    late: Late
    lines: Lines
    outlets: Outlets
    clock: Clock
    stack: ExitStack
    earlier: AnyEarlier | None


def open_stage(
    plan: Plan,
    options: RunOptions,
    wanted: Wanted,
    resume: str | None,
    stack: ExitStack,
    before: Lines | None = None,
) -> Stage:
    """Everything that can fail before anything is asked.

    `before` are the lines of a session that this one is gone on with after.

    Raises:
        UsageError: the folder cannot be made, or there is no such session.
        JournalError: the journal of that session is not as it was written.
    """
    clock, told = SystemClock(), wanted.told
    place = sessions_place(plan.pipeline.file, wanted.run_dir)
    earlier: AnyEarlier | None = None
    if resume is not None:
        from aish.shell.earlier import find_earlier

        earlier = find_earlier(plan.pipeline, place, resume, plan.secrets.mask, stack)
    folder = _folder(plan, place, clock, wanted) if earlier is None else earlier.folder
    journal = _journal(folder) if earlier is None else earlier.go_on()
    late = Late(plan.default_model)
    lines = stack.enter_context(_lines(late, told, plan, options, before))
    after = 0 if earlier is None else earlier.last_seq
    outlets = open_outlets(told, lines.out, journal, plan.secrets, clock, wanted.lost, after=after)
    stack.callback(outlets.log.close)
    late.emit = outlets.emit
    return Stage(plan, options, told, place, folder, late, lines, outlets, clock, stack, earlier)


def _folder(plan: Plan, place: RunsPlace, clock: Clock, wanted: Wanted) -> RunFolder:
    pipeline, mask = plan.pipeline, plan.secrets.mask
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=wanted.ephemeral, mask=mask)
    with folder.beginning():
        folder.write_plan(pipeline.data)
    return folder


def _journal(folder: RunFolder) -> Sink | None:
    if folder.path is None:
        return None
    from aish.journal.writer import open_journal

    with folder.beginning():
        return open_journal(folder.path)


@contextmanager
def _lines(
    late: Late, told: Told, plan: Plan, options: RunOptions, before: Lines | None
) -> Generator[Lines]:
    if isinstance(before, PipedLines):
        # More may have been read than was taken.
        before.go_on(late.notice)
        yield before
        return
    if not told.attended:
        yield PipedLines(_stdin(), late.notice)
        return
    from aish.output.style import look_of
    from aish.shell.editor.opening import open_editor
    from aish.shell.editor.settings import Settings

    settings = Settings(
        words=late,
        prompt=late.prompt,
        notice=late.notice,
        toolbar=late.toolbar,
        history=state_folder() / "history",
        mask=plan.secrets.mask,
        folder=Path.cwd(),
        color=look_of(sys.stdout, os.environ).color,
    )
    with open_editor(settings, options.environ, sys.stdin, sys.stdout) as lines:
        yield lines


def _stdin() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        # It was closed before we began.
        return None
