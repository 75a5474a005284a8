"""Shared by `run` and `record`: from the loaded file to the exit code."""

import gc
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aish.cli.boundary import say
from aish.cli.options import (
    BatchOptions,
    ClusterOptions,
    ControlOptions,
    InputOptions,
    OutputOptions,
    PolicyOptions,
    ReportOptions,
    ResultOptions,
    ResumeOptions,
)
from aish.cli.output_setup import (
    RunOutput,
    Shape,
    check_reports,
    check_writable,
    table_step,
)
from aish.cli.pipeline_options import Given, run_options
from aish.cli.printer import register_masks
from aish.config.inputs import given_inputs
from aish.config.model import Pipeline
from aish.core.errors import AishError, UsageError
from aish.core.events import Exit, Shard
from aish.core.frozen import frozen
from aish.core.phrases import counted
from aish.core.protocols import Clock
from aish.engine.environment import Recorder, RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import require_stdin
from aish.engine.plan.plan import Plan, make_plan, most_patient, stages_calls
from aish.engine.plan.validation.validate import require_steps
from aish.engine.run_folder import RunFolder, RunsPlace, open_folder, resume_words
from aish.engine.steps.context import OpenCarrier
from aish.system.clock import SystemClock

if TYPE_CHECKING:
    from aish.features.staging.queue import StagingQueue


def check_staging(plan: Plan, wanted: Path | None, *, ephemeral: bool) -> None:
    """Check before the run whether staged calls can be stored.

    Raises:
        UsageError: they cannot.
    """
    if wanted is not None:
        check_writable(wanted, "--staged")
    elif ephemeral and stages_calls(plan):
        raise UsageError(
            "`mcp.stage` stores calls for review, and `--ephemeral` stores nothing",
            hint="`--staged FILE` sets the file for them",
        )


def check_asking(plan: Plan, asked: "RunRequest") -> None:
    """Check that questions can stay open in this run (A7, A8).

    Raises:
        UsageError: they cannot.
    """
    on_ask = most_patient(plan)
    if asked.spreading != ClusterOptions() and on_ask != "deny":
        raise UsageError(
            f"`--cluster` and `on_ask: {on_ask}` exclude each other: workers decide on calls by "
            "rules alone",
            hint="`--set on_ask=deny` denies what no rule approves; `mcp.stage` stores calls for "
            "review",
        )
    if asked.telling.ephemeral and on_ask == "pause":
        raise UsageError(
            "`on_ask: pause` keeps the run for later, and `--ephemeral` keeps nothing",
            hint="leave out `--ephemeral`, or wait for the answers with `--set on_ask=wait`",
        )


def book_of(plan: Plan, folder: RunFolder, wanted: Path | None) -> "StagingQueue | None":
    """The file for the staged calls of a run; `None` if no rule stages any.

    Raises:
        UsageError: the file contains the calls of another run.
    """
    if wanted is None and not stages_calls(plan):
        return None
    from aish.features.staging.queue import open_queue

    return open_queue(plan, folder, wanted)


def tell_of(book: "StagingQueue") -> None:
    """Print which calls wait for review, and how to continue."""
    if book.count:
        verb = "waits" if book.count == 1 else "wait"
        say(f"note: {counted(book.count, 'staged call')} {verb} for review: {book.shown}")
        say(f"hint: `aish apply {book.shown} --dry-run` shows what would be executed")


if TYPE_CHECKING:
    from aish.cli.resumption import Resumption
    from aish.engine.resume_state import ResumeState
    from aish.features.control.run_services import ControlRequest, RunServices
    from aish.features.recording.session import CassetteSession


@frozen
class RunRequest:
    """The command-line options of a run; `model` answers every prompt."""

    filling: InputOptions
    ruling: PolicyOptions
    telling: OutputOptions
    writing: ResultOptions = ResultOptions()
    model: str | None = None
    resuming: ResumeOptions = ResumeOptions()
    reporting: ReportOptions = ReportOptions()
    batching: BatchOptions = BatchOptions()
    spreading: ClusterOptions = ClusterOptions()
    controlling: ControlOptions = ControlOptions()


