"""`:run`: a pipeline file, run here (S5)."""

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aish.config.inputs import collect_inputs
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, UsageError
from aish.core.events import NOWHERE, Event, Failure, PipelineSpent, ToolStarted, TurnFinished
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.protocols import Clock, Emit
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import require_stdin
from aish.engine.plan.plan import Plan, load_checked, make_plan, most_patient
from aish.engine.plan.validation.validate import require_steps
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder
from aish.shell.command import Command
from aish.shell.session import Session

if TYPE_CHECKING:
    from aish.features.control.run_services import RunServices

_FORM = "`:run FILE [k=v …]` is the form"


async def _run(session: Session, rest: str) -> None:
    if not rest:
        raise UsageError(_FORM, hint="for example `:run review.yaml since=v2`")
    words = [rest] if _path(rest).is_file() else _words(rest)
    await run_file(session, _path(words[0]), words[1:])


def _words(rest: str) -> list[str]:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"`{rest}` cannot be parsed: {error}", hint=_FORM) from error
    if not words or not words[0]:
        raise UsageError(_FORM)
    return words


def _path(name: str) -> Path:
    return Path(os.path.expanduser(name))  # ruff: ignore[os-path-expanduser] - never raises, as the other does


async def run_file(session: Session, file: Path, inputs: Sequence[str]) -> None:
    """Run a pipeline; it has its own folder, servers and rules, and the denials of this session."""
    opened = session.open
    pipeline = _with_denials(load_checked(file, ()), session)
    require_steps(pipeline)
    require_stdin(pipeline, None, hint="`:run` has no stdin: use `aish run`")
    options = RunOptions(
        inputs=_inputs(pipeline, inputs),
        allow_broad_root=opened.options.allow_broad_root,
        environ=opened.options.environ,
    )
    plan = make_plan(pipeline, options, secrets=opened.plan.secrets)
    clock = opened.environment.clock
    place, mask = RunsPlace(pipeline.file.parent), plan.secrets.mask
    ephemeral = opened.environment.folder.path is None
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=ephemeral, mask=mask)
    with folder.beginning():
        folder.write_plan(pipeline.data)
    with ExitStack() as stack:
        services = _services(plan, options, folder, clock, stack)
        log = stack.enter_context(
            opened.outlets_for(plan, folder, clock, () if services is None else services.sinks)
        )
        stack.enter_context(opened.interrupts.lent())
        environment = RunEnvironment(
            emit=_Counting(log.emit, session.emit, folder.shown),
            approver=opened.environment.approver,
            clock=clock,
            folder=folder,
            environ=options.environ,
            notices=() if services is None else services.notices,
            attach=None if services is None else services.attach,
            before_pause=None if services is None else services.before_pause,
            follow=log.follow,
        )
        run = partial(execute, plan, options, environment, above=opened.meter)
        end = await (run() if services is None else services.during(run))
    if end.code:
        failure = Failure(end.name, end.reason, end.hint)
        session.note_failure("failed", failure, ExitCode(end.code))


def _services(
    plan: Plan, options: RunOptions, folder: RunFolder, clock: Clock, stack: ExitStack
) -> "RunServices | None":
    """The socket of a run that waits for answers (A7), and what tells of them (A12).

    It does not listen where its file says: the session may do so.
    """
    control, waits = plan.pipeline.control, most_patient(plan) != "deny"
    if not waits and control.notify is None:
        return None
    from aish.features.control.run_services import ControlRequest, open_services

    own = replace(plan, pipeline=replace(plan.pipeline, control=replace(control, listen=())))
    return open_services(
        ControlRequest() if waits else None, own, options, folder, clock, None, stack
    )


@frozen
class _Counting:
    """Has the session journal the usage of its runs, which counts for both (B8)."""

    emit: Emit
    tell: Emit
    folder: str | None

    def __call__(self, event: Event) -> None:
        if isinstance(event, TurnFinished):
            self._spent(event.usage, event.cost_usd, turns=1)
        elif isinstance(event, ToolStarted):
            self._spent(Usage(0, 0), 0.0, tool_calls=1)
        self.emit(event)

    def _spent(
        self, usage: Usage, cost_usd: float | None, turns: int = 0, tool_calls: int = 0
    ) -> None:
        self.tell(PipelineSpent(NOWHERE, self.folder, turns, tool_calls, usage, cost_usd))


def _with_denials(pipeline: Pipeline, session: Session) -> Pipeline:
    """Apply the denials of a session to its pipelines and their sub-pipelines."""
    denied = tuple(rule.entry for rule in session.open.box.runtime.gate.policy.deny)
    rules = pipeline.rules
    return replace(pipeline, rules=replace(rules, deny=rules.deny + denied))


def _inputs(pipeline: Pipeline, given: Sequence[str]) -> dict[str, JsonValue]:
    for word in given:
        if "=" not in word:
            hint = "put a value with spaces in quotes: `since='a b'`"
            raise UsageError(f"`{word}` is not NAME=VALUE", hint=hint)
    try:
        return collect_inputs(pipeline, given, None, str)
    except UsageError as error:
        # There are no options here.
        said = "\n".join(line.removeprefix("-i: ") for line in error.message.split("\n"))
        known = " ".join(f"{name}=…" for name in pipeline.inputs)
        hint = f"`:run {pipeline.file.name} {known}`" if known else "it has no inputs"
        raise UsageError(said, where=str(pipeline.file), hint=hint) from error


RUN = Command(
    "run",
    "FILE [k=v …]",
    "runs a pipeline here, as `aish run` does",
    _run,
    details=(
        "It has its own servers, models, rules and run folder. Calls that its rules do not approve "
        "need approval here, and what this session denies is denied there too. Its usage counts "
        "towards the limits of both. Its answers are not part of the conversation."
    ),
    completes="path",
)
