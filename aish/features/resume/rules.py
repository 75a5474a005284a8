"""Settings of a pipeline and of the command line for a resumed run, step by step."""

from collections.abc import Callable

from aish.config.model import Attachment, PromptStep, ServerPrompt, Step
from aish.core.json import JsonObject
from aish.core.text import safe_utf8
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.execution.step import KINDS
from aish.engine.plan.order import steps_read
from aish.engine.plan.plan import Plan, follows_flows
from aish.journal.writer import is_signed
from aish.packs.catalogue import own_name, tools_of

Repeatable = Callable[[str], bool]
"""Tells if a tool, `alias__name`, may be called again without asking anybody."""


class Rules:
    """Settings of the steps of a plan and of its sub-pipelines; `run` is the resumed run."""

    def __init__(self, plan: Plan, run: str, *, retry_failed: bool = False) -> None:
        self.retry_failed = retry_failed
        self.follows = follows_flows(plan)
        """Whether the sources of text count."""
        self._plan = plan
        self._run = run
        self._repeatable: dict[str, RepeatableTools] = {}
        self._needed: dict[str, bool] = {}
        self._steps: dict[str, Step | None] = {}

    def mask(self, key: str) -> str:
        """The key of an item as the journal has it."""
        return safe_utf8(self._plan.secrets.mask(key))

    def is_signed(self, record: JsonObject) -> bool:
        """True if this user's `aish` wrote a record about an approval."""
        return is_signed(record, self._run)

    def repeatable(self, step: str) -> Repeatable:
        """The tools that the step may call again."""
        above = step.rpartition("/")[0]
        if above not in self._repeatable:
            self._repeatable[above] = RepeatableTools(self._plan_of(step))
        return self._repeatable[above]

    def needs_results(self, step: str) -> bool:
        """True if anything reads the results of the step's items."""
        if step not in self._needed:
            read = steps_read(self._plan_of(step).pipeline)
            self._needed[step] = step.rpartition("/")[2] in read
        return self._needed[step]

    def kind(self, step: str) -> str | None:
        """The kind of a step now; `None` if it is gone."""
        found = self._step(step)
        return None if found is None else KINDS[type(found)]

    def tolerant(self, step: str) -> bool:
        """True if a denial does not fail the step."""
        found = self._step(step)
        return found is not None and found.on_denied == "continue"

    def has_items(self, step: str) -> bool:
        """True if the step runs over items, however many there are."""
        found = self._step(step)
        return found is not None and found.flow.foreach is not None

    def asks_servers(self, step: str) -> bool:
        """True if a request of the step may begin with a prompt or a resource of a server."""
        found = self._step(step)
        return isinstance(found, PromptStep) and (
            isinstance(found.prompt, ServerPrompt)
            or any(isinstance(one, Attachment) for one in found.attach)
        )

    def _step(self, step: str) -> Step | None:
        if step not in self._steps:
            id = step.rpartition("/")[2]
            found = (one for one in self._plan_of(step).steps if one.id == id)
            self._steps[step] = next(found, None)
        return self._steps[step]

    def _plan_of(self, step: str) -> Plan:
        plan = self._plan
        for id in step.split("/")[:-1]:
            plan = plan.inner.get(id, plan)
        return plan


class RepeatableTools:
    """Tools that only read, by aish's rule or a pack's own mark, or are called `idempotent`.

    Claims of servers about their tools do not count.
    """

    def __init__(self, plan: Plan) -> None:
        self._policy = plan.policy
        self._packs = {server.entry.alias: server.entry.pack for server in plan.servers}
        self._known: dict[str, bool] = {}

    def __call__(self, tool: str) -> bool:
        """True if calls of `alias__name` may be made again."""
        known = self._known.get(tool)
        if known is None:
            known = self._known[tool] = self._find(tool)
        return known

    def _find(self, tool: str) -> bool:
        alias, _, name = tool.partition("__")
        own = own_name(self._packs.get(alias, ()), name)
        marks = dict(tools_of(self._packs.get(alias, ()))).get(own)
        shaped = Tool(
            ToolName(alias, own),
            wire=tool,
            description="",
            input_schema={},
            annotations=Annotations(),
            parallel=marks is not None and marks.parallel,
        )
        return self._policy.is_repeatable(shaped)
