"""From a loaded file to a session, and from its first event to its last: the composition root."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from aish.agent.conversation import Buffer
from aish.agent.runtime import AgentRuntime
from aish.agent.turn_recorder import TurnRecorder
from aish.core.deltas import Usage
from aish.core.errors import AishError, InternalError
from aish.core.events import NOWHERE, Exit, Notice, RunFinished, ServerInfo
from aish.core.frozen import frozen
from aish.core.protocols import Approver, Emit
from aish.mcp.client.server_requests import Elicit
from aish.run.final import FinalState, decide_exit, status_of
from aish.run.folder import RunsPlace
from aish.run.metering import open_meter
from aish.run.opening import run_started
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.resources import Toolbox, open_toolbox
from aish.run.servers import LiveServers, open_live_servers
from aish.run.surroundings import Surroundings
from aish.run.tools import Servers
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.earlier import Earlier
from aish.shell.following import Following
from aish.shell.frame import frame
from aish.shell.interrupts import Interrupts
from aish.shell.keeper import open_keeper
from aish.shell.lines import Lines
from aish.shell.local.deciding import Asking, Said
from aish.shell.local.running import own_environment
from aish.shell.local.shell import LocalShell
from aish.shell.models import Models, PlanFor
from aish.shell.offers import Offers
from aish.shell.session import Opened, Out, OutletsFor, Session
from aish.shell.taking import take_lines
from aish.shell.totals import with_earlier
from aish.shell.waiting import SessionBuffer
from aish.system.process.reaper import Reaper


@frozen
class Person:
    """What asks the person; `Unattended`, and nothing else, where nobody is there."""

    approver: Approver
    asking: Asking | None = None
    elicit: Elicit | None = None


@frozen
class Desk:
    """What a session is given from outside; `around.approver` asks the person, if one is there.

    `hold` is told of the session once it is there: completion and the prompt look at it.
    """

    plan: Plan
    options: RunOptions
    around: Surroundings
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


async def run_session(desk: Desk) -> Exit:
    """Take lines until the person leaves, the input ends, or a signal comes; then say how it ended.

    The stream of events begins with `run.started` and ends with `run.finished` (B12).
    """
    following = Following(desk.around.emit)
    said = Said(desk.around.approver)
    around = replace(desk.around, emit=following, approver=said)
    begun = around.clock.monotonic()
    state = FinalState(())
    sessions: list[Session] = []
    try:
        with desk.interrupts.session():
            async with _opened(desk, around, following, said) as session:
                sessions.append(session)
                desk.hold(session)
                await take_lines(session)
    except AishError as error:
        state = replace(state, error=error)
    except Exception as error:
        state = replace(state, error=InternalError(f"{type(error).__name__}: {error}"))
        _finish(desk, around, following, state, begun)
        raise
    for session in () if desk.attended else sessions:
        # With nobody there who has seen it, what went wrong on the way decides.
        state = replace(state, records=tuple(session.records), others=tuple(session.errors))
    state = replace(state, signal=desk.interrupts.code)
    return _finish(desk, around, following, state, begun)


@asynccontextmanager
async def _opened(
    desk: Desk, around: Surroundings, following: Following, said: Said
) -> AsyncGenerator[Session]:
    plan = desk.plan
    meter = open_meter(plan, around.carried)
    live: list[LiveServers] = []

    @asynccontextmanager
    async def servers(plan: Plan, around: Surroundings, reaper: Reaper) -> AsyncGenerator[Servers]:
        settled = _Settled(around.emit, desk.lines)
        async with open_live_servers(plan, around, reaper, desk.person.elicit, settled) as opened:
            live.append(opened)
            yield opened.dynamic_registry.registry

    async with (
        open_toolbox(plan, around, meter, servers=servers) as box,
        open_keeper() as keeper,
    ):
        ours = replace(box, runtime=_runtime(box.runtime, plan))
        buffer = SessionBuffer(following)
        opened = Opened(
            plan=plan,
            options=desk.options,
            around=around,
            box=ours,
            servers=live[0],
            models=Models(keeper, ours, around, meter, desk.plan_for),
            lines=desk.lines,
            out=desk.out,
            interrupts=desk.interrupts,
            local=_local(desk, ours, said, buffer),
            meter=meter,
            frame=frame(cmd_lines=plan.pipeline.shell.cmd_lines),
            attended=desk.attended,
            commands=COMMANDS,
            place=desk.place,
            outlets_for=desk.outlets_for,
            offers=Offers(live[0].dynamic_registry.registry, keeper.aside, desk.lines.refresh),
            carried=around.carried,
        )
        heard = TurnRecorder(following, around.folder.keep, NOWHERE)
        session = Session(opened, following, heard, buffer)
        ours.runtime.gate.autonomy = session.norris.approves
        live[0].dynamic_registry.begin([live[0].connection(server) for server in plan.servers])
        _begin(session)
        if desk.earlier is not None:
            desk.earlier.carry_into(session)
        if session.model is not None:
            session.choose(session.model)
        yield session


def _begin(session: Session) -> None:
    """Say what the session is made of, and begin its conversation."""
    opened = session.open
    bare = replace(opened.around, tape=None)
    infos = opened.servers.dynamic_registry.registry.servers
    session.emit(run_started(opened.plan, opened.options, infos, bare))
    session.begin()
    if session.model is None and session.open.plan.pipeline.models:
        text = "no model is chosen: `:model` lists them"
        session.emit(Notice(NOWHERE, "info", "no_model", text))


def _runtime(runtime: AgentRuntime, plan: Plan) -> AgentRuntime:
    """The file's own bounds; a denial is told to the model, who goes on (P3)."""
    on_denied = plan.pipeline.on_denied or "continue"
    return replace(runtime, limits=plan.pipeline.loop, on_denied=on_denied)