def run_pipeline(pipeline: Pipeline, asked: RunRequest, cassette: "CassetteSession | None") -> int:
    """Run `pipeline`, on a cassette if there is one, and return the exit code."""
    require_steps(pipeline)
    carriers = _cluster(asked, cassette)
    with ExitStack() as stack:
        resumed = _resumption(pipeline, asked, cassette, stack)
        options = _options(pipeline, asked, resumed)
        plan = make_plan(pipeline, options, session=cassette)
        if resumed is None and plan.has_keys:
            from aish.engine.execution.item_source import with_surveys

            options = with_surveys(plan, options)
        if asked.writing.output is not None:
            check_writable(asked.writing.output)
        check_reports(asked.reporting, cassette, plan.secrets)
        register_masks(plan.secrets, quiet=asked.telling.quiet)
        clock, shape = SystemClock(), _shape(asked, plan)
        check_staging(plan, asked.telling.staged, ephemeral=asked.telling.ephemeral)
        check_asking(plan, asked)
        _control_request(plan, asked, cassette)
        resume_state = (
            None if resumed is None else resumed.resume_state(plan, options, shape.format)
        )
        if resumed is not None and resume_state is not None and resume_state.ended:
            return resumed.show_again(plan, shape, clock, quiet=asked.telling.quiet)
        folder = (
            _folder(plan, options, clock, asked.telling)
            if resumed is None
            else resumed.folder(plan)
        )
        recorder: Recorder | None = None
        with folder.beginning():
            if cassette is not None:
                with folder.unless_refused():
                    recorder = stack.enter_context(cassette.opened(plan, options, folder, clock))
            book = book_of(plan, folder, asked.telling.staged)
            services = _services(plan, asked, cassette, options, folder, resume_state, stack)
            before = None if resumed is None else resumed.go_on()
            if services is not None and before is not None:
                services.begin_after(before.events, before.after)
            outlets = RunOutput(
                plan, folder, shape, clock, book, before, () if services is None else services.sinks
            )
        with outlets:
            environment = RunEnvironment(
                emit=outlets.emit,
                approver=outlets.approver(ask=asked.ruling.ask),
                clock=clock,
                folder=folder,
                environ=options.environ,
                recorder=recorder,
                resume_state=resume_state,
                staging=book,
                notices=() if services is None else services.notices,
                attach=None if services is None else services.attach,
                before_pause=None if services is None else services.before_pause,
                follow=outlets.follow,
                opening=outlets.opening,
            )
            # Existing objects are kept for good; the garbage collector handles what the run
            # creates.
            gc.freeze()
            gc.enable()
            end = anyio.run(
                _alone if services is None else services.during,
                partial(execute, plan, options, environment, None, carriers(folder)),
            )
    if book is not None and not asked.telling.quiet:
        tell_of(book)
    if end.name == "interrupted" and cassette is None and folder.path:
        say(_how_to_go_on(pipeline, plan, folder, folder.path))
    return outlets.exit_code(end)


def _control_request(
    plan: Plan, asked: RunRequest, cassette: "CassetteSession | None"
) -> "ControlRequest | None":
    """Where the run listens; `None` if it opens no socket.

    Raises:
        UsageError: the options do not fit together.
    """
    settings, waits = plan.pipeline.control, most_patient(plan) != "deny"
    if asked.controlling == ControlOptions() and not settings.listen and not waits:
        return None
    from aish.cli.control_options import control_request

    replays = cassette is not None and cassette.replays
    return control_request(asked.controlling, settings, waits=waits, replays=replays)


async def _alone(run: Callable[[], Awaitable[Exit]]) -> Exit:
    return await run()


def _services(
    plan: Plan,
    asked: RunRequest,
    cassette: "CassetteSession | None",
    options: RunOptions,
    folder: RunFolder,
    resume_state: "ResumeState | None",
    stack: ExitStack,
) -> "RunServices | None":
    """The sockets of the run and what tells of its questions; a replay has neither."""
    if cassette is not None and cassette.replays:
        return None
    control = _control_request(plan, asked, cassette)
    if control is None and plan.pipeline.control.notify is None:
        return None
    from aish.features.control.run_services import open_services

    spent = None if resume_state is None else resume_state.spent
    return open_services(control, plan, options, folder, SystemClock(), spent, stack)


