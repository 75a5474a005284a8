"""`aish run FILE`: the main job."""

import gc
from pathlib import Path
from typing import Annotated

import anyio
import typer

from aish.cli.loading import Given, load, run_options
from aish.cli.options import (
    AllowOption,
    AskOption,
    BroadRootOption,
    DenyOption,
    EphemeralOption,
    FileArgument,
    Format,
    InputOption,
    InputsOption,
    ModelOption,
    QuietOption,
    RunDirOption,
    SetOption,
    TimeoutOption,
    VerboseOption,
)
from aish.cli.outlets import Outlets, Shape, check_writable
from aish.run.execute import execute
from aish.run.folder import RunFolder, RunsPlace, open_folder
from aish.run.plan import Plan, make_plan
from aish.run.surroundings import Surroundings
from aish.system.clock import SystemClock
from aish.vocab.protocols import Clock


def command(
    file: FileArgument,
    *,
    inputs: InputOption = None,
    inputs_file: InputsOption = None,
    overrides: SetOption = None,
    model: ModelOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    ask: AskOption = False,
    timeout: TimeoutOption = None,
    format_: Annotated[Format, typer.Option("--format", help="What stdout carries.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the result there.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write the answer to stdout as it comes.")
    ] = False,
    run_dir: RunDirOption = None,
    ephemeral: EphemeralOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Execute a pipeline.

    Example: git diff | aish run pipelines/review.yaml --format json -o review.json
    """
    pipeline = load(file, overrides, quiet=quiet)
    given = Given(inputs, inputs_file, model, broad_root)
    options = run_options(pipeline, given, allow=allow, deny=deny, timeout=timeout, quiet=quiet)
    plan = make_plan(pipeline, options)
    if output is not None:
        check_writable(output)
    clock = SystemClock()
    folder = _folder(plan, clock, run_dir, ephemeral=ephemeral)
    shape = Shape(format_, output=output, stream=stream, quiet=quiet, verbose=verbose)
    with Outlets(plan, folder, shape, clock) as outlets:
        around = Surroundings(
            emit=outlets.emit,
            approver=outlets.approver(ask=ask),
            clock=clock,
            folder=folder,
            environ=options.environ,
        )
        # What is there now stays for good; what the run makes is looked after again.
        gc.freeze()
        gc.enable()
        end = anyio.run(execute, plan, options, around)
    return outlets.exit_code(end)


def _folder(plan: Plan, clock: Clock, run_dir: Path | None, *, ephemeral: bool) -> RunFolder:
    """The new run's folder, with the plan in it."""
    pipeline, mask = plan.pipeline, plan.secrets.mask
    place = RunsPlace(pipeline.file.parent, run_dir)
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=ephemeral, mask=mask)
    folder.write_plan(pipeline.data)
    return folder
