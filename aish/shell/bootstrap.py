"""Composition root of a session: from a loaded file through its first event to its last.

Imported while the prompt is already shown.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import CancelScope

from aish.agent.conversation import Buffer
from aish.agent.runtime import AgentRuntime
from aish.agent.turn_recorder import TurnRecorder
from aish.core.errors import AishError, ExitCode, InternalError
from aish.core.events import NOWHERE, Exit, Notice, ServerInfo
from aish.core.frozen import frozen, slotted
from aish.core.protocols import Approver, Asking, Emit
from aish.engine.cancellation import INTERRUPTED
from aish.engine.environment import Recorder, RunEnvironment, RunHandle
from aish.engine.execution.run import finish_run, run_started
from aish.engine.final import FinalState, decide_exit
from aish.engine.limits import RunMeter, open_meter
from aish.engine.plan.plan import Plan, follows_flows
from aish.engine.resources.resources import Toolbox, open_toolbox
from aish.engine.resources.servers import LiveServers, open_live_servers
from aish.features.recording.session import CassetteChoice, load_session, open_recorder
from aish.mcp.client.registry import Registry
from aish.mcp.client.server_requests import Elicit
from aish.policy.questions import Questions
from aish.shell.cancellation import Interrupts
from aish.shell.input.lines import Lines
from aish.shell.local.approval import CommandAsking, RepeatingApprover
from aish.shell.local.shell import LocalShell, own_environment
from aish.shell.loop import take_lines
from aish.shell.pending_input import SessionBuffer
from aish.shell.prepared_session import PreparedSession, session_plan
from aish.shell.recording import next_recording
from aish.shell.request_queue import RequestQueue
from aish.shell.resource_group import open_resource_group
from aish.shell.server_offers import Offers
from aish.shell.session import SessionServices, ShellSession, frame
from aish.shell.session_models import SessionModels
from aish.shell.stats import SessionStats
from aish.shell.status_line import make_status_line
from aish.system.process.reaper import Reaper
from aish.terminal.approver import TerminalApprover
from aish.terminal.elicitation import TerminalElicitor
from aish.terminal.tty import Turns
from aish.terminal.unattended import Unattended

if TYPE_CHECKING:
    from aish.policy.flow import RunFlow


@frozen
class ShellPerson:
    approver: Approver
    asking: CommandAsking | None = None
    elicit: Elicit | None = None


async def hold_session(
    prepared: PreparedSession, lines: Lines, interrupts: Interrupts
) -> tuple[Exit, str | None]:
    """Handle lines until the person leaves, the input ends or a signal arrives.

    Returns the end of the session, and the session that the person resumes after it. The stream of
    events begins with `run.started` and ends with `run.finished`.
    """
    earlier, services, person = prepared.earlier, prepared.services, _person(prepared, lines)
    following, switch = SessionStats(prepared.outlets.emit), RepeatingApprover(person.approver)
    if earlier is not None:
        following.spending.begin(earlier.resume_state)
    # A killed session may have left questions, which nobody waits for.
    unanswered = () if earlier is None else tuple(earlier.unanswered.values())
    environment = RunEnvironment(
        emit=following,
        approver=switch,
        clock=prepared.clock,
        folder=prepared.folder,
        environ=prepared.options.environ,
        recorder=_recorder(prepared),
        resume_state=None if earlier is None else earlier.resume_state,
        questions=Questions(following, prepared.clock, unanswered),
        notices=() if services is None else services.notices,
        attach=None if services is None else services.attach,
        follow=prepared.outlets.log.follow,
        flow=_flow(prepared),
    )
    requests = RequestQueue(lines.interrupt)
    run = _SessionRun(prepared, person, lines, interrupts, environment, following, switch, requests)
    end = await (run.to_its_end() if services is None else services.during(run.to_its_end))
    return end, run.sessions[-1].resume if run.sessions else None


def _flow(prepared: PreparedSession) -> "RunFlow | None":
    """Follow the sources of text, if the file asks for it."""
    if not follows_flows(prepared.plan):
        return None
    from aish.engine.flow_scope import run_flow

    earlier = prepared.earlier
    return run_flow(prepared.plan, {} if earlier is None else earlier.given.all)


@slotted
class _SessionRun:
    """A session from its first event to its last; `sessions` has it once it has begun."""

    prepared: PreparedSession
    person: ShellPerson
    lines: Lines
    interrupts: Interrupts
    environment: RunEnvironment
    following: SessionStats
    said: RepeatingApprover
    requests: RequestQueue
    sessions: list[ShellSession] = field(default_factory=list)

    async def to_its_end(self) -> Exit:
        begun = self.environment.clock.monotonic()
        state = FinalState(())
        try:
            with self.interrupts.session():
                await self._hold()
        except AishError as error:
            state = replace(state, error=error)
        except Exception as error:
            state = replace(state, error=InternalError(f"{type(error).__name__}: {error}"))
            self._finish(state, begun)
            raise
        finally:
            self.requests.close()
        for session in () if self.prepared.output.attended else self.sessions:
            # In an unattended session, errors of earlier lines decide the exit code.
            state = replace(state, records=tuple(session.records), others=tuple(session.errors))
        return self._finish(replace(state, signal=self.interrupts.code), begun)

    async def _hold(self) -> None:
        meter = open_meter(self.prepared.plan, self.environment.resume_state)
        self._attach(meter)
        async with self._open(meter) as session:
            self.sessions.append(session)
            self.prepared.deferred.hold(make_status_line(session))
            await take_lines(session)

    def _plan_for(self, alias: str) -> Plan:
        plan, options = self.prepared.plan, self.prepared.options
        return session_plan(plan.pipeline, options, plan.secrets, alias)

    def _attach(self, meter: RunMeter) -> None:
        """Let others answer the questions of the session, and end it or what runs, as signals."""
        environment, interrupts = self.environment, self.interrupts
        if environment.attach is None:
            return

        def interrupt(code: ExitCode) -> None:
            if interrupts.code is not None:
                return
            if code is ExitCode.INTERRUPTED and self.prepared.output.attended:
                interrupts.stop()
            else:
                interrupts.end(code)

        ended = Notice(NOWHERE, "info", INTERRUPTED, "the session is being ended")
        interrupts.tell = partial(self.following.tell_when_begun, ended)
        # Imported here, because only a session that listens needs it.
        from aish.shell.control_commands import ControlCommands

        assert environment.questions is not None, "it was just made"
        control = ControlCommands(
            self.prepared.plan,
            self._plan_for,
            meter,
            self.requests,
            lambda: self.sessions[0] if self.sessions else None,
        )
        handle = RunHandle(
            environment.questions,
            self.following.tell_when_begun,
            interrupt,
            values=control.values,
            subject="shell",
            commands=control.commands,
            replace_conversation=control.replace_conversation,
            approver=self.person.approver,
        )
        environment.attach(handle)

    @asynccontextmanager
    async def _open(self, meter: RunMeter) -> AsyncGenerator[ShellSession]:
        prepared, environment, lines = self.prepared, self.environment, self.lines
        plan, following = prepared.plan, self.following
        live: list[LiveServers] = []

        @asynccontextmanager
        async def servers(
            plan: Plan, environment: RunEnvironment, reaper: Reaper
        ) -> AsyncGenerator[Registry]:
            settled = _ServerReports(environment.emit, lines)
            async with open_live_servers(
                plan, environment, reaper, self.person.elicit, settled
            ) as opened:
                live.append(opened)
                yield opened.dynamic_registry.registry

        async with (
            open_toolbox(plan, environment, meter, servers=servers) as box,
            open_resource_group() as resources,
        ):
            ours = replace(box, runtime=_runtime(box.runtime, plan))
            registry, buffer = live[0].dynamic_registry, SessionBuffer(following)
            opened = SessionServices(
                plan=plan,
                options=prepared.options,
                environment=environment,
                box=ours,
                servers=live[0],
                models=SessionModels(resources, ours, environment, meter, self._plan_for),
                lines=lines,
                out=prepared.outlets.out,
                interrupts=self.interrupts,
                local=self._local(ours, buffer),
                meter=meter,
                frame=frame(cmd_lines=plan.pipeline.shell.cmd_lines),
                attended=prepared.output.attended,
                place=prepared.place,
                begin_run=prepared.outlets.begin_run,
                offers=Offers(registry.registry, resources.aside, lines.refresh),
                requests=self.requests,
            )
            heard = TurnRecorder(following, environment.folder.keep, NOWHERE)
            session = ShellSession(opened, following, heard, buffer)
            ours.runtime.gate.autonomy = session.autonomous.approves
            registry.begin([live[0].connection(server) for server in plan.servers])
            _begin(session)
            if prepared.earlier is not None:
                prepared.earlier.carry_into(session)
            if session.model is not None:
                session.choose(session.model)
            try:
                yield session
            finally:
                if session.files is not None:
                    with CancelScope(shield=True):
                        await session.files.close()

    def _local(self, box: Toolbox, buffer: Buffer) -> LocalShell:
        plan, environ = self.prepared.plan, self.prepared.options.environ
        shell, earlier = plan.pipeline.shell, self.prepared.earlier
        return LocalShell(
            box.runtime,
            replace(box.tools.local, cwd=Path.cwd(), shell=shell.run),
            self.said,
            buffer,
            environment=lambda: own_environment(environ, plan.pipeline, plan.secrets),
            asking=self.person.asking,
            cmd_lines=shell.cmd_lines,
            ran=0 if earlier is None else earlier.ran,
        )

    def _finish(self, state: FinalState, begun: float) -> Exit:
        environment = self.environment
        if not self.following.begun:
            # It ended before it could begin; the first event is still emitted first.
            bare = replace(environment, recorder=None)
            environment.emit(run_started(self.prepared.plan, self.prepared.options, (), bare))
        if environment.recorder is not None:
            from aish.shell.recording import end_recording

            end_recording(environment.recorder, environment.emit)
        return finish_run(environment, decide_exit(state), begun, self.following.spending)


def _begin(session: ShellSession) -> None:
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
    """The limits of the file; the model is told of a denial and continues.

    A session is not paused: where a run would be, it waits.
    """
    pipeline = plan.pipeline
    on_denied, asking = pipeline.on_denied or "continue", pipeline.asking
    if asking.on_ask == "pause":
        asking = Asking("wait", asking.seconds)
    return replace(runtime, limits=pipeline.loop, on_denied=on_denied, asking=asking)


@frozen
class _ServerReports:
    """Reports once for each server that did not start or was lost for good."""

    emit: Emit
    lines: Lines

    def __call__(self, server: ServerInfo) -> None:
        if server.state == "failed":
            again = f"`:mcp connect {server.alias}` tries again"
            text = f"mcp server `{server.alias}` is missing ({again}): {server.error}"
            self.emit(Notice(NOWHERE, "warning", "server_missing", text))
        self.lines.refresh()


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


def _person(prepared: PreparedSession, lines: Lines) -> ShellPerson:
    """The interface for questions to the person, if present; one question at a time."""
    if not prepared.output.attended:
        return ShellPerson(Unattended())
    secrets = prepared.plan.secrets
    turns = Turns(pause=lambda: prepared.outlets.pause_for_question(lines))
    return ShellPerson(
        TerminalApprover(turns=turns, secrets=secrets),
        CommandAsking(lines, turns, secrets),
        TerminalElicitor(turns, secrets=secrets),
    )
