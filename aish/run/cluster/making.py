"""The parts of a driver, put together."""

from collections.abc import Callable

from distributed import Client

from aish.engine.run_folder import RunFolder
from aish.engine.steps.context import StepContext
from aish.run.cluster.address import ClusterAddress
from aish.run.cluster.clerk import Clerk
from aish.run.cluster.desk import Desk
from aish.run.cluster.driver import Driver
from aish.run.cluster.errand import Errand
from aish.run.cluster.reception import Reception
from aish.run.cluster.tasks import Tasks


def driver_of(
    client: Client,
    stage: StepContext,
    folder: RunFolder,
    address: ClusterAddress,
    alive: Callable[[], bool],
    *,
    retry_unknown: bool,
) -> Driver:
    """The driver of the run of `stage`, on the cluster that `client` is one of."""
    errands: dict[int, Errand] = {}
    slots = int(stage.slots.total_tokens)
    tasks = Tasks(client, folder.id, slots, max(1, address.workers))
    desk = Desk(stage.plan, stage.resources, folder)
    reception = Reception(
        client=client,
        run=folder.id,
        plan=stage.plan,
        keeps=folder.path is not None,
        clerk=Clerk(desk, errands),
        tasks=tasks,
        errands=errands,
        alive=alive,
        stopped=lambda: stage.course.stopped,
    )
    return Driver(tasks, reception, retry_unknown)
