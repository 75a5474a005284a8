"""What a finished step leaves behind, for templates, for the result and for the exit code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from aish.agent.runtime import UsedCall
from aish.core.errors import ExitCode
from aish.core.events import Failure, StepKind, StepStatus
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import Turn, Usage, add_usage


@frozen
class StepRecord:
    """A step's end; `exit_code` is what it means for the process if the run ends with it.

    `retryable` says of an `exit_code` that another try could mend whether it could here. `items`
    are those of a `foreach` step in their order, where anything reads them, else empty. `history`
    is the whole conversation, where another step goes on with it.
    """

    id: str
    kind: StepKind
    status: StepStatus
    text: str | None = None
    output: JsonValue = None
    calls: tuple[UsedCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    seconds: float = 0.0
    failure: Failure | None = None
    items: tuple["ItemRecord", ...] | None = None
    exit_code: ExitCode = ExitCode.OK
    retryable: bool = True
    history: tuple[Turn, ...] | None = None


@frozen
class ItemRecord:
    """An item's end."""

    key: str
    index: int
    record: StepRecord


# Codes of what depends on the file and the item alone, neither of which may change.
_FOR_GOOD = frozenset({"key", "template"})


def may_be_mended(status: StepStatus, code: str | None) -> bool:
    """Whether an item that ended so may come to another end when it is run once more."""
    return status == "failed" and code not in _FOR_GOOD


def template_view(record: StepRecord) -> JsonValue:
    """`steps.X` as templates see it: of a `foreach` step, a list in item order (F14)."""
    if record.items is not None:
        return [{"key": item.key, **_view(item.record)} for item in record.items]
    return _view(record)


def _view(record: StepRecord) -> dict[str, JsonValue]:
    if record.status == "skipped":
        nothing = dict.fromkeys(("text", "output", "tool_calls", "usage"))
        return {"status": record.status, **nothing}
    return {
        "status": record.status,
        "text": record.text,
        "output": record.output,
        "tool_calls": calls_view(record),
        "usage": usage_view(record.usage),
    }


def calls_view(record: StepRecord) -> list[JsonValue]:
    """The tool calls of a step as templates see them."""
    return [_call_view(call) for call in record.calls]


def usage_view(usage: Usage) -> dict[str, JsonValue]:
    """Tokens as templates see them."""
    return {
        "input": usage.input,
        "output": usage.output,
        "cached": usage.cached,
        "reasoning": usage.reasoning,
    }


def _call_view(call: UsedCall) -> dict[str, JsonValue]:
    # Not how long it took: a prompt that told it could not be replayed (C6).
    return {
        "tool": call.tool,
        "arguments": call.arguments,
        "verdict": call.verdict,
        "kind": call.kind,
        "content": call.content,
        "structured": call.structured,
    }


def total_usage(records: Sequence[StepRecord]) -> Usage:
    """The tokens of all prompt steps; what one of them does not know is not known (quirk 34)."""
    total: Usage | None = None
    for record in records:
        if record.kind in {"prompt", "pipeline"} and not spent_nothing(record):
            total = add_usage(total, record.usage)
    return total or Usage()


def spent_nothing(record: StepRecord) -> bool:
    """Whether it was left out, or failed before any model had answered.

    An answer without counts has an unknown cost, and one that there was not has none.
    """
    unanswered = record.status == "failed" and record.cost_usd == 0 and record.usage == Usage()
    return unanswered or record.status == "skipped"


def total_cost(records: Iterable[StepRecord]) -> float | None:
    """What all of them cost; `None` as soon as one part of it is not known (B10)."""
    costs = [0.0 if record.status == "skipped" else record.cost_usd for record in records]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def without_histories(records: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
    """The records as templates need them."""
    return {
        id: record if record.history is None else replace(record, history=None)
        for id, record in records.items()
    }


Records = Mapping[str, StepRecord]
