"""`:run`: a pipeline file, run here."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aish.config.inputs import collect_inputs
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, UsageError
from aish.core.events import NOWHERE, Event, Failure, PipelineSpent, ToolStarted, TurnFinished
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.protocols import Emit
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import require_stdin
from aish.engine.plan.plan import load_checked, make_plan, most_patient
from aish.engine.plan.validation.validate import require_steps
from aish.engine.run_folder import new_folder
from aish.features.launch import Launch, open_run
from aish.shell.command import ShellCommand
from aish.shell.commands.attach import words_of
from aish.shell.session import ShellSession

_FORM = "`:run FILE [k=v …]` is the form"


async def _run(session: ShellSession, rest: str) -> None:
    if not rest:
        raise UsageError(_FORM, hint="for example `:run review.yaml since=v2`")
    words = words_of(rest, _FORM, _FORM)
    await run_file(session, _path(words[0]), words[1:])


def _path(name: str) -> Path:
    return Path(os.path.expanduser(name))  # ruff: ignore[os-path-expanduser] - never raises, as the other does


async def run_file(session: ShellSession, file: Path, inputs: Sequence[str]) -> None:
    """Run a pipeline; it has its own folder, servers and rules, and the denials of this session.

    Its calls are judged by what the files of this session say of the text that was read in it.
    """
    opened = session.open
    pipeline = load_checked(file, ())
    denied = tuple(rule.entry for rule in opened.box.runtime.gate.policy.deny)
    # It does not listen where its file says: the session may do so.
    pipeline = replace(
        pipeline,
        rules=replace(pipeline.rules, deny=pipeline.rules.deny + denied),
        control=replace(pipeline.control, listen=()),
    )
    require_steps(pipeline)
    require_stdin(pipeline, None, hint="`:run` has no stdin: use `aish run`")
    options = RunOptions(
        inputs=_inputs(pipeline, inputs),
        allow_broad_root=opened.options.allow_broad_root,
        may_fetch=opened.options.may_fetch,
        environ=opened.options.environ,
    )
    plan = make_plan(pipeline, options, secrets=opened.plan.secrets)
    clock = opened.environment.clock
    folder = new_folder(plan, options, clock, ephemeral=opened.environment.folder.path is None)
    control = None
    if most_patient(plan) != "deny":
        from aish.features.control.run_services import ControlRequest

        control = ControlRequest()
    launch = Launch(
        plan,
        options,
        folder,
        clock,
        approver=opened.environment.approver,
        staging=None,
        control=control,
        notifies=True,
        around=opened.environment.flow,
    )
    with open_run(launch) as run, opened.interrupts.lend_to_run():
        opened.begin_run(run)
        counting = _Counting(run.log.emit, session.emit, folder.shown)
        run.environment = run.environment.with_emit(counting)
        end = await run.execute(above=opened.meter)
    if end.code:
        failure = Failure(end.name, end.reason, end.hint)
        session.note_failure("failed", failure, ExitCode(end.code))


@frozen
class _Counting:
    """Has the session journal the usage of its runs, which counts for both."""

    emit: Emit
    tell: Emit
    folder: str | None

    def __call__(self, event: Event) -> None:
        if isinstance(event, TurnFinished):
            self._tell_usage(event.usage, event.cost_usd, turns=1)
        elif isinstance(event, ToolStarted):
            self._tell_usage(Usage(0, 0), 0.0, tool_calls=1)
        self.emit(event)

    def _tell_usage(
        self, usage: Usage, cost_usd: float | None, turns: int = 0, tool_calls: int = 0
    ) -> None:
        self.tell(PipelineSpent(NOWHERE, self.folder, turns, tool_calls, usage, cost_usd))


def _inputs(pipeline: Pipeline, texts: Sequence[str]) -> dict[str, JsonValue]:
    for word in texts:
        if "=" not in word:
            hint = "put a value with spaces in quotes: `since='a b'`"
            raise UsageError(f"`{word}` is not NAME=VALUE", hint=hint)
    try:
        return collect_inputs(pipeline, texts, None, str)
    except UsageError as error:
        # There are no options here.
        message = "\n".join(line.removeprefix("-i: ") for line in error.message.split("\n"))
        known = " ".join(f"{name}=…" for name in pipeline.inputs)
        hint = f"`:run {pipeline.file.name} {known}`" if known else "it has no inputs"
        raise UsageError(message, where=str(pipeline.file), hint=hint) from error


RUN = ShellCommand(
    "run FILE [k=v …]",
    "runs a pipeline here, as `aish run` does",
    _run,
    details="It has its own servers, models, rules and run folder. Calls that its rules do not "
    "approve need approval here, and what this session denies is denied there too. Its usage "
    "counts towards the limits of both. Its answers are not part of the conversation.",
    completes="path",
)
