"""What `run` and `record` share: from the loaded file to the exit code."""

import gc
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol

import anyio

from aish.cli.loading import Given, run_options
from aish.cli.option_groups import Filling, Ruling, Telling
from aish.cli.outlets import Outlets, Shape, check_writable
from aish.config.pipeline import Pipeline
from aish.run.execute import execute
from aish.run.folder import RunFolder, RunsPlace, open_folder
from aish.run.options import RunOptions
from aish.run.plan import Plan, Played, make_plan
from aish.run.surroundings import AnyTape, Surroundings
from aish.system.clock import SystemClock
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Clock


class Film(Played, Protocol):
    """A cassette to be played or recorded, `run.taping.Reel`: its room is imported if needed."""

    def opened(
        self, plan: Plan, options: RunOptions, folder: RunFolder, clock: Clock
    ) -> AbstractContextManager[AnyTape]:
        """The tape of the run."""
        ...


@frozen
class Asked:
    """What the command line said of a run; `model` answers every prompt."""

    filling: Filling
    ruling: Ruling
    telling: Telling
    output: Path | None = None
    model: str | None = None


def run_pipeline(pipeline: Pipeline, asked: Asked, film: Film | None) -> int:
    """Run `pipeline`, on a cassette if there is one, and return the exit code."""
    filling, ruling, telling = asked.filling, asked.ruling, asked.telling
    given = Given(
        filling.inputs, filling.inputs_file, asked.model or filling.model, ruling.broad_root
    )
    options = run_options(
        pipeline,
        given,
        allow=ruling.allow,
        deny=ruling.deny,
        timeout=ruling.timeout,
        quiet=telling.quiet,
        lock=ruling.lock,
    )
    plan = make_plan(pipeline, options, reel=film)
    if asked.output is not None:
        check_writable(asked.output)
    clock = SystemClock()
    folder = _folder(plan, clock, telling)
    shape = Shape(
        telling.format_,
        output=asked.output,
        stream=telling.stream,
        quiet=telling.quiet,
        verbose=telling.verbose,
    )
    with ExitStack() as stack:
        tape: AnyTape | None = None
        if film is not None:
            tape = stack.enter_context(film.opened(plan, options, folder, clock))
        outlets = stack.enter_context(Outlets(plan, folder, shape, clock))
        around = Surroundings(
            emit=outlets.emit,
            approver=outlets.approver(ask=ruling.ask),
            clock=clock,
            folder=folder,
            environ=options.environ,
            tape=tape,
        )
        # What is there now stays for good; what the run makes is looked after again.
        gc.freeze()
        gc.enable()
        end = anyio.run(execute, plan, options, around)
    return outlets.exit_code(end)


def _folder(plan: Plan, clock: Clock, telling: Telling) -> RunFolder:
    """The new run's folder, with the plan in it."""
    pipeline, mask = plan.pipeline, plan.secrets.mask
    place = RunsPlace(pipeline.file.parent, telling.run_dir)
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=telling.ephemeral, mask=mask)
    folder.write_plan(pipeline.data)
    return folder
