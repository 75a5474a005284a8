"""Calls that a resumed run would make again, or whose outcome is unknown (B3).

Tools that only read, or that a rule calls idempotent, may be called again.
"""

from collections.abc import Iterable, Iterator
from itertools import starmap

from aish.core.json import json_text
from aish.core.phrases import counted, first_lines, shorten
from aish.core.text import for_line
from aish.core.tools import Annotations, Tool, ToolName
from aish.engine.plan.plan import Plan
from aish.engine.resume_state import ResumeRefusedError
from aish.features.resume.scan import Call, Open, Scan
from aish.packs.catalogue import own_name, tools_of

_SHOWN = 10
_LONGEST = 119
_HINT = (
    "check their outcome; `--retry-unknown` runs what is not finished again, calls included; "
    "rules under `mcp.parallel` (it only reads) or `mcp.idempotent` let a tool be called again"
)

_HINT_LOST = "check their outcome; `--retry-unknown` runs these items again, calls included"


def check_calls(scan: Scan, *, retry_failed: bool) -> None:
    """Check that no call is repeated without consent.

    Raises:
        ResumeRefusedError: one would be; lists the calls.
    """
    unknown: list[str] = []
    repeated: list[str] = []
    for unit, call in scan.left():
        if call.unknown:
            unknown.append(_line(unit, call))
        elif _would_repeat(unit, call, retry_failed=retry_failed):
            repeated.append(_line(unit, call))
    lost = list(starmap(_place, sorted(scan.untracked)))
    if unknown or repeated or lost:
        hint = _HINT if unknown or repeated else _HINT_LOST
        raise ResumeRefusedError("\n".join(_said(unknown, repeated, lost)), hint=hint)


def _would_repeat(unit: Open, call: Call, *, retry_failed: bool) -> bool:
    """Whether an ended call would be repeated by a step that is run again without a request."""
    if unit.goes_on:
        return False
    if unit.cut_off:
        return True
    # A failed call is what a step failed by, and a model may have continued after one.
    ended_well = call.finished is not None and call.finished.get("kind") == "ok"
    return ended_well and not retry_failed


def _said(unknown: list[str], repeated: list[str], lost: list[str]) -> Iterator[str]:
    if lost:
        have = "has" if len(lost) == 1 else "have"
        items = counted(len(lost), "item")
        yield f"{items} {have} not come back from workers, and may have made calls:"
        yield from first_lines([f"  {place}" for place in lost], _SHOWN, "  … ")
    if unknown:
        yield f"{counted(len(unknown), 'call')} started, with unknown outcome:"
        yield from first_lines(unknown, _SHOWN, "  … ")
    if repeated:
        yield f"{counted(len(repeated), 'call')} would be made again, as their step did not finish:"
        yield from first_lines(repeated, _SHOWN, "  … ")


def _line(unit: Open, call: Call) -> str:
    where = _place(unit.step, unit.item)
    arguments = _short(json_text(call.arguments, spaced=True))
    return f"  `{_short(call.tool)}` in {where}, at {call.began}, with {arguments}"


def _place(step: str, item: str | None) -> str:
    return f"step `{step}`" + ("" if item is None else f", item `{_short(item)}`")


def _short(text: str) -> str:
    return shorten(for_line(text), _LONGEST)


def tags(texts: Iterable[str | None]) -> bool:
    """Whether a text was changed by masking."""
    return any(text is not None and "<secret:" in text for text in texts)


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
        return self._policy.is_parallel(shaped) or self._policy.is_idempotent(shaped)
