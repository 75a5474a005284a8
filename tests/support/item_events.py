"""Events of a run over items: what the sinks of results are fed."""

from collections.abc import Sequence
from typing import Any

from scripted_events import START, run_finished, run_started

from aish.core.events import (
    Event,
    Failure,
    ItemFinished,
    ItemStarted,
    Place,
    Stamped,
    StepFinished,
    StepStarted,
)
from aish.core.json import JsonValue
from aish.core.messages import Usage

STEP = "each"


def item_started(
    index: int, value: JsonValue = None, *, step: str = STEP, key: str | None = None
) -> ItemStarted:
    name = str(index) if key is None else key
    return ItemStarted(Place(step, name), name, index, "0" * 16, value)


def item_finished(
    index: int, *, step: str = STEP, key: str | None = None, **changes: Any
) -> ItemFinished:
    name = str(index) if key is None else key
    given: dict[str, Any] = {
        "place": Place(step, name),
        "key": name,
        "index": index,
        "status": "ok",
        "text": f"text of {index}",
        "output": None,
        "usage": Usage(10, 5),
        "cost_usd": None,
        "seconds": 0.25,
    }
    return ItemFinished(**given | changes)


def item_failed(index: int, message: str = "no answer", **changes: Any) -> ItemFinished:
    failure = Failure("step_failed", message)
    return item_finished(index, status="failed", text=None, error=failure, **changes)


def run_of(events: Sequence[Event], **end: Any) -> list[Stamped]:
    """The events within one step of one run, numbered."""
    whole = [
        run_started(),
        StepStarted(Place(STEP), "prompt", 3),
        *events,
        StepFinished(Place(STEP), "ok", None, None, Usage(30, 15), None, 1.5),
        run_finished(**end),
    ]
    return numbered(whole)


def numbered(events: Sequence[Event], first: int = 1) -> list[Stamped]:
    return [Stamped(n, START + n / 4, event) for n, event in enumerate(events, first)]
