"""Calls that a resumed run would make again, or whose outcome is unknown (B3).

Tools that only read, or that a rule calls idempotent, may be called again.
"""

from collections.abc import Callable, Mapping

from aish.core.json import JsonObject, json_text
from aish.core.phrases import counted, first_lines, shorten
from aish.core.text import for_line
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.plan import Plan
from aish.engine.resume_state import CallsNamedError
from aish.features.resume.scan import Call, Open, Scan
from aish.packs.catalogue import own_name, tools_of

SHOWN = 10
"""How many calls of a kind a message names."""
_LONGEST = 119
_HINT = (
    "check their outcome; `--retry-unknown` runs what is not finished again, calls included; "
    "rules under `mcp.parallel` (it only reads) or `mcp.idempotent` let a tool be called again"
)

_HINT_LOST = "check their outcome; `--retry-unknown` runs these items again, calls included"


def check_calls(scan: Scan, *, retry_failed: bool) -> None:
    """Check that no call is repeated without consent.

    Raises:
        CallsNamedError: one would be; lists the calls.
    """
    found: dict[str, list[JsonObject]] = {outcome: [] for outcome in _HEADS}
    for step, item in sorted(scan.untracked):
        found["lost"].append({"outcome": "lost", "step": step, "item": item})
    for unit, call in scan.left():
        if call.unknown:
            found["unknown"].append(_told("unknown", unit, call))
        elif _would_repeat(unit, call, retry_failed=retry_failed):
            found["known"].append(_told("known", unit, call))
    calls = [call for group in found.values() for call in group]
    if not calls:
        return
    message: list[str] = []
    lines: list[str] = []
    for outcome, group in found.items():
        if group:
            head = _HEADS[outcome](len(group))
            message += [head, *first_lines([_line(one) for one in group], SHOWN, "  … ")]
            lines += [head, *(_line(one, whole=True) for one in group)]
    hint = _HINT if len(calls) > len(found["lost"]) else _HINT_LOST
    raise CallsNamedError("\n".join(message), hint, tuple(calls), tuple(lines))


_HEADS: Mapping[str, Callable[[int], str]] = {
    "lost": lambda count: (
        f"{counted(count, 'item')} {'has' if count == 1 else 'have'} not come back from workers, "
        "and may have made calls:"
    ),
    "unknown": lambda count: f"{counted(count, 'call')} started, with unknown outcome:",
    "known": lambda count: (
        f"{counted(count, 'call')} would be made again, as their step did not finish:"
    ),
}


def _told(outcome: str, unit: Open, call: Call) -> JsonObject:
    place: JsonObject = {"outcome": outcome, "step": unit.step, "item": unit.item}
    return {**place, "tool": call.tool, "time": call.began, "arguments": call.arguments}


def _would_repeat(unit: Open, call: Call, *, retry_failed: bool) -> bool:
    """Whether an ended call would be repeated by a step that is run again without a request."""
    if unit.goes_on:
        return False
    if unit.cut_off:
        return True
    # A failed call is what a step failed by, and a model may have continued after one.
    end = call.finished or {}
    fails_step = end.get("exit_code") and end.get("turn") is None
    return end.get("kind") == "ok" and not fails_step and not retry_failed


def _line(call: JsonObject, *, whole: bool = False) -> str:
    shown = for_line if whole else _short
    item = call["item"]
    place = f"step `{call['step']}`" + ("" if item is None else f", item `{shown(str(item))}`")
    if call["outcome"] == "lost":
        return f"  {place}"
    arguments = shown(json_text(call["arguments"], spaced=True))
    return f"  `{shown(str(call['tool']))}` in {place}, at {call['time']}, with {arguments}"


def _short(text: str) -> str:
    return shorten(for_line(text), _LONGEST)


class RepeatableTools:
    """Tools that only read, by aish's rule or a pack's own mark, or are called `idempotent`.

    Claims of servers about their tools do not count (P5).
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
