"""What `aish apply` shows: the calls before they are made, all of each, and what became of them."""

from collections.abc import Iterator, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.text import for_line
from aish.features.staging.apply import Against, Attempt
from aish.features.staging.file import StagedCall
from aish.features.staging.log import State
from aish.terminal.approver import barred_arguments

WORDS = {
    "open": "to be applied",
    "applied": "applied before",
    "failed": "failed before",
    "unknown": "started before, with unknown outcome",
}


@frozen
class Row:
    """A call in the review: what became of it so far, and what stands against it now."""

    call: StagedCall
    state: State
    left_out: bool
    problems: tuple[Against, ...] = ()


def review_lines(heading: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """Everything that was reviewed, or is to be: nothing of a call is cut."""
    yield from map(for_line, heading)
    for number, row in enumerate(rows, 1):
        yield ""
        yield from _call_lines(number, row, width)


def _call_lines(number: int, row: Row, width: int) -> Iterator[str]:
    call = row.call
    state = "left out" if row.left_out else WORDS[row.state]
    yield for_line(f"{number}. {call.id}  {call.name}  {state}")
    place = ", ".join(f"{k} {v}" for k, v in (("step", call.step), ("item", call.item)) if v)
    yield for_line(f"  requested by {place or 'the run'} at {call.time}, staged by {call.rule}")
    yield for_line(f"  sent to {_where(call)}")
    arguments = list(barred_arguments(call.arguments, width))
    yield "  all arguments:"
    yield from arguments
    yield from (for_line(f"  problem: {problem.text}") for problem in row.problems)


def review_row(row: Row) -> JsonObject:
    """The same as JSON."""
    call = row.call
    return {
        "id": call.id,
        "step": call.step,
        "item": call.item,
        "tool": str(call.name),
        "where": _where(call),
        "arguments": call.arguments,
        "rule": call.rule,
        "time": call.time,
        "state": "left_out" if row.left_out else row.state,
        "problems": [problem.text for problem in row.problems],
    }


def attempt_line(attempt: Attempt) -> str:
    """What became of a call, on one line."""
    said = ""
    if attempt.used is not None and attempt.outcome != "applied":
        said = f": {attempt.used.content.removeprefix('[aish] ')}"
    outcome = attempt.outcome.replace("_", " ")
    return for_line(f"{attempt.call.id}  {attempt.call.name}  {outcome}{said}")


def attempt_row(attempt: Attempt) -> JsonObject:
    """The same as JSON, with what the tool answered."""
    used = attempt.used
    return {
        "outcome": attempt.outcome,
        "kind": None if used is None else used.kind,
        "content": None if used is None else used.content,
        "structured": None if used is None else used.structured,
        "seconds": None if used is None else used.seconds,
    }


def _where(call: StagedCall) -> str:
    pin = call.server
    if pin is None:
        return "this machine, as a local command"
    return f"`{call.name.server}`: {pin.transport} {' '.join(pin.address)}"
