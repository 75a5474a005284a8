"""The models of the file, each opened when it is asked for the first time."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from aish.core.errors import UsageError, did_you_mean
from aish.core.protocols import Model
from aish.engine.environment import RunEnvironment
from aish.engine.limits.meter import RunMeter
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Toolbox, open_models
from aish.models.throttle import Throttles
from aish.shell.keeper import Keeper

PlanFor = Callable[[str], Plan]
"""A plan that opens the model of an alias, and what that falls back to."""


class Models:
    """Opens models; those of a `plan_for` have their keys resolved only then (F7)."""

    def __init__(
        self,
        keeper: Keeper,
        box: Toolbox,
        environment: RunEnvironment,
        meter: RunMeter,
        plan_for: PlanFor,
    ) -> None:
        self._keeper = keeper
        self._box = box
        self._environment = environment
        self._meter = meter
        self._plan_for = plan_for
        self._open: dict[str, Model] = {}
        self._throttles = Throttles()

    async def get(self, alias: str) -> Model:
        """The model of an alias that the file has.

        Raises:
            PipelineError: a variable that it needs is not set.
            UnavailableError: an embedded model could not be started.
        """
        if alias not in self._open:
            plan = self._plan_for(alias)
            self._meter.know(plan)
            opened = await self._keeper.enter(lambda: self._opened(plan))
            self._open[alias] = opened[alias]
        return self._open[alias]

    @asynccontextmanager
    async def _opened(self, plan: Plan) -> AsyncGenerator[Mapping[str, Model]]:
        async with AsyncExitStack() as stack:
            yield await open_models(plan, self._environment, self._box, self._throttles, stack)


def known_model(alias: str, plan: Plan) -> str:
    """`alias`, if the file has a model of that name.

    Raises:
        UsageError: it has none.
    """
    known = plan.pipeline.models
    if alias not in known:
        listed = ", ".join(f"`{one}`" for one in known) or "none"
        hint = did_you_mean(alias, known) or f"models: {listed}"
        raise UsageError(f"no model `{alias}` in {plan.pipeline.file}", hint=hint)
    return alias
