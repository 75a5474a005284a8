from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import anyio
import pytest
from agent_fakes import Answer, Talker, Ticks, asked, says
from hypothesis import given
from hypothesis import strategies as st

from aish.agent.assemble import Assembled, Assembly, assemble
from aish.core.errors import StepFailedError, UnavailableError
from aish.core.events import (
    Event,
    Fallback,
    Notice,
    Place,
    ReasoningDelta,
    Retry,
    TextDelta,
    TextWithdrawn,
    TurnProgress,
)
from aish.core.messages import (
    Delta,
    Extras,
    FellBack,
    Finish,
    ReasoningPiece,
    Retrying,
    StreamNotice,
    TextPiece,
    Usage,
    Withdrawn,
)
from aish.core.protocols import ModelRequest
from aish.core.tools import ToolCall

PLACE = Place(step="one", turn=1)
END = Finish("stop", Usage(10, 2), raw="stop", model="twin")


def assembled(answer: Answer) -> tuple[Assembled, list[Event]]:
    events: list[Event] = []
    request = ModelRequest(asked())
    got = anyio.run(assemble, Talker([answer]), request, PLACE, events.append, Ticks())
    return got, events


def test_text_before_a_tool_call_is_shown_first_and_kept_on_the_same_turn() -> None:
    call = ToolCall("c1", "box__look", "{}")
    got, events = assembled([[TextPiece("Let me ")], [TextPiece("look.")], [call, END]])
    assert got.text == "Let me look."
    assert got.calls == (call,)
    assert events == [TextDelta(PLACE, "Let me "), TextDelta(PLACE, "look.")]


def test_what_arrives_at_one_time_is_one_event() -> None:
    pieces = [TextPiece("a"), TextPiece(""), TextPiece("b")]
    _, events = assembled([pieces, [END]])
    assert events == [TextDelta(PLACE, "ab")]


def test_an_empty_batch_and_an_empty_piece_are_no_event() -> None:
    _, events = assembled([[], [TextPiece("")], [ReasoningPiece("")], [END]])
    assert events == []


def test_text_and_thinking_of_one_batch_are_told_in_their_order() -> None:
    batch: list[Delta] = [
        ReasoningPiece("hm"),
        ReasoningPiece("m"),
        TextPiece("a"),
        TextPiece("b"),
        ReasoningPiece("x"),
    ]
    got, events = assembled([batch, [END]])
    assert got.text == "ab"
    assert events == [
        ReasoningDelta(PLACE, "hmm"),
        TextDelta(PLACE, "ab"),
        ReasoningDelta(PLACE, "x"),
    ]


def test_unknown_fields_of_the_endpoint_are_kept() -> None:
    got, _ = assembled([[Extras({"a": 1})], [Extras({"b": [2]}), END]])
    assert got.extras == {"a": 1, "b": [2]}


def test_what_a_broken_try_said_is_withdrawn_and_no_part_of_the_answer() -> None:
    got, events = assembled(
        [
            [TextPiece("It is "), ToolCall("c0", "box__rm", "{}"), Extras({"a": 1})],
            [Withdrawn("reset"), Retrying("http://x", 2, 0.5, "reset")],
            [TextPiece("Hello"), END],
        ]
    )
    assert (got.text, got.calls, got.extras) == ("Hello", (), {})
    assert events == [
        TextDelta(PLACE, "It is "),
        TextWithdrawn(PLACE, "It is "),
        Retry(PLACE, "http://x", 2, 0.5, "reset"),
        TextDelta(PLACE, "Hello"),
    ]


def test_nothing_is_withdrawn_where_nothing_was_shown() -> None:
    _, events = assembled([[Withdrawn("reset")], [TextPiece("Hello"), END]])
    assert events == [TextDelta(PLACE, "Hello")]


def test_thinking_alone_is_withdrawn_too() -> None:
    _, events = assembled([[ReasoningPiece("hm")], [Withdrawn("reset")], [END]])
    assert events == [ReasoningDelta(PLACE, "hm"), TextWithdrawn(PLACE, "")]


def test_fallbacks_and_oddities_are_told() -> None:
    batch: list[Delta] = [
        FellBack("a", "b", "503"),
        StreamNotice("no_index", "calls without index"),
        END,
    ]
    _, events = assembled([batch])
    assert events == [
        Fallback(PLACE, "a", "b", "503"),
        Notice(PLACE, "warning", "no_index", "calls without index"),
    ]


