import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from item_events import STEP, item_finished, item_started
from scripted_events import (
    answered,
    any_event,
    asked,
    ordinary_run,
    paused_run,
    recorded_run,
    run_started,
    stamped,
    troubled_run,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import (
    Event,
    HistoryReplaced,
    Place,
    Stamped,
    StepStarted,
    ToolOutput,
    TurnAdded,
    TurnProgress,
    TurnPurpose,
    TurnStarted,
)
from aish.core.text import for_terminal
from aish.output.formats.plain import Plain


def written(run: list[Stamped]) -> str:
    out = io.StringIO()
    plain = Plain(out)
    for event in run:
        plain(event)
    plain.close()
    return out.getvalue()


@pytest.mark.parametrize(
    "run",
    [ordinary_run, troubled_run, unmet_run, recorded_run],
    ids=["ordinary", "troubled", "unmet", "recorded"],
)
def test_a_run_in_a_ci_log(run: Callable[[], list[Stamped]], snapshot: SnapshotAssertion) -> None:
    assert written(run()) == snapshot


def test_a_paused_run_in_a_ci_log(snapshot: SnapshotAssertion) -> None:
    shown = written(stamped(*paused_run(), answered(Place("fix", turn=1, call="c2"))))

    assert for_terminal(shown) == shown
    assert "\n::error" not in shown
    assert shown == snapshot


def test_a_question_of_an_item_has_a_line_in_the_log_and_is_no_failure() -> None:
    place = Place(STEP, "row 1", turn=1, call="c1")
    run: list[Event] = [
        run_started(),
        StepStarted(Place(STEP), "prompt", count=1),
        item_started(0, key="row 1"),
        asked(place, "mail__send", {}),
        item_finished(0, key="row 1", status="paused", text=None),
    ]

    shown = written(stamped(*run))

    said = "mail__send waits for an answer until 2026-12-31 12:00 UTC (1a2b3c4d)"
    assert f"{STEP} row 1: {said}" in shown
    assert "paused:" not in shown


def test_the_clock_of_the_log_starts_where_it_is_told_to() -> None:
    run = ordinary_run()
    out = io.StringIO()

    Plain(out, run[0].time - 12.5)(run[0])

    assert out.getvalue().startswith("[  12.50s] ")


@given(any_event())
def test_no_text_of_an_event_steers_a_terminal_or_a_ci_runner(event: Stamped) -> None:
    text = written([event])

    assert for_terminal(text) == text
    assert not re.search(r"(?m)^\s*::|##\w*\[", text)
    assert all(line.startswith("[") for line in text.splitlines())


@pytest.mark.parametrize(
    "event",
    [
        TurnAdded(Place("a"), {"role": "user", "text": "said"}),
        HistoryReplaced(Place("a"), ({"role": "user", "text": "said"},), "context_trimmed"),
        ToolOutput(Place("a", call="c1"), "shell__run", "said", "stdout"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_said_elsewhere_takes_no_line(event: Event) -> None:
    assert not written(stamped(event))


@pytest.mark.parametrize(
    ("purpose", "said"),
    [
        ("answer", "asking small, 2 messages"),
        ("summary", "asking small for a summary, 2 messages"),
        ("sampling", "asking small for a server, 2 messages"),
    ],
)
def test_the_log_says_what_a_model_is_asked_for(purpose: TurnPurpose, said: str) -> None:
    assert said in written(stamped(TurnStarted(Place("read", turn=1), "small", 2, purpose)))


def test_a_turn_that_takes_long_is_a_line_now_and_then() -> None:
    place = Place("read", turn=1)
    run = [
        Stamped(1, 5.0, TurnStarted(place, "local", 1)),
        Stamped(2, 15.0, TurnProgress(place, "local", 0, 10.0)),
        Stamped(3, 25.0, TurnProgress(place, "local", 1, 20.0)),
        Stamped(4, 105.0, TurnProgress(place, "local", 1234, 100.0)),
    ]

    assert written(run).splitlines() == [
        "[   0.00s] read: asking local, 1 message",
        "[  10.00s] read: local is still answering after 10 s, 0 tokens so far",
        "[  20.00s] read: local is still answering after 20 s, 1 token so far",
        "[ 100.00s] read: local is still answering after 1 min 40 s, 1,234 tokens so far",
    ]
