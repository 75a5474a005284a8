"""`:run`: a pipeline file, run here (S5)."""

import shlex
from pathlib import Path

from aish.config.inputs import collect_inputs
from aish.errors import ExitCode, UsageError
from aish.run.execute import execute
from aish.run.folder import RunsPlace, open_folder
from aish.run.options import RunOptions
from aish.run.plan import load_checked, make_plan
from aish.run.surroundings import Surroundings
from aish.shell.command import Command
from aish.shell.session import Session
from aish.vocab.event_parts import Failure


async def _run(session: Session, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"`{rest}` cannot be taken apart: {error}") from error
    if not words:
        raise UsageError("`:run FILE [k=v …]` is the form")
    await run_file(session, Path(words[0]), words[1:])


async def run_file(session: Session, file: Path, inputs: list[str]) -> None:
    """Run a pipeline; it has its own folder, servers and rules, and this session's denials."""
    opened = session.open
    pipeline = load_checked(file, ())
    gate = opened.box.equipment.gate
    options = RunOptions(
        inputs=collect_inputs(pipeline, inputs, None, str),
        deny=tuple(rule.entry.tool for rule in gate.policy.deny if rule.unconditional),
        allow_broad_root=opened.options.allow_broad_root,
        environ=opened.options.environ,
    )
    plan = make_plan(pipeline, options)
    clock = opened.around.clock
    place = RunsPlace(pipeline.file.parent)
    mask = plan.secrets.mask
    ephemeral = opened.around.folder.path is None
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=ephemeral, mask=mask)
    folder.write_plan(pipeline.data)
    with opened.outlets_for(plan, folder, clock) as emit, opened.interrupts.lent():
        around = Surroundings(
            emit=emit,
            approver=opened.around.approver,
            clock=clock,
            folder=folder,
            environ=options.environ,
        )
        end = await execute(plan, options, around)
    if end.code:
        failure = Failure(end.name, end.reason, end.hint)
        session.note_failure("failed", failure, ExitCode(end.code))


RUN = Command(
    "run",
    "FILE [k=v …]",
    "runs a pipeline here, as `aish run` does",
    _run,
    details=(
        "It has its own servers, models, rules and run folder. What its rules do not approve is\n"
        "asked about here, and what this session denies is denied in it too."
    ),
    completes="path",
)