def _local(desk: Desk, box: Toolbox, said: Said, buffer: Buffer) -> LocalShell:
    plan, environ = desk.plan, desk.options.environ
    shell = plan.pipeline.shell
    return LocalShell(
        box.runtime,
        replace(box.tools.local, cwd=Path.cwd(), shell=shell.run),
        said,
        buffer,
        environment=lambda: own_environment(environ, plan.pipeline, plan.secrets),
        asking=desk.person.asking,
        cmd_lines=shell.cmd_lines,
        ran=0 if desk.earlier is None else desk.earlier.ran,
    )


@frozen
class _Settled:
    """Tells once of a server that did not come up, or that is lost for good (M5)."""

    emit: Emit
    lines: Lines

    def __call__(self, server: ServerInfo) -> None:
        if server.state == "failed":
            again = f"`:mcp connect {server.alias}` tries again"
            text = f"mcp server `{server.alias}` is missing ({again}): {server.error}"
            self.emit(Notice(NOWHERE, "warning", "server_missing", text))
        self.lines.refresh()


def _finish(
    desk: Desk, around: Surroundings, following: Following, state: FinalState, begun: float
) -> Exit:
    if not following.begun:
        # It ended before it could begin; the first event comes first all the same (B12).
        around.emit(run_started(desk.plan, desk.options, (), replace(around, tape=None)))
    if around.tape is not None:
        from aish.shell.recording import end_recording

        end_recording(around.tape, around.emit)
    end = decide_exit(state)
    earlier = around.carried
    used = with_earlier(earlier, following.spending.whole)
    around.emit(
        RunFinished(
            status=status_of(end.code),
            exit=end,
            outputs=None,
            usage=used.usage or Usage(),
            cost_usd=used.cost_usd,
            seconds=around.clock.monotonic() - begun,
            denials=(*(earlier.denials if earlier else ()), *following.denials),
            folder=around.folder.shown,
        )
    )
    return end
