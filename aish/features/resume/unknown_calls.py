"""Calls that a resumed run would make again, or whose outcome is unknown.

Tools that only read, or that a rule calls idempotent, may be called again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from aish.core.json import JsonObject, json_text
from aish.core.phrases import counted, first_lines, shorten
from aish.core.text import for_line
from aish.engine.resume_state import CallsNamedError, NamedCalls
from aish.features.resume.scan import OpenAttempt, Scan, ScannedCall

SHOWN = 10
"""The number of calls of a kind that a message names."""
_LONGEST = 119
_HINT = (
    "check their outcome; `--retry-unknown` runs what is not finished again, calls included; "
    "rules under `mcp.parallel` (it only reads) or `mcp.idempotent` let a tool be called again"
)

_HINT_LOST = "check their outcome; `--retry-unknown` runs these items again, calls included"


def check_calls(scan: Scan, *, retry_failed: bool, retry_unknown: bool) -> NamedCalls:
    """The calls that may be made again as somebody allows it, to be named before that.

    Raises:
        CallsNamedError: one would be made again without that; lists all calls.
    """
    found: dict[_Reason, list[JsonObject]] = {reason: [] for reason in _HEADS}
    for step, item in sorted(scan.untracked):
        reason: _Reason = "lost, allowed" if retry_unknown else "lost"
        found[reason].append({"outcome": "lost", "step": step, "item": item})
    for unit, call, goes_on in scan.calls_to_repeat():
        if call.unknown:
            found["allowed" if retry_unknown else "unknown"].append(
                _call_object("unknown", unit, call)
            )
        elif not goes_on:
            reason = "allowed" if retry_unknown else _reason(unit, call, retry_failed=retry_failed)
            found[reason].append(_call_object("known", unit, call))
    named = _describe(found)
    if any(found[reason] for reason in _REFUSED):
        only_lost = len(found["lost"]) == len(named.calls)
        raise CallsNamedError(named, _HINT_LOST if only_lost else _HINT)
    return named


_Reason = Literal["lost", "unknown", "known", "lost, allowed", "allowed", "retried", "failed"]
"""Why a call may be made again."""
_REFUSED: tuple[_Reason, ...] = ("lost", "unknown", "known")
_HEADS: Mapping[_Reason, Callable[[int], str]] = {
    "lost": lambda count: f"{_not_back(count)}, and may have made calls:",
    "unknown": lambda count: f"{counted(count, 'call')} started, with unknown outcome:",
    "known": lambda count: (
        f"{counted(count, 'call')} would be made again, as their step did not finish:"
    ),
    "lost, allowed": lambda count: (
        f"{_not_back(count)}, may have made calls, and may make them again, as `--retry-unknown` "
        "allows:"
    ),
    "allowed": lambda count: _again(count, "`--retry-unknown` allows"),
    "retried": lambda count: _again(count, "`--retry-failed` allows"),
    "failed": lambda count: _again(count, "their step failed by them"),
}


def _reason(unit: OpenAttempt, call: ScannedCall, *, retry_failed: bool) -> _Reason:
    """Why a call with a known result is made again by a unit that begins anew."""
    if unit.cut_off:
        return "known"
    if retry_failed:
        return "retried"
    error: Any = (unit.ended or {}).get("error") or {}
    end = call.finished or {}
    own_code = "handler_error" if end.get("exit_code") else end.get("kind")
    return "failed" if unit.has_one_call and error.get("code") == own_code else "known"


def _not_back(count: int) -> str:
    return f"{counted(count, 'item')} {'has' if count == 1 else 'have'} not come back from workers"


def _again(count: int, why: str) -> str:
    return f"{counted(count, 'call')} may be made again, as {why}:"


def _describe(found: Mapping[_Reason, Sequence[JsonObject]]) -> NamedCalls:
    message: list[str] = []
    lines: list[str] = []
    for reason, group in found.items():
        if group:
            head = _HEADS[reason](len(group))
            message += [head, *first_lines([_line(one) for one in group], SHOWN, "  … ")]
            lines += [head, *(_line(one, whole=True) for one in group)]
    calls = tuple(call for group in found.values() for call in group)
    return NamedCalls(calls, "\n".join(message), tuple(lines))


def _call_object(outcome: str, unit: OpenAttempt, call: ScannedCall) -> JsonObject:
    place: JsonObject = {"outcome": outcome, "step": unit.step, "item": unit.item}
    return {**place, "tool": call.tool, "time": call.began, "arguments": call.arguments}


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
