"""Services of the hub beside its clients: control API, questions, staged calls.

They are composed as for `aish run` and `aish shell`. Without the control API, events are only
notices.
"""

import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from aish import __version__
from aish.core.errors import ExitCode, UsageError
from aish.core.events import (
    NOWHERE,
    AskEnded,
    AskReceived,
    Event,
    Exit,
    Notice,
    Place,
    RunFinished,
    RunStarted,
    Stamped,
)
from aish.core.frozen import frozen
from aish.core.messages import Usage
from aish.core.protocols import Clock, Emit, Follow
from aish.engine.environment import ControlCommand, RunHandle
from aish.engine.final import status_of
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.features.approvals.hub_questions import QuestionFolder
from aish.features.control.run_services import ControlRequest, RunServices, open_services
from aish.output.event_log import EventLog, Sink, mask_event
from aish.serve.calls.staged_calls import HubStaging
from aish.serve.calls.waiting_calls import HubQuestions
from aish.serve.records.audit import AuditError, AuditEvent, AuditLog
from aish.serve.records.call_events import CallEvents
from aish.serve.state import ServeState
from aish.system.files import private_folder
from aish.system.user import login_name

T = TypeVar("T")


@frozen
class HubServices:
    """The open services of a hub; `emit` takes its events, `call_events` those of its clients.

    `staging` stores staged calls. `notices` are shown at the start, and `follow` passes events on.
    """

    emit: Emit
    call_events: CallEvents
    questions: HubQuestions
    staging: HubStaging
    folder: RunFolder
    control: RunServices | None
    follow: Follow

    def begin(
        self,
        plan: Plan,
        interrupt: Callable[[ExitCode], None],
        commands: Mapping[str, ControlCommand],
        forget_sources: Callable[[str, str], Sequence[str]],
    ) -> None:
        """Begin: from now on the hub can be queried, answered and ended.

        `interrupt` ends it as a signal does; the hub handles the other commands itself.
        """
        if self.control is None:
            return
        # What was asked before is folded first, and shown again.
        earlier = self.questions.earlier
        self.control.begin_after(lambda _types, _last: earlier, 0)
        handle = RunHandle(
            self.questions,
            self._emit_from_outside,
            interrupt,
            subject="serve",
            commands=commands,
            caller_waits=self.questions.is_waited_for,
            forget_sources=forget_sources,
        )
        self.control.attach(handle)
        self.emit(
            RunStarted(
                aish=__version__,
                pipeline=plan.pipeline.name,
                digest=plan.pipeline.digest,
                models=(),
                servers=(),
                rules=plan.policy.infos(),
                limits={},
                inputs={},
                folder=self.folder.shown,
                uid=os.getuid(),
                user=login_name(),
            )
        )
        for notice in self.control.notices:
            # Clients are listened to as well.
            self.emit(replace(notice, text=f"control API: {notice.text}"))

    def _emit_from_outside(self, event: Event) -> None:
        if isinstance(event, AskReceived | AskEnded):
            self.questions.keep(event)
        self.emit(event)

    def end(self, code: int, seconds: float) -> None:
        """End; open questions can still be answered."""
        if self.control is None:
            return
        name = ExitCode(code).name.lower()
        end = Exit(code, name, retryable=False, reason="the server has ended")
        waiting = self.questions.waiting
        self.emit(
            RunFinished(
                status_of(code),
                end,
                None,
                Usage(),
                None,
                seconds,
                {},
                self.folder.shown,
                waiting=waiting,
            )
        )

    async def serve_with_control(self, serve: Callable[[], Awaitable[T]]) -> T:
        """Serve clients and the control API."""
        return await (serve() if self.control is None else self.control.during(serve))


@contextmanager
def open_hub_services(
    asked: ControlRequest | None,
    plan: Plan,
    environ: Mapping[str, str],
    state: ServeState,
    audit: AuditLog,
    clock: Clock,
    emit: Emit,
) -> Generator[HubServices]:
    """Open the questions of a hub, its staged calls, and its control sockets if it has any.

    `emit` shows notices to the person who runs it.

    Raises:
        UsageError: an address that was asked for cannot be opened, or the state cannot be read.
    """
    secrets = plan.secrets
    with ExitStack() as stack:
        try:
            path = private_folder(state.path / state.id)
        except OSError as error:
            message = f"the folder for questions cannot be made: {error.strerror or error}"
            raise UsageError(message, where=str(state.path)) from error
        folder = RunFolder(state.id, path, secrets.mask)
        questions = HubQuestions(
            QuestionFolder(path),
            clock,
            # A reload may bring secrets where there were none.
            lambda event: mask_event(event, secrets) if secrets else event,
            partial(_record, audit, emit),
        )
        staging = HubStaging(lambda: plan, folder, os.getpid())
        stack.callback(staging.close)
        control = None
        if asked is not None or plan.pipeline.control.notify is not None:
            options = RunOptions(environ=environ)
            control = open_services(asked, plan, options, folder, clock, None, stack)
        watching = () if control is None else control.sinks
        log = EventLog([_Notices(emit), *watching], clock=clock, secrets=secrets)
        stack.callback(log.close)
        emit = log.emit
        questions.listen(emit)
        try:
            questions.begin()
        except OSError as error:
            message = f"the questions cannot be read: {error.strerror or error}"
            raise UsageError(message, where=str(path)) from error
        staging.notify = emit
        is_followed = (lambda: True) if watching else log.is_followed
        events = CallEvents(emit, clock, secrets.mask, staging.put_down, is_followed)
        yield HubServices(emit, events, questions, staging, folder, control, log.follow)


def _record(
    audit: AuditLog, emit: Emit, event: AuditEvent, place: Place, about: Mapping[str, str]
) -> None:
    caller = {"client": place.client or place.step or "", "session": place.session or ""}
    try:
        audit.note(event, None, **caller, **about)
    except AuditError as error:
        # The call itself has records of its own, and is not made without them.
        emit(Notice(NOWHERE, "error", "audit_lost", str(error)))


class _Notices(Sink):
    """The sink that shows notices to the person who runs the server."""

    name = "the notices"

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def __call__(self, stamped: Stamped) -> None:
        self._emit(stamped.event)
