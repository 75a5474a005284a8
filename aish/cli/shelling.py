"""From the options of `aish shell` to a session and its exit code."""

import errno
import gc
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio

from aish.cli.boundary import say
from aish.config.pipeline import Pipeline
from aish.mcp.requests_from_server import Elicit
from aish.run.folder import RunFolder, RunsPlace, open_folder
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.surroundings import AnyTape, Surroundings
from aish.shell.late import Late
from aish.shell.lines import Lines, PipedLines
from aish.shell.local.deciding import Asking
from aish.shell.opening import Desk, run_session, session_plan
from aish.shell.outlets import Outlets, Told, open_outlets
from aish.shell.place import sessions_place
from aish.sinks.fanout import Sink
from aish.system.clock import SystemClock
from aish.system.paths import state_folder
from aish.system.secrets import Secrets
from aish.terminal.unattended import Unattended
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Approver, Clock


@frozen
class Wanted:
    """What the command line said of a session."""

    told: Told
    run_dir: Path | None = None
    ephemeral: bool = False
    resume: str | None = None


def is_attended(environ: dict[str, str]) -> bool:
    """Whether a person is there: both ends are terminals, and this is no job of a CI (1.2)."""
    streams = (sys.stdin, sys.stdout)
    terminals = all(stream is not None and stream.isatty() for stream in streams)
    return terminals and environ.get("CI", "") in {"", "0", "false"}


def run_shell(pipeline: Pipeline, options: RunOptions, wanted: Wanted) -> int:
    """A session on `pipeline`; the exit code."""
    secrets, clock = Secrets(), SystemClock()
    plan = session_plan(pipeline, options, secrets)
    place = sessions_place(pipeline.file, wanted.run_dir)
    late = Late()
    with ExitStack() as stack:
        earlier = None
        if wanted.resume is not None:
            from aish.shell.earlier import find_earlier

            earlier = find_earlier(pipeline, place, wanted.resume, secrets.mask, stack)
        folder = _folder(plan, place, clock, wanted) if earlier is None else earlier.folder
        journal = _journal(folder) if earlier is None else earlier.go_on()
        tape = _tape(plan, options, folder, clock, stack)
        lines = stack.enter_context(_lines(late, wanted.told, plan, options))
        outlets = open_outlets(
            wanted.told,
            lines.out,
            journal,
            secrets,
            clock,
            _lost,
            after=0 if earlier is None else earlier.last_seq,
        )
        stack.callback(outlets.log.close)
        late.emit = outlets.emit
        person = _person(wanted.told, lines, outlets, secrets)
        desk = Desk(
            plan=plan,
            options=options,
            around=Surroundings(
                emit=outlets.emit,
                approver=person.approver,
                clock=clock,
                folder=folder,
                environ=options.environ,
                tape=tape,
                carried=None if earlier is None else earlier.carried,
            ),
            lines=lines,
            out=outlets.out,
            attended=wanted.told.attended,
            plan_for=lambda alias: session_plan(pipeline, options, secrets, alias),
            hold=late.hold,
            place=place,
            outlets_for=outlets.of_run,
            asking=person.asking,
            elicit=person.elicit,
            earlier=earlier,
        )
        gc.freeze()
        gc.enable()
        end = anyio.run(run_session, desk)
    if end.code and not wanted.told.attended:
        say(f"error: {end.reason}" + (f"\n\nhint: {end.hint}" if end.hint else ""))
    return end.code


def _folder(plan: Plan, place: RunsPlace, clock: Clock, wanted: Wanted) -> RunFolder:
    pipeline, mask = plan.pipeline, plan.secrets.mask
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=wanted.ephemeral, mask=mask)
    folder.write_plan(pipeline.data)
    return folder


def _journal(folder: RunFolder) -> Sink | None:
    if folder.path is None:
        return None
    from aish.sinks.journal import open_journal

    return open_journal(folder.path)


def _tape(
    plan: Plan, options: RunOptions, folder: RunFolder, clock: Clock, stack: ExitStack
) -> AnyTape | None:
    """What `:export` is made from later; a session that leaves nothing behind has none."""
    if folder.path is None:
        return None
    from aish.run.taping.reel import TapeChoice, load_reel, open_tape
    from aish.shell.recording import next_recording

    reel = load_reel(TapeChoice(next_recording(folder.path), "all"))
    return stack.enter_context(open_tape(reel, plan, options, folder, clock))


@contextmanager
def _lines(late: Late, told: Told, plan: Plan, options: RunOptions) -> Generator[Lines]:
    if not told.attended:
        yield PipedLines(_stdin(), late.notice)
        return
    from aish.shell.editor.opening import open_editor
    from aish.shell.editor.settings import Settings
    from aish.sinks.look import look_of

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
        return None


@frozen
class _Person:
    """What asks the person, if one is there; one question at a time, whoever asks."""

    approver: Approver
    asking: Asking | None = None
    elicit: Elicit | None = None


def _person(told: Told, lines: Lines, outlets: Outlets, secrets: Secrets) -> _Person:
    if not told.attended:
        return _Person(Unattended())
    from aish.shell.asked_here import CommandAsking
    from aish.terminal.approver import TerminalApprover
    from aish.terminal.elicitation import TerminalElicitor
    from aish.terminal.turns import Turns

    turns = Turns(pause=lambda: outlets.asking(lines))
    return _Person(
        TerminalApprover(turns=turns, secrets=secrets),
        CommandAsking(lines, turns, secrets),
        TerminalElicitor(turns, secrets=secrets),
    )


def _lost(sink: Sink, error: OSError) -> None:
    if error.errno == errno.EPIPE:
        say(f"note: {sink.name}: the reader has gone")
    else:
        say(f"error: cannot write {sink.name}: {error.strerror or error}")