def test_a_stream_that_ends_without_an_end_is_no_answer() -> None:
    events: list[Event] = []
    model = Talker([[[TextPiece("It is ")]]])
    with pytest.raises(StepFailedError, match="incomplete"):
        anyio.run(assemble, model, ModelRequest(asked()), PLACE, events.append, Ticks())
    assert events == [TextDelta(PLACE, "It is "), TextWithdrawn(PLACE, "It is ")]


def test_what_was_shown_before_a_failure_is_withdrawn() -> None:
    events: list[Event] = []
    model = Talker([[[TextPiece("It is ")], UnavailableError("gone")]])
    with pytest.raises(UnavailableError):
        anyio.run(assemble, model, ModelRequest(asked()), PLACE, events.append, Ticks())
    assert events == [TextDelta(PLACE, "It is "), TextWithdrawn(PLACE, "It is ")]
    assert model.closed == 1


def test_the_stream_is_closed_when_an_event_cannot_be_told() -> None:
    def broken(event: Event) -> None:
        raise BrokenPipeError

    model = Talker([[[TextPiece("a")], [END]]])
    with pytest.raises(BrokenPipeError):
        anyio.run(assemble, model, ModelRequest(asked()), PLACE, broken, Ticks())
    assert model.closed == 1


def test_times_count_from_the_request() -> None:
    # The clock goes on by one with each look: at the start, the first token and the end.
    got, _ = assembled([[TextPiece("a")], [TextPiece("b")], [END]])
    assert (got.first_token, got.seconds) == (1.0, 2.0)


def test_an_answer_of_nothing_has_no_first_token() -> None:
    got, _ = assembled(says(""))
    assert got.first_token is None


@given(st.lists(st.lists(st.sampled_from(["t:a", "t:bc", "r:x", "t:", "call"]))))
def test_however_it_is_cut_the_text_is_the_sum_of_what_was_shown(
    script: list[list[str]],
) -> None:
    events: list[Event] = []
    clock = Ticks()
    assembly = Assembly(PLACE, events.append, clock, clock.now())
    for batch in script:
        assembly.add([_delta(word) for word in batch])
    assembly.add([END])
    got = assembly.result("twin")
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    said: Sequence[str] = [word for batch in script for word in batch]
    assert got.text == shown == "".join(word[2:] for word in said if word.startswith("t:"))
    assert thought == "x" * said.count("r:x")
    assert len(got.calls) == said.count("call")


def _delta(word: str) -> Delta:
    if word == "call":
        return ToolCall("", "box__look", "{}")
    return TextPiece(word[2:]) if word.startswith("t:") else ReasoningPiece(word[2:])


class Pausing(Talker):
    """A model that lets time pass between what it says, and its answer grow."""

    def __init__(self, answer: Answer, pause: Callable[[ModelRequest, int], None]) -> None:
        super().__init__([answer])
        self._pause = pause

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        at = 0
        self._pause(request, at)
        async for batch in super().stream(request):
            yield batch
            at += 1
            self._pause(request, at)


@dataclass
class Came:
    """An answer of which so much has come."""

    progress: int


class Minutes:
    """A clock that is set."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.mark.parametrize("answer", [says("hello"), [[TextPiece("a")], StepFailedError("broken")]])
def test_a_turn_that_takes_long_is_told_of_until_it_ends(answer: Answer) -> None:
    clock, events, running = Minutes(), list[Event](), list[Callable[[], None]]()

    def every(seconds: float, tell: Callable[[], None]) -> Callable[[], None]:
        assert seconds == pytest.approx(10)
        running.append(tell)
        return running.clear

    def pause(request: ModelRequest, at: int) -> None:
        clock.time += 10
        request.received.source = Came(7 * at) if at else None
        for tell in running:
            tell()

    async def ask() -> None:
        model = Pausing(answer, pause)
        await assemble(model, ModelRequest(asked()), PLACE, events.append, clock, every)

    if isinstance(answer[-1], StepFailedError):
        with pytest.raises(StepFailedError):
            anyio.run(ask)
    else:
        anyio.run(ask)

    told = [one for one in events if isinstance(one, TurnProgress)]
    assert told[:2] == [TurnProgress(PLACE, "twin", 0, 10.0), TurnProgress(PLACE, "twin", 7, 20.0)]
    assert running == []
