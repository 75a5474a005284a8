"""What a live run tells of its conversation and figures is folded in bounded memory (A3)."""

from typing import Any

from scripted_events import stamped, step_finished, turn_finished

from aish.core.events import (
    Asked,
    Event,
    HistoryReplaced,
    ItemFinished,
    Place,
    TextDelta,
    TextWithdrawn,
    ToolFinished,
    ToolStarted,
    TurnAdded,
    TurnStarted,
)
from aish.core.messages import Usage
from aish.features.control.conversation import (
    LONGEST_TEXT,
    MOST_ENTRIES,
    MOST_TEXT,
    RunConversation,
    UnderWay,
)
from aish.journal.statistics import Statistics

HERE = Place("ask", None, 1)
USER = {"role": "user", "text": "hello"}


def told(*events: Event, is_one: bool = False) -> tuple[Any, int]:
    conversation = RunConversation()
    conversation.is_one = is_one
    for one in stamped(*events):
        conversation.take(one)
    plain: Any = conversation.plain()
    return plain["entries"], plain["left_out"]


def said(entries: Any) -> list[tuple[str, str]]:
    return [(one["role"], one["text"]) for one in entries]


def called(tool: str, seconds: float = 0.1, kind: Any = "ok", place: Place = HERE) -> ToolFinished:
    return ToolFinished(place, tool, kind, "a result", None, seconds)


def test_answers_and_results_are_the_conversation_of_a_step() -> None:
    asks = turn_finished(HERE, text="I look", calls=(Asked("c", "repo__file_read", "{}"),))
    entries, _ = told(
        TurnAdded(Place("ask"), {"role": "system", "text": "be brief"}, "answer"),
        TurnAdded(Place("ask"), USER, "answer"),
        asks,
        called("repo__file_read", place=Place("ask", None, 1, "c")),
        # What a step calls itself, and what is asked aside, is no part of it.
        called("repo__file_read", place=Place("copy")),
        turn_finished(HERE, text="a verdict", purpose="judge"),
        TurnAdded(Place("ask"), {"role": "user", "text": "judge it"}, "judge"),
        turn_finished(HERE, text="done"),
    )

    assert said(entries) == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", "I look"),
        ("tool", "a result"),
        ("assistant", "done"),
    ]
    assert entries[2]["calls"] == ({"id": "c", "name": "repo__file_read", "arguments": "{}"},)


def test_a_recorded_conversation_is_told_once_and_replaced_where_it_is() -> None:
    other = Place("other")
    turns: list[Event] = [
        TurnAdded(other, {"role": "user", "text": "of another"}),
        TurnAdded(Place("ask"), USER),
        turn_finished(HERE, text="an answer"),
        TurnAdded(Place("ask"), {"role": "assistant", "text": "an answer"}),
        TurnAdded(
            Place("ask"), {"role": "tool", "call_id": "c", "tool": "t", "content": "a result"}
        ),
    ]
    replaced = HistoryReplaced(Place("ask"), (USER,), "shorter")

    assert said(told(*turns)[0]) == [
        ("user", "of another"),
        ("user", "hello"),
        ("assistant", "an answer"),
        ("tool", "a result"),
    ]
    assert said(told(*turns, replaced)[0]) == [("user", "of another"), ("user", "hello")]
    # The lines of a session are one conversation.
    assert said(told(*turns, replaced, is_one=True)[0]) == [("user", "hello")]
    assert told(*turns, HistoryReplaced(HERE, (), "reset"), is_one=True) == ([], 0)


def test_a_long_conversation_does_not_grow() -> None:
    entries, left_out = told(*(turn_finished(HERE, text=f"{n}") for n in range(3 * MOST_ENTRIES)))
    assert (len(entries), left_out) == (MOST_ENTRIES, 2 * MOST_ENTRIES)
    assert entries[-1]["text"] == f"{3 * MOST_ENTRIES - 1}"

    long = "x" * (LONGEST_TEXT + 5)
    entries, left_out = told(*(turn_finished(HERE, text=long) for _ in range(100)))
    assert {(len(one["text"]), one["characters"]) for one in entries} == {(LONGEST_TEXT, len(long))}
    assert sum(len(one["text"]) for one in entries) <= MOST_TEXT
    assert len(entries) + left_out == 100
    # What a recorder has put into a file tells how long it is.
    (cut,), _ = told(TurnAdded(HERE, {**USER, "file": "f", "characters": 70_000}, "answer"))
    assert cut["characters"] == 70_000


def test_what_is_under_way_ends_with_its_unit() -> None:
    state = UnderWay()
    item = Place("rows", "a", 1)
    begun: list[Event] = [
        TurnStarted(item, "m", 1),
        TextDelta(item, "one "),
        TextDelta(item, "two"),
        ToolStarted(Place("rows", "b", 1, "c"), "t"),
        TurnStarted(HERE, "m", 1),
        TextDelta(HERE, "here"),
    ]
    for event in begun:
        state.take(event)
    assert (state.thinks, state.calls) == (True, True)
    assert state.streams() == {"rows/a": "one two", "ask": "here"}

    state.take(TextWithdrawn(item, ""))
    assert state.streams() == {"rows/a": "", "ask": "here"}
    state.take(ItemFinished(Place("rows", "a"), "a", 0, "ok", "", None, Usage(), None, 0.1))
    assert state.streams() == {"ask": "here"}
    assert (state.thinks, state.calls) == (True, True)
    state.take(step_finished("rows"))
    assert (state.thinks, state.calls) == (True, False)
    state.take(turn_finished(HERE, text="here it is"))
    assert (state.thinks, state.streams()) == (False, {"ask": "here it is"})
    state.take(step_finished("ask"))
    assert state.streams() == {}

    for number in range(5000):
        state.take(TextDelta(Place("rows", f"r{number}"), "x" * LONGEST_TEXT))
        state.take(TextDelta(Place("rows", f"r{number}"), "y"))
    assert len(state.streams()) == 100
    assert {len(text) for text in state.streams().values()} == {LONGEST_TEXT}  # type: ignore[arg-type]  # texts


def test_figures_are_exact_where_they_can_be_and_bounded() -> None:
    statistics = Statistics()
    for number in range(1, 5001):
        statistics.take(called("repo__file_read", number / 1000))
    statistics.take(called("repo__file_write", 2.0, "denied"))
    for first in (None, 0.1, 0.3):
        usage = Usage(10, None)
        turn = turn_finished(HERE, usage=usage, seconds=1.0, first_token_seconds=first)
        statistics.take(turn)
    plain: Any = statistics.plain()

    read = plain["tools"]["repo__file_read"]
    assert read == {
        "calls": 5000,
        "errors": 0,
        # Shares of the latest 1,000.
        "duration_ms": {"p50": 4500.0, "p95": 4950.0, "max": 5000.0},
    }
    assert plain["tools"]["repo__file_write"]["errors"] == 1
    (model,) = plain["models"].values()
    assert (model["answers"], model["input_tokens"], model["output_tokens"]) == (3, 30, 0)
    assert model["first_token_ms"] == {"p50": 100.0, "p95": 300.0, "max": 300.0}

    for number in range(3000):
        statistics.take(called(f"box__t{number}"))
    plain = statistics.plain()
    assert len(plain["tools"]) == 1001
    assert plain["tools"]["(others)"]["calls"] == 2002
