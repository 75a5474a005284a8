"""From a stage to a session and its end. Imported while the prompt is already there."""

from dataclasses import replace

from aish.core.events import Exit
from aish.engine.environment import Recorder, RunEnvironment
from aish.features.recording.session import CassetteChoice, load_session, open_recorder
from aish.shell.asked_here import CommandAsking
from aish.shell.beside import shown
from aish.shell.earlier import Earlier
from aish.shell.interrupts import Interrupts
from aish.shell.lines import Lines
from aish.shell.opening import Desk, Person, run_session
from aish.shell.planning import session_plan
from aish.shell.recording import next_recording
from aish.shell.session import Session
from aish.shell.stage import Stage
from aish.terminal.approver import TerminalApprover
from aish.terminal.elicitation import TerminalElicitor
from aish.terminal.turns import Turns
from aish.terminal.unattended import Unattended


async def hold_session(
    stage: Stage, lines: Lines, interrupts: Interrupts
) -> tuple[Exit, str | None]:
    """The session, and the one that the person goes on with after it."""
    sessions: list[Session] = []

    def hold(session: Session) -> None:
        sessions.append(session)
        stage.late.hold(shown(session))

    end = await run_session(replace(_desk(stage, lines, interrupts), hold=hold))
    return end, sessions[-1].resume if sessions else None


def _desk(stage: Stage, lines: Lines, interrupts: Interrupts) -> Desk:
    plan, options, outlets = stage.plan, stage.options, stage.outlets
    earlier = stage.earlier
    assert earlier is None or isinstance(earlier, Earlier), "`find_earlier` makes them"
    person = _person(stage, lines)
    return Desk(
        plan=plan,
        options=options,
        environment=RunEnvironment(
            emit=outlets.emit,
            approver=person.approver,
            clock=stage.clock,
            folder=stage.folder,
            environ=options.environ,
            tape=_tape(stage),
            carried=None if earlier is None else earlier.carried,
        ),
        lines=lines,
        out=outlets.out,
        attended=stage.told.attended,
        plan_for=lambda alias: session_plan(plan.pipeline, options, plan.secrets, alias),
        hold=lambda _: None,
        interrupts=interrupts,
        place=stage.place,
        outlets_for=outlets.of_run,
        person=person,
        earlier=earlier,
    )


def _tape(stage: Stage) -> Recorder | None:
    """What `:export` is made from later; a session that leaves nothing behind has none."""
    if stage.folder.path is None:
        return None
    choice = CassetteChoice(next_recording(stage.folder.path), "all", answers_only=True)
    session = load_session(choice)
    opened = open_recorder(session, stage.plan, stage.options, stage.folder, stage.clock)
    return stage.stack.enter_context(opened)


def _person(stage: Stage, lines: Lines) -> Person:
    """What asks the person, if one is there; one question at a time, whoever asks."""
    if not stage.told.attended:
        return Person(Unattended())
    secrets = stage.plan.secrets
    turns = Turns(pause=lambda: stage.outlets.asking(lines))
    return Person(
        TerminalApprover(turns=turns, secrets=secrets),
        CommandAsking(lines, turns, secrets),
        TerminalElicitor(turns, secrets=secrets),
    )
