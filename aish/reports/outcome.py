"""The meaning of a step's or an item's status in reports, and in one word."""

from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue, parse_structured
from aish.journal.history import Unit

State = Literal["ok", "failed", "error", "skipped", "denied", "paused", "cut_off"]
"""`failed`: it was answered, and not well. `error`: something around it broke or ran out.

`paused`: a call of it waits for an answer.
"""

# Error codes that do not judge an answer: peers, the machine, limits, bugs.
_AROUND = frozenset(
    {
        "budget",
        "endpoint_error",
        "internal",
        "interrupted",
        "invalid_cassette",
        "not_recorded",
        "offline",
        "rpc_error",
        "time",
        "timeout",
        "transport_error",
        "unavailable",
        "usage",
    }
)
_ANSWERING = frozenset({"prompt", "pipeline"})
WORDS: dict[State, str] = {
    "ok": "ok",
    "failed": "failed",
    "error": "error",
    "skipped": "skipped",
    "denied": "denied",
    "paused": "paused",
    "cut_off": "cut off",
}


@frozen
class FailureReason:
    code: str
    message: str
    hint: str | None = None


def state_of(unit: Unit) -> State:
    end = unit.finished
    if end is None:
        return "cut_off"
    if end.status == "failed":
        code = end.error.code if end.error is not None else ""
        around = code in _AROUND or code.startswith("cassette_")
        return "error" if around else "failed"
    return "error" if end.status == "budget" else end.status


def reason_of(unit: Unit) -> FailureReason | None:
    """Return why it did not succeed; `None` if it did, or if no reason is given."""
    end = unit.finished
    if end is None:
        return FailureReason("interrupted", "the run ended before this did")
    if end.error is not None:
        return FailureReason(end.error.code, end.error.message, end.error.hint)
    return None


def answer_of(unit: Unit) -> JsonValue:
    """The answer of the unit: the value of a structured answer, else the text.

    The output of a command or a tool call is not an answer.
    """
    end = unit.finished
    if end is None:
        return None
    if unit.kind not in _ANSWERING:
        return end.text or None
    if end.output is not None and not isinstance(end.output, str):
        return end.output
    # A rejected answer is no output, but what one wants to read.
    return parse_structured(end.text) if end.text else None
