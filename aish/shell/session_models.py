"""The models of a session's file, each opened at its first use."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from aish.core.errors import UsageError, did_you_mean
from aish.core.phrases import backticked
from aish.core.protocols import Model
from aish.engine.environment import RunEnvironment
from aish.engine.limits import RunMeter
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Toolbox, open_models
from aish.models.throttle import Throttles
from aish.shell.resource_group import ResourceGroup

PlanFor = Callable[[str], Plan]
"""A plan that opens the model of an alias, and what that falls back to."""


class SessionModels:
    """Opens models; the keys of those of a `plan_for` are resolved only then."""

    def __init__(
        self,
        resources: ResourceGroup,
        box: Toolbox,
        environment: RunEnvironment,
        meter: RunMeter,
        plan_for: PlanFor,
    ) -> None:
        self._resources = resources
        self._box = box
        self._environment = environment
        self._meter = meter
        self._plan_for = plan_for
        self._open: dict[str, Model] = {}
        self._throttles = Throttles()

    async def get(self, alias: str) -> Model:
        """The model with this alias of the file.

        Raises:
            PipelineError: a variable it needs is not set.
            UnavailableError: an embedded model could not be started.
        """
        if alias not in self._open:
            plan = self._plan_for(alias)
            self._meter.know(plan)
            opened = await self._resources.enter(lambda: self._open_models(plan))
            # With those that packs ask; one that is open already stays as it is.
            self._open = {**opened, **self._open}
        return self._open[alias]

    @asynccontextmanager
    async def _open_models(self, plan: Plan) -> AsyncGenerator[Mapping[str, Model]]:
        async with AsyncExitStack() as stack:
            yield await open_models(plan, self._environment, self._box, self._throttles, stack)


def model_if_in_file(alias: str, plan: Plan) -> str:
    """`alias`, if the file has a model of that name.

    Raises:
        UsageError: there is none.
    """
    known = plan.pipeline.models
    if alias not in known:
        listed = backticked(known) or "none"
        hint = did_you_mean(alias, known) or f"models: {listed}"
        raise UsageError(f"no model `{alias}` in {plan.pipeline.file}", hint=hint)
    return alias
