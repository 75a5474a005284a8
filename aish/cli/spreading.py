"""`--cluster`: whether items can be run where it says, and what opens the way there (B7).

Imported only where it is asked for.
"""

from collections.abc import Callable
from functools import partial

from aish.cli.option_groups import Spreading
from aish.core.errors import UsageError
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import OpenCarrier
from aish.run.cluster.address import cluster_address
from aish.run.cluster.dask import require_dask
from aish.run.cluster.opening import open_carrier


def cluster_of(
    asked: Spreading, *, taped: bool, retry_unknown: bool
) -> Callable[[RunFolder], OpenCarrier]:
    """What opens the cluster for a run, once its folder is there.

    Raises:
        UsageError: there is no such cluster; or something is not installed; or a cassette is used.
    """
    if asked.cluster is None:
        raise UsageError(
            "`--cluster-ca`, `--cluster-cert` and `--cluster-key` go with `--cluster`",
            hint="write `--cluster tls://host:8786`",
        )
    if taped:
        raise UsageError(
            "`--cluster` and cassettes exclude each other: a cassette is kept by one process",
            hint="a replay needs no cluster; record a few items without one",
        )
    files = asked.cluster_ca, asked.cluster_cert, asked.cluster_key
    address = cluster_address(asked.cluster, *files)
    require_dask()

    def opened(folder: RunFolder) -> OpenCarrier:
        return partial(open_carrier, address=address, folder=folder, retry_unknown=retry_unknown)

    return opened
