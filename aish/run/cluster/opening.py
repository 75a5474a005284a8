"""From `--cluster` to a carrier of items, and back to nothing at the end of the run (B7)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aish.core.errors import UnavailableError
from aish.engine.cancellation import together
from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import Carrier, StepContext
from aish.run.cluster.address import ClusterAddress
from aish.run.cluster.dask import ended_in_order, quiet

_PATIENCE = 30


@asynccontextmanager
async def open_carrier(
    stage: StepContext, address: ClusterAddress, folder: RunFolder, *, retry_unknown: bool
) -> AsyncGenerator[Carrier]:
    """Connect to the cluster, or start one; at the end nothing of the run is left there.

    Raises:
        UnavailableError: the cluster is not there, or cannot do what the run needs.
    """
    quiet()
    from distributed import Client

    from aish.run.cluster.making import driver_of

    async with AsyncExitStack() as stack:
        where, security, alive = await _scheduler(address, folder, stack)
        options: Any = {"security": security, "asynchronous": True, "timeout": _PATIENCE}
        client = Client(where, set_as_default=False, **options)
        try:
            await stack.enter_async_context(ended_in_order(client))
        except (OSError, TimeoutError) as error:
            said = f"the scheduler at {where} cannot be reached: {error}"
            raise UnavailableError(said, where="--cluster") from error
        driver = driver_of(client, stage, folder, address, alive, retry_unknown=retry_unknown)
        tasks = await stack.enter_async_context(together())
        tasks.start_soon(driver.serve, tasks)
        try:
            yield driver
        finally:
            tasks.cancel_scope.cancel()
            await driver.close()


async def _scheduler(
    address: ClusterAddress, folder: RunFolder, stack: AsyncExitStack
) -> tuple[str, Any, Callable[[], bool]]:
    if address.is_local:
        from aish.run.cluster.local_workers import local_cluster

        cluster = await stack.enter_async_context(local_cluster(address.workers, folder.logs))
        return cluster.address, cluster.security, lambda: cluster.living > 0
    from distributed import Security

    files = address.certificates
    security = None
    if files is not None:
        security = Security(
            require_encryption=True,
            tls_ca_file=str(files.ca),
            tls_client_cert=str(files.cert),
            tls_client_key=str(files.key),
        )
    return address.scheduler, security, lambda: True
