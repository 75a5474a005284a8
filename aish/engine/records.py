"""The record of a finished step, for templates, for the result and for the exit code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from aish.agent.runtime import UsedCall
from aish.core.errors import ExitCode
from aish.core.events import Failure, SourceNames, StepKind, StepStatus
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Turn, Usage, add_usage, sum_costs
from aish.core.sources import NO_SOURCES, Sources, names_of


@frozen
class StepRecord:
    """A step's end; `exit_code` is that of the process if the run ends with it.

    `retryable` says whether a retry could help for this failure. `items` are those of a `foreach`
    step in order, if anything reads them, else empty. `history` is the whole conversation, if
    another step continues it, and `files` what that has of the files of `context.files`.
    `sources` are those of text and calls, and of the output where that has no `output_sources`.
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
    files: JsonObject | None = None
    sources: Sources = NO_SOURCES
    output_sources: Sources | None = None


@frozen
class ItemRecord:
    key: str
    index: int
    record: StepRecord


def source_fields(record: StepRecord) -> dict[str, SourceNames]:
    """The fields of the event of an end that say where its text came from."""
    output = record.output_sources
    return {
        "sources": names_of(record.sources),
        "output_sources": None if output is None else names_of(output),
    }


STOPPED = frozenset({"items_stopped", "max_failures"})
"""The codes of a step that failed items have stopped before it was through."""
# Codes of failures that depend only on the file and the item, neither of which may change.
_FOR_GOOD = frozenset({"key", "template"})


def may_be_mended(status: StepStatus, code: str | None) -> bool:
    """True if an item that ended like this may end differently when run again."""
    return status == "failed" and code not in _FOR_GOOD


def template_view(record: StepRecord) -> JsonValue:
    """`steps.X` as templates see it: for a `foreach` step, a list in item order."""
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
    return [_call_view(call) for call in record.calls]


def usage_view(usage: Usage) -> dict[str, JsonValue]:
    """Tokens as templates see them."""
    names = ("input", "output", "cached", "reasoning", "cache_written")
    return {name: getattr(usage, name) for name in names}


def _call_view(call: UsedCall) -> dict[str, JsonValue]:
    # Not the duration: a prompt that contains it could not be replayed.
    names = ("tool", "arguments", "verdict", "kind", "content", "structured")
    return {name: getattr(call, name) for name in names}


def total_usage(records: Sequence[StepRecord]) -> Usage:
    """The tokens of all prompt steps; unknown if one of them is unknown."""
    total: Usage | None = None
    for record in records:
        if record.kind in {"prompt", "pipeline"} and not has_no_usage(record):
            total = add_usage(total, record.usage)
    return total or Usage()


def has_no_usage(record: StepRecord) -> bool:
    """True if it was skipped, or failed before any model had answered.

    An answer without counts has an unknown cost; without an answer there is no cost.
    """
    unanswered = record.status == "failed" and record.cost_usd == 0 and record.usage == Usage()
    return unanswered or record.status == "skipped"


def total_cost(records: Iterable[StepRecord]) -> float | None:
    """The total cost; `None` if one part of it is unknown."""
    return sum_costs(0.0 if record.status == "skipped" else record.cost_usd for record in records)


def without_histories(records: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
    return {
        id: record if record.history is None else replace(record, history=None, files=None)
        for id, record in records.items()
    }


Records = Mapping[str, StepRecord]
