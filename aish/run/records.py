"""What a finished step leaves behind, for templates, for the result and for the exit code."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from aish.errors import ExitCode
from aish.loop.equipment import UsedCall
from aish.loop.usage import add_usage
from aish.vocab.deltas import Usage
from aish.vocab.event_parts import Failure, StepKind, StepStatus
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonValue


@frozen
class StepRecord:
    """A step's end; `exit_code` is what it means for the process if the run ends with it.

    `retryable` says of an `exit_code` that another try could mend whether it could here.
    """

    id: str
    kind: StepKind
    status: StepStatus
    text: str | None = None
    output: JsonValue = None
    calls: tuple[UsedCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    failure: Failure | None = None
    exit_code: ExitCode = ExitCode.OK
    retryable: bool = True


def template_view(record: StepRecord) -> dict[str, JsonValue]:
    """`steps.X` as templates see it (F14)."""
    return {
        "status": record.status,
        "text": record.text,
        "output": record.output,
        "tool_calls": [_call_view(call) for call in record.calls],
        "usage": usage_view(record.usage),
    }


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
        if record.kind == "prompt" and record.status != "skipped":
            total = add_usage(total, record.usage)
    return total or Usage()


Records = Mapping[str, StepRecord]