def _how_to_go_on(pipeline: Pipeline, plan: Plan, folder: RunFolder, path: Path) -> str:
    """The hint after an interruption: `--resume` alone repeats no call with side effects."""
    import shlex

    from aish.engine.resume_state import ResumeRefusedError
    from aish.engine.run_folder import kept_file
    from aish.features.resume.state import read_resume_state
    from aish.journal.reader import read_journal

    command = shlex.join(resume_words(pipeline.file, folder))
    try:
        with read_journal(path / "events.jsonl") as reading:
            read_resume_state(reading, plan, folder.id, read_file=partial(kept_file, path))
    except ResumeRefusedError:
        return (
            "hint: check the result of the calls in flight; "
            f"`{command} --retry-unknown` resumes and makes them again"
        )
    except (AishError, OSError):
        # `--resume` itself reports a damaged journal; the result of the run does not change.
        pass
    return f"hint: `{command}` resumes the run"


def _cluster(
    asked: RunRequest, cassette: "CassetteSession | None"
) -> Callable[[RunFolder], OpenCarrier | None]:
    """What runs items remotely, if requested: its package is imported only then."""
    if asked.spreading == ClusterOptions():
        return lambda _: None
    from aish.cli.cluster_options import cluster_of

    return cluster_of(
        asked.spreading,
        with_cassette=cassette is not None,
        asks=asked.ruling.ask,
        retry_unknown=asked.resuming.retry_unknown,
    )


def _resumption(
    pipeline: Pipeline, asked: RunRequest, cassette: "CassetteSession | None", stack: ExitStack
) -> "Resumption | None":
    """The resumed run, if one is: its package is imported only then."""
    if asked.resuming == ResumeOptions():
        return None
    from aish.cli.resumption import check_flags, resumption

    check_flags(
        asked.resuming, ephemeral=asked.telling.ephemeral, with_cassette=cassette is not None
    )
    place = RunsPlace(pipeline.file.parent, asked.telling.run_dir)
    shard = _shard(asked.batching.shard)
    return resumption(pipeline, asked.resuming, asked.filling, place, stack, shard)


def _options(pipeline: Pipeline, asked: RunRequest, resumed: "Resumption | None") -> RunOptions:
    filling, ruling = asked.filling, asked.ruling
    given = Given(
        given_inputs(filling.inputs, filling.input_texts),
        filling.inputs_file,
        asked.model or filling.model,
        ruling.broad_root,
    )
    options = run_options(
        pipeline,
        given if resumed is None else resumed.filled(given),
        allow=ruling.allow,
        deny=ruling.deny,
        timeout=ruling.timeout,
        lock=ruling.lock,
    )
    require_stdin(pipeline, options.stdin)
    return replace(
        options,
        max_cost_usd=ruling.max_cost_usd,
        max_turns=ruling.max_turns,
        force=asked.resuming.force,
        concurrency=asked.batching.concurrency,
        key_check=not asked.batching.no_key_check,
        shard=_shard(asked.batching.shard) or (resumed.shard if resumed is not None else None),
    )


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    from aish.items.shards import parse_shard

    return parse_shard(text)


def _shape(asked: RunRequest, plan: Plan) -> Shape:
    telling = asked.telling
    return Shape(
        telling.format_,
        output=asked.writing.output,
        stream=telling.stream,
        quiet=telling.quiet,
        verbose=telling.verbose,
        reporting=asked.reporting,
        table=table_step(plan, asked.writing, telling.format_),
        csv_raw=asked.writing.csv_raw,
    )


def _folder(plan: Plan, options: RunOptions, clock: Clock, telling: OutputOptions) -> RunFolder:
    """The new run's folder, with the plan in it."""
    pipeline, mask = plan.pipeline, plan.secrets.mask
    place = RunsPlace(pipeline.file.parent, telling.run_dir)
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=telling.ephemeral, mask=mask)
    with folder.beginning():
        folder.write_plan(pipeline.data)
        if options.stdin:
            folder.keep_stdin(options.stdin)
    return folder
