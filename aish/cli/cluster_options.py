"""`--cluster`: checks that items can be run there, and connects to it.

Imported only on request.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from aish.cli.options import ClusterOptions
from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.events import Notice, Place
from aish.core.phrases import backticked
from aish.engine.plan.plan import Plan, stages_calls
from aish.engine.plan.validation.validate import find_held_calls
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import Carrier, OpenCarrier, StepContext
from aish.features.cluster.address import cluster_address
from aish.features.cluster.connection import require_dask
from aish.features.cluster.failure_policy import ToolRules
from aish.features.resume.rules import RepeatableTools
from aish.policy.gate import Staging


def cluster_of(
    asked: ClusterOptions, *, with_cassette: bool, asks: bool, retry_unknown: bool
) -> Callable[[RunFolder], OpenCarrier]:
    """The function that connects a run to the cluster, once its folder exists."""
    if asked.cluster is None:
        raise UsageError(
            "`--cluster-ca`, `--cluster-cert` and `--cluster-key` go with `--cluster`",
            hint="write `--cluster tls://host:8786`",
        )
    if with_cassette:
        raise UsageError(
            "`--cluster` and cassettes exclude each other: a cassette is written by one process",
            hint="a replay needs no cluster; record a few items without one",
        )
    if asks:
        raise UsageError(
            "`--cluster` and `--ask` exclude each other: workers decide on calls by rules alone",
            hint="approve tools under `mcp.auto_approve`, with `--allow`, or stage calls for "
            "review with `mcp.stage`",
        )
    files = asked.cluster_ca, asked.cluster_cert, asked.cluster_key
    address = cluster_address(asked.cluster, *files)
    require_dask()

    def open_carrier_of_run(folder: RunFolder) -> OpenCarrier:
        def carrier(context: StepContext) -> AbstractAsyncContextManager[Carrier]:
            from aish.features.cluster.dispatcher import open_carrier

            if context.agent.flow is not None:
                for text in held_on_workers(context.plan.pipeline):
                    context.emit(Notice(Place(), "warning", "exfiltration", text))
            staging: Callable[[Plan, str], Staging] | None = None
            if stages_calls(context.plan):
                from aish.features.staging.queue import unkept_queue

                staging = unkept_queue
            rules = ToolRules(RepeatableTools, staging, retry_unknown)
            return open_carrier(context, address, folder, rules)

        return carrier

    return open_carrier_of_run


def held_on_workers(pipeline: Pipeline) -> Iterator[str]:
    """Tell of each call that may be held, and is not where all items run on this machine.

    A worker does not know what others have written, so all that it reads may be that.
    """
    here = {
        (one.pipeline.file, one.step, tool)
        for one in find_held_calls(pipeline)
        for tool in one.tools
    }
    for held in find_held_calls(pipeline, on_workers=True):
        tools = [tool for tool in held.tools if (held.pipeline.file, held.step, tool) not in here]
        if tools and held.then != "warn":
            yield f"{backticked(tools)} of step `{held.step}` may be held on workers: {held.why}"
