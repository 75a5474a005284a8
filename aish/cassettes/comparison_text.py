"""A comparison of two runs, as lines for people (X2, X3)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from aish.cassettes.json_body import at
from aish.cassettes.text_difference import changed_lines
from aish.cassettes.trajectory import (
    Call,
    CallChange,
    Comparison,
    SettingChange,
    TextChange,
    Totals,
)
from aish.core.json import JsonValue
from aish.core.text import dollars, for_line

_SHOWN = 40
_WIDTH = 300
_OF_WORDS = 3


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """One block for each setting, call, prompt and answer that changed, then the totals."""
    if (asked := comparison.settings) is not None:
        for change in asked.models:
            yield f"model changed{_in(change)}: {_word(change.before)} → {_word(change.after)}"
        for change in asked.parameters:
            yield from _setting("parameter", change, _value)
        for change in asked.tools:
            yield from _setting("tool", change, _definition)
    for call in comparison.calls:
        yield from _call(call)
    if comparison.reordered:
        yield "calls came in another order"
    yield from _texts((*comparison.prompts, *comparison.answers))
    if comparison.same:
        compared = "" if comparison.settings is None else "models, parameters, tools, "
        yield f"{compared}calls, prompts and answers are the same"
    for change in comparison.settings.endpoints if comparison.settings is not None else ():
        yield f"{'endpoint':14}  {_word(change.before)} → {_word(change.after)}{_in(change)}"
    yield from _totals(comparison.before, comparison.after)


def _setting(what: str, change: SettingChange, text: Callable[[JsonValue], str]) -> Iterator[str]:
    yield f"{what} {change.kind}{_in(change)}: {_clipped(change.name)}"
    before, after = change.before, change.after
    if change.kind == "changed":
        found = list(_difference(text(before), text(after)))
        # Of two words there is no place to tell.
        yield from (line for line in found if len(found) > _OF_WORDS or "@@" not in line)
    elif what == "parameter":
        yield from _difference(
            None if change.kind == "added" else text(before),
            None if change.kind == "missing" else text(after),
        )


def _in(change: SettingChange) -> str:
    """In how many requests, unless in all."""
    return f" in {change.requests} of {change.of} requests" if change.requests < change.of else ""


def _word(value: JsonValue) -> str:
    return _clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _value(value: JsonValue) -> str:
    indent = 2 if isinstance(value, (dict, list)) else None
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _definition(tool: JsonValue) -> str:
    """What a model reads of a tool: its description as text, the rest as JSON."""
    function = at(tool, "function")
    if not isinstance(function, Mapping):
        return _value(tool)
    described = function.get("description")
    if not isinstance(described, str):
        return _value(tool)
    rest = {key: value for key, value in function.items() if key not in {"name", "description"}}
    return f"{described}\n{_value(rest)}"


def _call(change: CallChange) -> Iterator[str]:
    before, after = change.before, change.after
    if before is None or after is None:
        only = before or after
        assert only is not None
        yield f"call {change.kind}: {_named(only)}"
        return
    yield f"call changed: {_clipped(after.tool)}"
    if before.arguments != after.arguments:
        yield f"  - {_arguments(before.arguments)}"
        yield f"  + {_arguments(after.arguments)}"
    if before.result is not None and after.result is not None and before.result != after.result:
        yield "  its result:"
        yield from _difference(before.result, after.result)


def _texts(changes: Sequence[TextChange]) -> Iterator[str]:
    for change in changes:
        yield f"{_clipped(change.what)} {change.kind}:"
        yield from _difference(change.before, change.after)


def _difference(before: str | None, after: str | None) -> Iterator[str]:
    if before is None or after is None:
        mark = "+" if before is None else "-"
        text = (before if after is None else after) or ""
        found: Sequence[str] = [f"{mark}{line}" for line in text.split("\n")]
    else:
        found = changed_lines(before, after)
    for line in found[:_SHOWN]:
        yield f"  {line[:1]} {_clipped(line[1:])}".rstrip() if line[:2] != "@@" else f"  {line}"
    if len(found) > _SHOWN:
        yield f"  … and {len(found) - _SHOWN} more lines"


def _totals(before: Totals, after: Totals) -> Iterator[str]:
    rows = (
        ("model requests", before.requests, after.requests),
        ("calls", before.calls, after.calls),
        ("tokens in", before.usage.input, after.usage.input),
        ("tokens out", before.usage.output, after.usage.output),
        ("model seconds", before.seconds, after.seconds),
    )
    for name, old, new in rows:
        if old is not None or new is not None:
            yield f"{name:14}  {_number(old)} → {_number(new)}"
    costs = [before.cost_usd, after.cost_usd]
    if costs != [None, None]:
        said = ("unknown" if cost is None else dollars(cost) for cost in costs)
        yield f"{'cost':14}  {' → '.join(said)}"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _named(call: Call) -> str:
    return f"{_clipped(call.tool)} {_arguments(call.arguments)}"


def _arguments(value: JsonValue) -> str:
    return _clipped(json.dumps(value, ensure_ascii=False))


def _clipped(text: str) -> str:
    shown = for_line(text[:_WIDTH])
    more = len(text) - _WIDTH
    return f"{shown}… ({more} more characters)" if more > 0 else shown
