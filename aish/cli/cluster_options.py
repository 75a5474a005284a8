"""`--cluster`: checks that items can be run there, and connects to it.

Imported only on request.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from aish.cli.options import ClusterOptions
from aish.core.errors import UsageError
from aish.engine.plan.plan import Plan, stages_calls
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

            staging: Callable[[Plan, str], Staging] | None = None
            if stages_calls(context.plan):
                from aish.features.staging.queue import unkept_queue

                staging = unkept_queue
            rules = ToolRules(RepeatableTools, staging, retry_unknown)
            return open_carrier(context, address, folder, rules)

        return carrier

    return open_carrier_of_run
