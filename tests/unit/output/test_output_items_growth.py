"""No sink keeps anything of an item that is over (B4)."""

import io
import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from item_events import STEP, item_failed, item_finished, item_started
from samples import sampled
from scripted_events import START, decided, run_started, turn_finished

from aish.core.events import (
    Asked,
    Event,
    ExpectChecked,
    Notice,
    Place,
    Retry,
    Stamped,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from aish.output.event_log import Sink
from aish.output.formats.jsonl import JsonLines
from aish.output.formats.plain import Plain
from aish.output.formats.text import FinalText
from aish.output.presenter import RUN, Presenter
from aish.output.result import ResultWriter
from aish.output.screen import Screen
from aish.output.style import Look


class Nowhere(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)


class NoBytes(io.BytesIO):
    def write(self, data: object) -> int:
        return 1


SINKS: dict[str, Callable[[], Sink]] = {
    "console": lambda: Presenter(Screen(Nowhere(), Look(animate=False, width=80)), RUN),
    "log": lambda: Plain(Nowhere()),
    "text": lambda: FinalText(NoBytes(), "last", stream=True),
    "object": lambda: ResultWriter(NoBytes(), "run"),
    "stream": lambda: JsonLines(NoBytes()),
}


def of_item(index: int) -> Iterator[Event]:
    """All that can happen to an item."""
    turn = Place(STEP, str(index), 1)
    call = Place(STEP, str(index), 1, f"c{index}")
    yield item_started(index, "v" * 100)
    yield TurnStarted(turn, "m", 1)
    yield TextDelta(turn, "x" * 100)
    yield turn_finished(turn, calls=(Asked(f"c{index}", "t", "{}"),))
    yield decided(call, "t", {"a": "b" * 100}, verdict="auto" if index % 2 else "deny")
    yield ToolStarted(call, "t")
    yield ToolFinished(call, "t", "ok", "z" * 100, None, 0.1)
    yield Notice(turn, "warning", "odd", f"notice {index}" * 10)
    yield Retry(turn, "m", 1, 0.1, "why")
    yield ExpectChecked(turn, "contains", index % 2 == 0, f"message {index}" * 10)
    yield item_finished(index) if index % 3 else item_failed(index)


@pytest.mark.parametrize("name", sampled(SINKS, often={0, 1}, reason="sinks of the same kind"))
def test_memory_does_not_grow_with_the_items(name: str) -> None:
    sink, seq = SINKS[name](), itertools.count(1)

    def feed(*events: Event) -> None:
        for event in events:
            number = next(seq)
            sink(Stamped(number, START + number / 1000, event))

    feed(run_started(), StepStarted(Place(STEP), "prompt"))
    for index in range(1500):
        feed(*of_item(index))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for index in range(1500, 5500):
        feed(*of_item(index))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    sink.close()

    # Caches of a fixed size are renewed meanwhile; the smallest object an item is 200,000 bytes.
    assert grown < 180_000
