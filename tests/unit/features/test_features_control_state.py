"""What a run tells over its socket is folded from its events, in bounded memory (A3)."""

from dataclasses import replace

import pytest
from asking_runs import DIGEST, ID, answered, asked, finished
from scripted_events import run_started, stamped, step_finished, turn_finished

from aish.core.events import (
    Event,
    ItemFinished,
    ItemStarted,
    Place,
    Stamped,
    StepStarted,
    TextDelta,
    plain,
    to_object,
)
from aish.core.messages import (
    Spent,
    Usage,
)
from aish.features.control.run_state import (
    MOST_DECIDED,
    MOST_EVENTS,
    MOST_TEXT,
    EventsGoneError,
    RunState,
)

RUN = "20261121T190138Z-release-32be"
STEPS = {"read": None, "write": 1}


class Still:
    """A clock that stands at a moment."""

    def __init__(self, time: float) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def state_of(*events: Event, now: float = 0.0) -> RunState:
    state = RunState(RUN, "release", STEPS, Still(now))
    for one in stamped(run_started(), *events):
        state(one)
    return state


def item(index: int, text: str = "done") -> ItemFinished:
    key, place = f"r{index}", Place("read", f"r{index}")
    return ItemFinished(place, key, index, "ok", text, None, Usage(), None, 0.1)


def test_the_status_tells_steps_figures_and_questions() -> None:
    turn = turn_finished(Place("read", "r0", 1), usage=Usage(10, 2), cost_usd=0.5)
    state = state_of(
        StepStarted(Place("read"), "prompt", 5, 2),
        ItemStarted(Place("read", "r0"), "r0", 0, "x"),
        turn,
        item(0),
        StepStarted(Place("write"), "call"),
        asked(),
    )

    found = state.status()

    assert found["steps"] == [
        {"id": "read", "status": "running", "done": 3, "total": 5},
        {"id": "write", "status": "waiting", "done": 0, "total": 1},
    ]
    assert (found["state"], found["pending"], found["exit"]) == ("waiting", [ID], None)
    assert found["tokens"] == plain(Usage(10, 2))
    assert found["cost_usd"] == pytest.approx(0.5)


def test_the_state_follows_answers_and_the_end() -> None:
    asking: list[Event] = [StepStarted(Place("write"), "call"), asked()]
    ok = step_finished("write")

    states = [
        state_of(*asking[:1]).phase,
        state_of(*asking).phase,
        state_of(*asking, answered()).phase,
        state_of(*asking, finished("paused")).phase,
        state_of(*asking, answered(), ok, finished("ok")).phase,
    ]

    assert states == ["running", "waiting", "running", "paused", "finished"]
    ended = state_of(*asking, answered(), ok, finished("ok")).status()
    assert ended["exit"] == {
        "code": 0,
        "name": "ok",
        "retryable": False,
        "reason": "",
        "hint": None,
    }
    assert (ended["tokens"], ended["cost_usd"]) == (plain(Usage(412, 96)), None)
    assert {"id": "write", "status": "ok", "done": 1, "total": 1} in ended["steps"]  # type: ignore[operator]  # a list


@pytest.mark.slow(reason="measures memory over many events")
def test_a_long_run_does_not_grow() -> None:
    state = RunState(RUN, "release", STEPS, Still(0.0))
    seq = 0

    def take(event: Event) -> None:
        nonlocal seq
        seq += 1
        state(Stamped(seq, 0.0, event))

    take(StepStarted(Place("read"), "prompt", 100_000))
    for number in range(100_000):
        take(item(number))
    for number in range(2 * MOST_DECIDED):
        take(asked(f"{number:032x}"))
        take(answered(f"{number:032x}"))

    steps = state.status()["steps"]
    assert steps[0] == {"id": "read", "status": "running", "done": 100_000, "total": 100_000}  # type: ignore[index]  # a list
    assert len(state.after(None, 1 << 30)[0]) == MOST_EVENTS
    assert len(state.questions()["decided"]) == MOST_DECIDED  # type: ignore[arg-type]  # a list
    assert state.question("0" * 32) is None


def test_large_events_are_kept_by_their_size() -> None:
    size = MOST_TEXT // 4
    state = state_of(*(item(number, "x" * size) for number in range(10)))

    kept, _ = state.after(None, 1 << 30)

    assert [one.seq for one in kept] == [9, 10, 11]
    # One that is too large by itself is told all the same.
    huge = state_of(item(0, "x" * (MOST_TEXT + 1)))
    assert len(huge.after(None, 10)[0]) == 1


def test_events_come_in_order_and_what_is_gone_is_said() -> None:
    state = state_of(*(item(number) for number in range(MOST_EVENTS + 10)))

    with pytest.raises(EventsGoneError) as gone:
        state.after(3, 10)
    oldest, last = state.after(gone.value.first, 10)
    following, _ = state.after(last, 5)
    numbers = [one.seq for one in (*oldest, *following)]
    assert numbers == list(range(12, 27))
    assert state.after(MOST_EVENTS + 11, 10) == ([], MOST_EVENTS + 11)


def test_readers_get_pieces_of_answers_and_the_rest_keeps_none() -> None:
    state = state_of()
    heard: list[Stamped] = []
    stop = state.follow(heard.append)
    piece = Stamped(2, 0.0, TextDelta(Place("read"), "He"))
    whole = Stamped(3, 0.0, item(0))

    state(piece)
    state(whole)
    stop()
    state(replace(whole, seq=4))

    assert heard == [piece, whole]
    assert [one.seq for one in state.after(None, 10)[0]] == [1, 3, 4]
    assert to_object(heard[0])["type"] == "text.delta"


def test_a_resumed_run_tells_what_was_done_and_asked_before() -> None:
    spent = Spent(turns=3, usage=Usage(5, 5), cost_usd=1.0, seconds=60.0)
    state = RunState(RUN, "release", STEPS, Still(0.0), spent)
    before = stamped(StepStarted(Place("write"), "call"), asked(), step_finished("write"))

    state.begin_after(iter(before), 17)

    found = state.status()
    assert (found["seconds"], found["cost_usd"]) == (60.0, 1.0)
    assert found["pending"] == [ID]
    assert state.question(ID).digest == DIGEST  # type: ignore[union-attr]  # it is there
    with pytest.raises(EventsGoneError) as gone:
        state.after(16, 10)
    assert gone.value.first == 17
