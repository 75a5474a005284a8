"""Shared by `run` and `record`: from the loaded file to the exit code."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aish.cli.boundary import say
from aish.cli.options import ClusterOptions, ResumeOptions, RunRequest
from aish.cli.output_setup import RunOutput, check_reports, check_writable, table_step
from aish.cli.pipeline_options import control_request, run_options, seconds_of
from aish.cli.printer import register_masks
from aish.config.model import Pipeline
from aish.core.errors import AishError, UsageError
from aish.core.phrases import counted
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import require_stdin
from aish.engine.plan.plan import Plan, make_plan, most_patient, stages_calls
from aish.engine.plan.validation.validate import require_steps
from aish.engine.run_folder import RunFolder, RunsPlace, new_folder, resume_words
from aish.engine.steps.context import OpenCarrier
from aish.features.launch import EarlierPart, Launch, open_run, with_key_surveys
from aish.system.clock import SystemClock

if TYPE_CHECKING:
    # Only runs that have these import them.
    from aish.cli.resumption import Resumption
    from aish.features.recording.session import CassetteSession
    from aish.features.staging.queue import StagingQueue


def check_staging(plan: Plan, wanted: Path | None, *, ephemeral: bool) -> None:
    if wanted is not None:
        check_writable(wanted, "--staged")
    elif ephemeral and stages_calls(plan):
        raise UsageError(
            "`mcp.stage` stores calls for review, and `--ephemeral` stores nothing",
            hint="`--staged FILE` sets the file for them",
        )


def check_asking(plan: Plan, asked: RunRequest) -> None:
    """Check that questions can stay open in this run."""
    on_ask = most_patient(plan)
    if asked.cluster != ClusterOptions() and on_ask != "deny":
        raise UsageError(
            f"`--cluster` and `on_ask: {on_ask}` exclude each other: workers decide on calls by "
            "rules alone",
            hint="`--set on_ask=deny` denies what no rule approves; `mcp.stage` stores calls for "
            "review",
        )
    if asked.output.ephemeral and on_ask == "pause":
        raise UsageError(
            "`on_ask: pause` keeps the run for later, and `--ephemeral` keeps nothing",
            hint="leave out `--ephemeral`, or wait for the answers with `--set on_ask=wait`",
        )


def tell_of(book: "StagingQueue") -> None:
    if book.count:
        verb = "waits" if book.count == 1 else "wait"
        say(f"note: {counted(book.count, 'staged call')} {verb} for review: {book.shown}")
        say(f"hint: `aish apply {book.shown} --dry-run` shows what would be executed")


def run_pipeline(pipeline: Pipeline, asked: RunRequest, cassette: "CassetteSession | None") -> int:
    """Run `pipeline`, on a cassette if there is one, and return the exit code."""
    require_steps(pipeline)
    carriers = _cluster(asked, cassette)
    with ExitStack() as stack:
        resumed = _resumption(pipeline, asked, cassette, stack)
        options = _options(pipeline, asked, resumed)
        plan = make_plan(pipeline, options, session=cassette)
        if resumed is None:
            options = with_key_surveys(plan, options)
        if asked.result.output is not None:
            check_writable(asked.result.output)
        check_reports(asked.reports, cassette, plan.secrets)
        register_masks(plan.secrets, quiet=asked.output.quiet)
        table = table_step(plan, asked.result, asked.output.output_format)
        check_staging(plan, asked.output.staged, ephemeral=asked.output.ephemeral)
        check_asking(plan, asked)
        control, clock = (
            control_request(
                asked.control,
                pipeline.control,
                waits=most_patient(plan) != "deny",
                replays=cassette is not None and cassette.replays,
            ),
            SystemClock(),
        )
        earlier: EarlierPart | None = None
        if resumed is None:
            place, ephemeral = (
                RunsPlace(pipeline.file.parent, asked.output.run_dir),
                asked.output.ephemeral,
            )
            folder = new_folder(plan, options, clock, place, ephemeral=ephemeral)
        else:
            earlier = resumed.earlier(plan, options, asked.output.output_format)
            folder = resumed.folder(plan)
            if earlier.state.ended:
                launch = Launch(plan, options, folder, clock, earlier=earlier, staging=None)
                return resumed.show_again(launch, asked, table)
            folder.write_plan(pipeline.data)
        launch = Launch(
            plan,
            options,
            folder,
            clock,
            cassette=cassette,
            earlier=earlier,
            staged=asked.output.staged,
            control=control,
            notifies=cassette is None or not cassette.replays,
        )
        with open_run(launch) as run, RunOutput(run, asked, table) as outlets:
            # Existing objects are kept for good; the garbage collector handles what the run
            # creates.
            gc.freeze()
            gc.enable()
            end = anyio.run(partial(run.execute, carriers=carriers(folder)))
    if run.queue is not None and not asked.output.quiet:
        tell_of(run.queue)
    if end.name == "interrupted" and cassette is None and folder.path:
        say(_how_to_go_on(pipeline, plan, folder, folder.path))
    return outlets.exit_code(end)


def _how_to_go_on(pipeline: Pipeline, plan: Plan, folder: RunFolder, path: Path) -> str:
    """The hint after an interruption: `--resume` alone repeats no call with side effects."""
    import shlex

    from aish.engine.resume_state import ResumeRefusedError
    from aish.engine.run_folder import read_kept
    from aish.features.resume.state import read_resume_state
    from aish.journal.reader import read_journal

    command = shlex.join(resume_words(pipeline.file, folder))
    try:
        with read_journal(path / "events.jsonl") as reading:
            read_resume_state(reading, plan, folder.id, read_file=partial(read_kept, path))
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
    """Choose how items run remotely, if requested: its package is imported only then."""
    if asked.cluster == ClusterOptions():
        return lambda _: None
    from aish.cli.cluster_options import cluster_of

    return cluster_of(
        asked.cluster,
        with_cassette=cassette is not None,
        asks=asked.policy.ask,
        retry_unknown=asked.resume.retry_unknown,
    )


def _resumption(
    pipeline: Pipeline, asked: RunRequest, cassette: "CassetteSession | None", stack: ExitStack
) -> "Resumption | None":
    """The resumed run, if one is: its package is imported only then."""
    if asked.resume == ResumeOptions():
        return None
    from aish.cli.resumption import resumption

    return resumption(asked, pipeline, stack, with_cassette=cassette is not None)


def _options(pipeline: Pipeline, asked: RunRequest, resumed: "Resumption | None") -> RunOptions:
    policy = asked.policy
    if resumed is None:
        options = run_options(pipeline, asked.inputs, policy)
    else:
        options = run_options(pipeline, asked.inputs, policy, resumed.inputs, resumed.stdin)
    require_stdin(pipeline, options.stdin)
    shard = None if resumed is None else resumed.shard
    delivery = None if resumed is None else resumed.delivery
    if asked.batch.delivery is not None:
        delivery = asked.batch.delivery.value
    if asked.batch.shard is not None:
        from aish.items.shards import parse_shard

        shard = parse_shard(asked.batch.shard)
    return replace(
        options,
        model=asked.model or options.model,
        timeout=seconds_of(policy.timeout),
        max_cost_usd=policy.max_cost_usd,
        max_turns=policy.max_turns,
        force=asked.resume.force,
        concurrency=asked.batch.concurrency,
        delivery=delivery,
        key_check=not asked.batch.no_key_check,
        shard=shard,
    )
