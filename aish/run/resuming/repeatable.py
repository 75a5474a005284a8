"""Which tools may be called once more by a run that is gone on with (B3)."""

from importlib import import_module

from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.plan import Plan
from aish.packs.catalogue import OLDER_NAMES, PACKS


class RepeatableTools:
    """Tools that only read, by our own rule or a pack's own mark, or are called `idempotent`.

    What a server says of its tools does not count (P5).
    """

    def __init__(self, plan: Plan) -> None:
        self._policy = plan.policy
        self._packs = {server.entry.alias: server.entry.pack for server in plan.servers}
        self._known: dict[str, bool] = {}

    def __call__(self, tool: str) -> bool:
        """Whether calls of `alias__name` may be made again."""
        known = self._known.get(tool)
        if known is None:
            known = self._known[tool] = self._find(tool)
        return known

    def _find(self, tool: str) -> bool:
        alias, _, name = tool.partition("__")
        marked = _marked_names(self._packs.get(alias, ()))
        shaped = Tool(
            ToolName(alias, name),
            wire=tool,
            description="",
            input_schema={},
            annotations=Annotations(),
            parallel=OLDER_NAMES.get(name, name) in marked,
        )
        return self._policy.is_parallel(shaped) or self._policy.is_idempotent(shaped)


def _marked_names(packs: tuple[str, ...]) -> frozenset[str]:
    """The tools of packs that a pack itself marks as safe to run beside others."""
    tools = (tool for pack in packs if pack in PACKS for tool in import_module(PACKS[pack]).TOOLS)
    return frozenset(tool.name for tool in tools if tool.parallel)
