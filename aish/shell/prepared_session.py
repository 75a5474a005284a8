"""Prepare a session: its file, folder, journal and prompt."""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.run_folder import RunFolder, RunsPlace, new_folder
from aish.output.event_log import Sink
from aish.shell.input.deferred_editor import DeferredEditor
from aish.shell.input.lines import Lines, PipedLines
from aish.shell.outputs import Lost, Outlets, SessionOutput, open_outlets
from aish.system.clock import SystemClock
from aish.system.files import PROJECT_FILE, config_folder, state_folder
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    from aish.features.control.run_services import ControlRequest, RunServices
    from aish.shell.resume import EarlierParts

SESSIONS_FOLDER = "sessions"


def session_file(given: Path | None) -> Path:
    """The given file, or `aish.yaml` in this folder, or the user's own."""
    if given is not None:
        return given
    own = config_folder() / PROJECT_FILE
    for place in (Path(PROJECT_FILE), own):
        if place.exists():
            return place
    raise UsageError(
        f"no pipeline file was given, and there is neither `./{PROJECT_FILE}` nor `{own}`",
        hint="`aish init` writes a first one; `aish shell FILE` uses any other",
    )


def sessions_place(file: Path, wanted: Path | None) -> RunsPlace:
    """The place for sessions on `file`: in its project, or in the platform's state folder."""
    if wanted is None and file.resolve().parent == config_folder().resolve():
        return RunsPlace(file.parent, state_folder() / SESSIONS_FOLDER)
    return RunsPlace(file.parent, wanted, SESSIONS_FOLDER)


@frozen
class SessionOptions:
    """The command-line options of a session; `resume` names one to resume.

    `control` is where it listens, if it does.
    """

    output: SessionOutput
    lost: Lost
    run_dir: Path | None = None
    ephemeral: bool = False
    resume: str | None = None
    control: "ControlRequest | None" = None


@frozen
class PreparedSession:
    """A session that has not begun; `stack` closes everything opened by it, now or later."""

    plan: Plan
    options: RunOptions
    output: SessionOutput
    place: RunsPlace
    folder: RunFolder
    deferred: DeferredEditor
    lines: Lines
    outlets: Outlets
    clock: Clock
    stack: ExitStack
    earlier: "EarlierParts | None"
    services: "RunServices | None"


def prepare_session(
    plan: Plan,
    options: RunOptions,
    wanted: SessionOptions,
    resume: str | None,
    stack: ExitStack,
    before: Lines | None = None,
) -> PreparedSession:
    """Do everything that can fail before the first question.

    `before` are the lines of the session from which the person switched to this one.

    Raises:
        UsageError: the folder cannot be made, there is no such session, or it cannot listen where
            it was asked to.
        JournalError: the journal of that session is damaged.
    """
    clock, output = SystemClock(), wanted.output
    place = sessions_place(plan.pipeline.file, wanted.run_dir)
    earlier: EarlierParts | None = None
    if resume is not None:
        from aish.shell.resume import find_earlier

        earlier = find_earlier(plan.pipeline, place, resume, plan.secrets.mask, stack)
    if earlier is None:
        folder = new_folder(plan, options, clock, place, ephemeral=wanted.ephemeral)
    else:
        folder = earlier.folder
    services = _services(plan, options, wanted, folder, clock, earlier, stack)
    journal = _journal(folder) if earlier is None else earlier.go_on()
    deferred = DeferredEditor(plan.default_model)
    lines = stack.enter_context(_lines(deferred, output, plan, options, before))
    after = 0 if earlier is None else earlier.last_seq
    sinks = () if services is None else services.sinks
    outlets = open_outlets(
        output, lines.out, journal, plan.secrets, clock, wanted.lost, after=after, watching=sinks
    )
    stack.callback(outlets.log.close)
    deferred.emit = outlets.emit
    return PreparedSession(
        plan,
        options,
        output,
        place,
        folder,
        deferred,
        lines,
        outlets,
        clock,
        stack,
        earlier,
        services,
    )


def _services(
    plan: Plan,
    options: RunOptions,
    settings: SessionOptions,
    folder: RunFolder,
    clock: Clock,
    earlier: "EarlierParts | None",
    stack: ExitStack,
) -> "RunServices | None":
    """The sockets of the session and what tells of its questions, if it has any."""
    if settings.control is None and plan.pipeline.control.notify is None:
        return None
    from aish.features.control.run_services import open_services

    spent = None if earlier is None else earlier.resume_state.spent
    services = open_services(settings.control, plan, options, folder, clock, spent, stack)
    if earlier is not None:
        services.begin_after(earlier.events, earlier.last_seq)
    return services


def _journal(folder: RunFolder) -> Sink | None:
    if folder.path is None:
        return None
    from aish.journal.writer import open_journal

    with folder.require_in_place():
        return open_journal(folder.path)


@contextmanager
def _lines(
    deferred: DeferredEditor,
    output: SessionOutput,
    plan: Plan,
    options: RunOptions,
    before: Lines | None,
) -> Generator[Lines]:
    if isinstance(before, PipedLines):
        # More may have been read than was used.
        before.go_on(deferred.notice)
        yield before
        return
    if not output.attended:
        yield PipedLines(_stdin(), deferred.notice)
        return
    from aish.output.style import look_of
    from aish.shell.input.editor import EditorSettings
    from aish.shell.input.open_editor import open_editor

    settings = EditorSettings(
        words=deferred,
        prompt=deferred.prompt,
        notice=deferred.notice,
        toolbar=deferred.toolbar,
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
        # It was closed before we started.
        return None


def session_plan(
    pipeline: Pipeline, options: RunOptions, secrets: Secrets, model: str | None = None
) -> Plan:
    """The plan of a session: the servers, the rules with those of `shell`, and one model."""
    rules = pipeline.rules
    ours = replace(rules, auto_approve=rules.auto_approve + pipeline.shell.auto_approve)
    bare = replace(pipeline, steps=(), outputs=None, rules=ours)
    plan = _without_prompts(make_plan(bare, options, secrets=secrets))
    alias = model or plan.default_model
    if alias is None:
        return plan
    summary = pipeline.context.summary_model if pipeline.context.max_tokens else None
    judges = (alias,) if summary is None else (alias, summary)
    return _without_prompts(make_plan(bare, options, secrets=secrets, judges=judges))


def _without_prompts(plan: Plan) -> Plan:
    """A session has no steps, so prompts that a lock pins do not apply to it."""
    return plan if plan.lock is None else replace(plan, lock=replace(plan.lock, prompts={}))
