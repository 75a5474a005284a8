"""Which items of a lost worker may be run again, depending on their calls."""

from collections.abc import Callable, Iterator

from aish.config.model import CallStep, PipelineStep, PromptStep, RunStep, Step
from aish.core.events import Failure
from aish.core.frozen import frozen
from aish.core.phrases import backticked, counted
from aish.core.tools import ToolName
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Resources
from aish.engine.resources.toolbox import SHELL_RUN
from aish.engine.steps.prompt import visible_tools
from aish.policy.gate import Staging

MOST_LOST = 3
"""An item that was on so many workers that were lost is not given to another one."""
LOST = "its worker was lost"


@frozen
class ToolRules:
    """Properties of calls that other features decide.

    `repeatable` says of a plan which of its tools may be called again, `staging` makes the check of
    staged calls on a worker, `retry_unknown` allows repeating any call.
    """

    repeatable: Callable[[Plan], Callable[[str], bool]]
    staging: Callable[[Plan, str], Staging] | None
    retry_unknown: bool


def unrepeatable(
    step: Step,
    plan: Plan,
    resources: Resources,
    repeatable: Callable[[Plan], Callable[[str], bool]],
) -> tuple[str, ...]:
    """The tools that an item of `step` may call by the rules, and that must not be called again."""
    may_repeat = repeatable(plan)
    names = dict.fromkeys(_callable(step, plan, resources))
    own = [str(name) for name in names if not may_repeat(str(name))]
    if isinstance(step, PipelineStep):
        inner, opened = plan.inner[step.id], resources.inner[step.id]
        for inner_step in inner.steps:
            own += unrepeatable(inner_step, inner, opened, repeatable)
    return tuple(dict.fromkeys(own))


def _callable(step: Step, plan: Plan, resources: Resources) -> Iterator[ToolName]:
    """The tools of a step that a rule approves for some arguments; workers cannot ask."""
    named: tuple[ToolName, ...] = ()
    match step:
        case PromptStep():
            named = tuple(one.name for one in visible_tools(step, resources.tools.listed()))
        case CallStep(call=call):
            alias, _, tool = call.partition("__")
            named = (ToolName(alias, tool),)
        case RunStep():
            named = (SHELL_RUN.name,)
        case _:
            pass
    approving = plan.policy.auto_approve
    yield from (name for name in named if any(rule.covers(name) for rule in approving))


def after_loss(tools: tuple[str, ...], lost: int, *, retry_unknown: bool) -> Failure | None:
    """Why an item must not be run again, if so, given the number of lost workers it was on."""
    if tools and not retry_unknown:
        named = backticked(tools, 3)
        why = f"{LOST}, and calls of {named} may have been sent, so they are not made again"
        hint = (
            "check their outcome; `--resume --retry-failed --retry-unknown` runs the item "
            "again, and rules under `mcp.parallel` or `mcp.idempotent` let a tool be called again"
        )
        return Failure("call_unknown", why, hint)
    if lost >= MOST_LOST:
        why = f"{counted(lost, 'worker')} were lost while they ran it"
        return Failure("worker_lost", why, "check whether it needs more memory")
    return None
