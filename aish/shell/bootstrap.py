"""Composition root of a session: from a loaded file through its first event to its last.

Imported while the prompt is already shown.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from anyio import CancelScope

from aish.agent.conversation import Buffer
from aish.agent.runtime import AgentRuntime
from aish.agent.turn_recorder import TurnRecorder
from aish.core.errors import AishError, ExitCode, InternalError
from aish.core.events import NOWHERE, Exit, Notice, RunFinished, ServerInfo
from aish.core.frozen import frozen
from aish.core.messages import Usage
from aish.core.protocols import Approver, Asking, Emit
from aish.engine.cancellation import INTERRUPTED
from aish.engine.environment import Recorder, RunEnvironment, RunHandle
from aish.engine.execution.run import run_started
from aish.engine.final import FinalState, decide_exit, status_of
from aish.engine.limits import RunMeter, open_meter
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Toolbox, open_toolbox
from aish.engine.resources.servers import LiveServers, open_live_servers
from aish.engine.run_folder import RunsPlace
from aish.features.recording.session import CassetteChoice, load_session, open_recorder
from aish.mcp.client.registry import Registry
from aish.mcp.client.server_requests import Elicit
from aish.policy.questions import Questions
from aish.shell.cancellation import Interrupts
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.input.lines import Lines
from aish.shell.local.approval import AskingCommands, CommandAsking, Said
from aish.shell.local.shell import LocalShell, own_environment
from aish.shell.loop import take_lines
from aish.shell.pending_input import SessionBuffer
from aish.shell.prepared_session import PreparedSession, session_plan
from aish.shell.recording import next_recording
from aish.shell.resource_group import open_resource_group
from aish.shell.resume import Earlier
from aish.shell.session import (
    Models,
    Offers,
    Opened,
    Out,
    OutletsFor,
    PlanFor,
    RequestQueue,
    Session,
    frame,
)
from aish.shell.stats import Following
from aish.shell.status_line import shown
from aish.system.process.reaper import Reaper
from aish.terminal.approver import TerminalApprover
from aish.terminal.elicitation import TerminalElicitor
from aish.terminal.tty import Turns
from aish.terminal.unattended import Unattended


@frozen
class Person:
    """Interface for questions to the person; only `Unattended` where nobody is present."""

    approver: Approver
    asking: AskingCommands | None = None
    elicit: Elicit | None = None


@frozen
class Services:
    """What a session gets from its caller; `environment.approver` asks a person who is present.

    `hold` gets the session once it exists, for completion and the prompt.
    """

    plan: Plan
    options: RunOptions
    environment: RunEnvironment
    lines: Lines
    out: Out
    attended: bool
    plan_for: PlanFor
    hold: Callable[[Session], None]
    interrupts: Interrupts
    place: RunsPlace
    outlets_for: OutletsFor
    person: Person
    earlier: Earlier | None = None


async def run_session(services: Services) -> Exit:
    """Handle lines until the person leaves, the input ends or a signal arrives; return the result.

    The stream of events begins with `run.started` and ends with `run.finished` (B12).
    """
    following = Following(services.environment.emit)
    if services.environment.resume_state is not None:
        following.spending.begin(services.environment.resume_state)
    said = Said(services.environment.approver)
    environment = replace(
        services.environment,
        emit=following,
        approver=said,
        questions=_questions(services, following),
    )
    sessions: list[Session] = []
    requests = RequestQueue(services.lines.interrupt)
    begun = environment.clock.monotonic()
    state = FinalState(())
    try:
        with services.interrupts.session():
            await _hold(services, environment, following, said, requests, sessions)
    except AishError as error:
        state = replace(state, error=error)
    except Exception as error:
        state = replace(state, error=InternalError(f"{type(error).__name__}: {error}"))
        _finish(services, environment, following, state, begun)
        raise
    finally:
        requests.close()
    for session in () if services.attended else sessions:
        # In an unattended session, errors of earlier lines decide the exit code.
        state = replace(state, records=tuple(session.records), others=tuple(session.errors))
    state = replace(state, signal=services.interrupts.code)
    return _finish(services, environment, following, state, begun)


async def _hold(
    services: Services,
    environment: RunEnvironment,
    following: Following,
    said: Said,
    requests: RequestQueue,
    sessions: list[Session],
) -> None:
    """Open the session, and handle its lines; it is put into `sessions` when it begins."""
    meter = open_meter(services.plan, environment.resume_state)
    _attach(services, environment, following, meter, requests, sessions)
    async with _opened(services, environment, following, said, meter, requests) as session:
        sessions.append(session)
        services.hold(session)
        await take_lines(session)


def _questions(services: Services, emit: Emit) -> Questions:
    """The questions of the session; a killed one may have left some, which nobody waits for."""
    past = () if services.earlier is None else services.earlier.unanswered
    return Questions(emit, services.environment.clock, past)


def _attach(
    services: Services,
    environment: RunEnvironment,
    following: Following,
    meter: RunMeter,
    requests: RequestQueue,
    sessions: Sequence[Session],
) -> None:
    """Let others answer the questions of the session, and end it or what runs, as signals do."""
    if environment.attach is None:
        return
    interrupts = services.interrupts

    def interrupt(code: ExitCode) -> None:
        if interrupts.code is not None:
            return
        if code is ExitCode.INTERRUPTED and services.attended:
            interrupts.stop()
        else:
            interrupts.end(code)

    ended = Notice(NOWHERE, "info", INTERRUPTED, "the session is being ended")
    interrupts.tell = partial(following.tell_when_begun, ended)
    # Imported here, because only a session that listens needs it.
    from aish.shell.control_commands import ControlCommands

    assert environment.questions is not None, "it was just made"
    control = ControlCommands(
        services.plan,
        services.plan_for,
        meter,
        requests,
        lambda: sessions[0] if sessions else None,
    )
    handle = RunHandle(
        environment.questions,
        following.tell_when_begun,
        interrupt,
        values=control.values,
        subject="shell",
        commands=control.commands,
        replace_conversation=control.replace_conversation,
        approver=services.environment.approver,
    )
    environment.attach(handle)


@asynccontextmanager
async def _opened(
    services: Services,
    environment: RunEnvironment,
    following: Following,
    said: Said,
    meter: RunMeter,
    requests: RequestQueue,
) -> AsyncGenerator[Session]:
    plan = services.plan
    live: list[LiveServers] = []

    @asynccontextmanager
    async def servers(
        plan: Plan, environment: RunEnvironment, reaper: Reaper
    ) -> AsyncGenerator[Registry]:
        settled = _Settled(environment.emit, services.lines)
        async with open_live_servers(
            plan, environment, reaper, services.person.elicit, settled
        ) as opened:
            live.append(opened)
            yield opened.dynamic_registry.registry

    async with (
        open_toolbox(plan, environment, meter, servers=servers) as box,
        open_resource_group() as resources,
    ):
        ours = replace(box, runtime=_runtime(box.runtime, plan))
        buffer = SessionBuffer(following)
        opened = Opened(
            plan=plan,
            options=services.options,
            environment=environment,
            box=ours,
            servers=live[0],
            models=Models(resources, ours, environment, meter, services.plan_for),
            lines=services.lines,
            out=services.out,
            interrupts=services.interrupts,
            local=_local(services, ours, said, buffer),
            meter=meter,
            frame=frame(cmd_lines=plan.pipeline.shell.cmd_lines),
            attended=services.attended,
            commands=COMMANDS,
            place=services.place,
            outlets_for=services.outlets_for,
            offers=Offers(
                live[0].dynamic_registry.registry, resources.aside, services.lines.refresh
            ),
            requests=requests,
            resume_state=environment.resume_state,
        )
        heard = TurnRecorder(following, environment.folder.keep, NOWHERE)
        session = Session(opened, following, heard, buffer)
        ours.runtime.gate.autonomy = session.autonomous.approves
        live[0].dynamic_registry.begin([live[0].connection(server) for server in plan.servers])
        _begin(session)
        if services.earlier is not None:
            services.earlier.carry_into(session)
        if session.model is not None:
            session.choose(session.model)
        try:
            yield session
        finally:
            if session.files is not None:
                with CancelScope(shield=True):
                    await session.files.close()


def _begin(session: Session) -> None:
    """Emit what the session consists of, and begin its conversation."""
    opened = session.open
    bare = replace(opened.environment, recorder=None)
    infos = opened.servers.dynamic_registry.registry.servers
    session.emit(run_started(opened.plan, opened.options, infos, bare))
    for notice in opened.environment.notices:
        session.emit(notice)
    session.following.tell_early()
    questions = opened.environment.questions
    assert questions is not None, "every session has them"
    questions.withdraw(lambda _: True)
    session.begin()
    if session.model is None and session.open.plan.pipeline.models:
        text = "no model is chosen: `:model` lists them"
        session.emit(Notice(NOWHERE, "info", "no_model", text))


def _runtime(runtime: AgentRuntime, plan: Plan) -> AgentRuntime:
    """The limits of the file; the model is told of a denial and continues (P3).

    A session is not paused: where a run would be, it waits.
    """
    pipeline = plan.pipeline
    on_denied, asking = pipeline.on_denied or "continue", pipeline.asking
    if asking.on_ask == "pause":
        asking = Asking("wait", asking.seconds)
    return replace(runtime, limits=pipeline.loop, on_denied=on_denied, asking=asking)


def _local(services: Services, box: Toolbox, said: Said, buffer: Buffer) -> LocalShell:
    plan, environ = services.plan, services.options.environ
    shell = plan.pipeline.shell
    return LocalShell(
        box.runtime,
        replace(box.tools.local, cwd=Path.cwd(), shell=shell.run),
        said,
        buffer,
        environment=lambda: own_environment(environ, plan.pipeline, plan.secrets),
        asking=services.person.asking,
        cmd_lines=shell.cmd_lines,
        ran=0 if services.earlier is None else services.earlier.ran,
    )


@frozen
class _Settled:
    """Reports once for each server that did not start or was lost for good (M5)."""

    emit: Emit
    lines: Lines

    def __call__(self, server: ServerInfo) -> None:
        if server.state == "failed":
            again = f"`:mcp connect {server.alias}` tries again"
            text = f"mcp server `{server.alias}` is missing ({again}): {server.error}"
            self.emit(Notice(NOWHERE, "warning", "server_missing", text))
        self.lines.refresh()


def _finish(
    services: Services,
    environment: RunEnvironment,
    following: Following,
    state: FinalState,
    begun: float,
) -> Exit:
    if not following.begun:
        # It ended before it could begin; the first event is still emitted first (B12).
        environment.emit(
            run_started(services.plan, services.options, (), replace(environment, recorder=None))
        )
    if environment.recorder is not None:
        from aish.shell.recording import end_recording

        end_recording(environment.recorder, environment.emit)
    end = decide_exit(state)
    earlier = environment.resume_state
    used = following.spending.whole
    if earlier is not None:
        used = earlier.spent.plus(used)
    environment.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=None,
            usage=used.usage or Usage(),
            cost_usd=used.cost_usd,
            seconds=environment.clock.monotonic() - begun,
            denials=following.spending.denials,
            folder=environment.folder.shown,
            calls=following.spending.calls,
        )
    )
    return end


async def hold_session(
    prepared: PreparedSession, lines: Lines, interrupts: Interrupts
) -> tuple[Exit, str | None]:
    """Build the session, or the one that the person resumes after it."""
    sessions: list[Session] = []

    def hold(session: Session) -> None:
        sessions.append(session)
        prepared.deferred.hold(shown(session))

    run = partial(run_session, replace(_services(prepared, lines, interrupts), hold=hold))
    served = prepared.services
    end = await (run() if served is None else served.during(run))
    return end, sessions[-1].resume if sessions else None


def _services(prepared: PreparedSession, lines: Lines, interrupts: Interrupts) -> Services:
    plan, options, outlets = prepared.plan, prepared.options, prepared.outlets
    earlier = prepared.earlier
    assert earlier is None or isinstance(earlier, Earlier), "`find_earlier` makes them"
    person = _person(prepared, lines)
    return Services(
        plan=plan,
        options=options,
        environment=RunEnvironment(
            emit=outlets.emit,
            approver=person.approver,
            clock=prepared.clock,
            folder=prepared.folder,
            environ=options.environ,
            recorder=_recorder(prepared),
            resume_state=None if earlier is None else earlier.resume_state,
            notices=() if prepared.services is None else prepared.services.notices,
            attach=None if prepared.services is None else prepared.services.attach,
            follow=outlets.log.follow,
        ),
        lines=lines,
        out=outlets.out,
        attended=prepared.output.attended,
        plan_for=lambda alias: session_plan(plan.pipeline, options, plan.secrets, alias),
        hold=lambda _: None,
        interrupts=interrupts,
        place=prepared.place,
        outlets_for=outlets.of_run,
        person=person,
        earlier=earlier,
    )


def _recorder(prepared: PreparedSession) -> Recorder | None:
    """The recorder of data for `:export`; a session that keeps nothing on disk has none."""
    if prepared.folder.path is None:
        return None
    choice = CassetteChoice(next_recording(prepared.folder.path), "all", answers_only=True)
    session = load_session(choice)
    opened = open_recorder(
        session, prepared.plan, prepared.options, prepared.folder, prepared.clock
    )
    return prepared.stack.enter_context(opened)


def _person(prepared: PreparedSession, lines: Lines) -> Person:
    """The interface for questions to the person, if present; one question at a time."""
    if not prepared.output.attended:
        return Person(Unattended())
    secrets = prepared.plan.secrets
    turns = Turns(pause=lambda: prepared.outlets.asking(lines))
    return Person(
        TerminalApprover(turns=turns, secrets=secrets),
        CommandAsking(lines, turns, secrets),
        TerminalElicitor(turns, secrets=secrets),
    )
