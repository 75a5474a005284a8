"""What a finished step leaves behind, for templates, for the result and for the exit code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aish.errors import ExitCode
from aish.loop.equipment import UsedCall
from aish.vocab.deltas import Usage
from aish.vocab.events import Failure, StepKind, StepStatus
from aish.vocab.json import JsonValue


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step's end; `exit_code` is what it means for the process if the run ends with it."""

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


def template_view(record: StepRecord) -> dict[str, JsonValue]:
    """`steps.X` as templates see it (F14)."""
    return {
        "status": record.status,
        "text": record.text,
        "output": record.output,
        "tool_calls": [_call_view(call) for call in record.calls],
        "usage": {
            "input": record.usage.input,
            "output": record.usage.output,
            "cached": record.usage.cached,
            "reasoning": record.usage.reasoning,
        },
    }


def _call_view(call: UsedCall) -> dict[str, JsonValue]:
    return {
        "tool": call.tool,
        "arguments": call.arguments,
        "verdict": call.verdict,
        "kind": call.kind,
        "content": call.content,
        "structured": call.structured,
        "seconds": call.seconds,
    }


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The sum, where a field that nobody reported stays unknown (quirk 34)."""

    def total(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Usage(
        input=total([usage.input for usage in usages]),
        output=total([usage.output for usage in usages]),
        cached=total([usage.cached for usage in usages]),
        reasoning=total([usage.reasoning for usage in usages]),
    )


Records = Mapping[str, StepRecord]
