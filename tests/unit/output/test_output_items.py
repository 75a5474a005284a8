"""What people see of many items (B4): a display at a terminal, few lines in a log."""

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import sampled
from scripted_events import (
    HOSTILE,
    answered,
    any_event,
    asked,
    run_finished,
    run_started,
    step_finished,
)
from syrupy.assertion import SnapshotAssertion
from terminal_cells import Cells

from aish.core.events import (
    Event,
    Failure,
    ItemFinished,
    ItemStarted,
    Notice,
    Place,
    Retry,
    Stamped,
    StepStarted,
    TextDelta,
    ToolDecided,
    TurnFinished,
    TurnStarted,
)
from aish.core.messages import Usage
from aish.core.text import for_terminal
from aish.output.formats.plain import Plain
from aish.output.presenter import RUN, Presenter
from aish.output.progress import Batch, eta_text, rate_text, summary_parts
from aish.output.screen import Screen
from aish.output.style import ASCII, Look, cells, without_styles

NEVER = 1e6
START = 1_795_000_000.0
LOAD = "http://127.0.0.1:8080: 16 at a time from now on; it has too many"


def started(index: int, step: str = "classify", key: str | None = None) -> ItemStarted:
    name = key if key is not None else f"row-{index}"
    return ItemStarted(Place(step, name), name, index, "0" * 16)


def finished(index: int, step: str = "classify", **changes: Any) -> ItemFinished:
    given_: dict[str, Any] = {
        "place": Place(step, f"row-{index}"),
        "key": f"row-{index}",
        "index": index,
        "status": "ok",
        "text": "x",
        "output": None,
        "usage": Usage(200, 30),
        "cost_usd": 0.0002,
        "seconds": 1.0,
    }
    return ItemFinished(**given_ | changes)


def failed(index: int, message: str = "the answer does not fit", **more: Any) -> ItemFinished:
    return finished(index, status="failed", error=Failure("schema", message), **more)


class Watched:
    """A console on a terminal whose frames are drawn by the test, at its own time."""

    def __init__(self, look: Look | None = None, height: int = 24) -> None:
        self.out = io.StringIO()
        self.time = 0.0
        self.look = look or Look(animate=True)
        self.width = self.look.width
        self.height = height
        self.cells = Cells(self.width)
        self.screen = Screen(self.out, self.look, lambda: self.time, self._size, NEVER)
        self.console = Presenter(self.screen, RUN)

    def _size(self) -> tuple[int, int]:
        return self.width, self.height

    def take(self, *events: Event) -> str:
        """What stands on the terminal after these events, before the next frame."""
        for event in events:
            self.console(Stamped(1, START + self.time, event))
        return self.seen()

    def seen(self) -> str:
        self.cells.feed(self.out.getvalue())
        self.out.truncate(0)
        self.out.seek(0)
        return self.cells.text()

    def frame(self) -> str:
        """The same after a frame."""
        self.screen.tick()
        return self.seen()

    def end(self) -> str:
        self.console.close()
        return self.seen()


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    yield one
    one.screen.close()


def under_way(watched: Watched, step: str = "classify", total: int | None = 2000) -> None:
    watched.take(run_started(), StepStarted(Place(step), "prompt", total))
    for index in range(412):
        watched.time = index / 20
        watched.take(started(index, step))
        if index % 100 == 33:
            watched.take(failed(index, f"the answer does not fit {index // 200}", step=step))
        else:
            watched.take(finished(index, step=step))
    watched.take(*(started(412 + number, step) for number in range(32)))
    turn = Place(step, "row-412", 1)
    watched.take(Retry(turn, "http://127.0.0.1:8080", 2, 0.5, "HTTP 429"))
    watched.take(Notice(turn, "warning", "throttled", LOAD))
    watched.time += 4


@pytest.mark.parametrize(
    "look",
    [
        Look(animate=True, width=120),
        Look(animate=True, width=80),
        Look(animate=True, width=45),
        Look(animate=True, width=80, glyphs=ASCII),
    ],
    ids=["120", "80", "45", "ascii"],
)
def test_a_batch_as_a_person_sees_it(look: Look, snapshot: SnapshotAssertion) -> None:
    watched = Watched(look)
    under_way(watched)
    running = watched.frame()
    ends = step_finished(
        "classify", status="failed", seconds=110.0, error=Failure("items", "4 of 2,000 failed")
    )
    watched.take(ends, run_finished())

    assert running == snapshot(name="running")
    assert watched.end() == snapshot(name="ended")


def test_a_display_in_colour(snapshot: SnapshotAssertion) -> None:
    watched = Watched(Look(animate=True, color=True))
    under_way(watched)
    watched.out.truncate(0)
    watched.out.seek(0)
    watched.screen.tick()

    assert watched.out.getvalue().replace("\x1b", "<ESC>") == snapshot
    watched.end()


def test_without_a_known_total_what_is_done_is_shown(watched: Watched) -> None:
    under_way(watched, total=None)

    assert "● classify  412 done" in watched.frame()


def test_what_a_run_before_has_done_is_done(watched: Watched) -> None:
    watched.take(StepStarted(Place("classify"), "prompt", 100, 60))
    for index in range(60, 80):
        watched.time = index / 10
        watched.take(started(index), finished(index))

    seen = watched.frame()
    ended = watched.take(step_finished("classify", seconds=2.0))

    assert "80/100  80 %" in seen
    assert "ETA 2 s" in seen
    assert "60 done before · 20 of 100 ok · 20 not run" in ended


def test_nothing_is_written_between_two_frames_however_many_items_there_are(
    watched: Watched,
) -> None:
    watched.take(StepStarted(Place("classify"), "prompt", 5000), started(0))
    before = watched.frame()
    for index in range(1, 5000):
        watched.console(Stamped(1, START, started(index)))
        watched.console(Stamped(1, START, finished(index)))

    assert not watched.out.getvalue()
    assert "4,999/5,000" in watched.frame()
    assert "0/5,000" in before


def test_what_an_items_model_says_and_calls_is_not_shown(watched: Watched) -> None:
    turn = Place("classify", "row-1", 1)
    watched.take(StepStarted(Place("classify"), "prompt", 2), started(1))

    seen = watched.take(
        TurnStarted(turn, "fast", 2),
        TextDelta(turn, "a secret thought"),
        TurnFinished(turn, "fast", "stop", "a secret thought", (), Usage(), None, 1.0),
        ToolDecided(turn, "fs__read", "fs", "read", {}, "0" * 64, "auto", "fs__*"),
    )

    assert "thought" not in seen
    assert "fs__read" not in seen


def test_the_display_keeps_away_while_a_person_is_asked(watched: Watched) -> None:
    under_way(watched)
    watched.frame()
    with watched.console.hold():
        asked = watched.frame()
        watched.take(Notice(Place("classify", "row-9"), "warning", "odd", "something odd"))
        assert watched.frame() == asked
    after = watched.frame()

    assert "412/2,000" not in asked
    assert "! classify row-9: something odd" in after
    assert "412/2,000" in after


def test_notices_of_one_kind_are_told_three_times_and_then_counted(watched: Watched) -> None:
    under_way(watched)
    notices = [Notice(Place("classify", f"row-{n}"), "warning", "odd", "odd") for n in range(50)]
    seen = watched.take(*notices)
    watched.take(step_finished("classify"))

    assert seen.count(": odd") == 3
    assert "47 more of `odd`" in watched.end()


def test_an_item_that_waits_is_shown_and_is_no_failure(watched: Watched) -> None:
    under_way(watched)
    place = Place("classify", "row-412", 1, "c1")
    seen = watched.take(
        asked(place, "mail__send", {}, reason=f"it sends {HOSTILE}"),
        finished(412, status="paused", text=None),
        answered(place, answer="deny", way="page"),
    )
    watched.time += 1
    drawn = watched.frame()
    watched.take(step_finished("classify", status="paused"))
    closing = watched.end()

    assert "classify row-412: mail__send waits for an answer until" in seen
    assert "mail__send (1a2b3c4d) denied by mia (page)" in seen
    assert "1 paused" in drawn
    assert "412/2,000" in drawn
    assert "1,587 not run" in closing
    assert "4 failed" in closing
    assert "1 paused" in closing
    assert "classify row-412: paused" not in closing


@pytest.mark.parametrize("height", [3, 6, 12])
def test_a_display_fits_a_low_terminal(height: int) -> None:
    watched = Watched(height=height)
    under_way(watched)
    empty = len(watched.seen().splitlines())

    assert len(watched.frame().splitlines()) - empty <= height
    watched.end()


def test_several_batches_share_the_display() -> None:
    watched = Watched()
    under_way(watched)
    under_way(watched, "review")

    both = watched.frame()
    one = watched.take(step_finished("classify", status="ok"))
    left = watched.frame()

    assert "● classify ━" in both
    assert "● review ━" in both
    assert "408 of 2,000 ok" in one
    assert "● classify ━" not in left
    assert "● review ━" in left
    watched.end()


def test_the_items_of_a_sub_pipeline_are_those_of_its_step(watched: Watched) -> None:
    inner = Place("classify/inner", "row-1")
    watched.take(StepStarted(Place("classify"), "pipeline", 10), started(1))

    watched.take(
        StepStarted(inner, "prompt"),
        Retry(inner, "http://127.0.0.1:8080", 2, 0.5, "HTTP 500"),
        step_finished("classify/inner", place=inner),
        finished(1),
    )

    seen = watched.frame()
    assert "1/10" in seen
    assert "1 retry" in seen
    assert "inner" not in seen


def test_keys_and_failures_of_strangers_stay_harmless() -> None:
    watched = Watched(Look(animate=True, width=100))
    key = HOSTILE * 3
    watched.take(StepStarted(Place(HOSTILE), "prompt", 3))
    watched.take(started(1, HOSTILE, key), started(2, HOSTILE, key))
    watched.time = 30.0
    bad: dict[str, Any] = {
        "place": Place(HOSTILE, key),
        "key": key,
        "error": Failure(HOSTILE, HOSTILE),
    }
    watched.take(finished(1, status="failed", **bad))
    watched.take(Notice(Place(HOSTILE, key), "warning", HOSTILE, HOSTILE))

    # The cells refuse everything but our own sequences.
    seen = watched.frame()
    watched.take(step_finished(HOSTILE))
    seen += f"\n{watched.end()}"

    assert r"a\x1b[2Jb" in seen
    assert all(cells(line) <= 100 for line in seen.splitlines())


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.lists(any_event(), max_size=12))
def test_no_event_of_any_kind_steers_the_terminal(events: list[Stamped]) -> None:
    watched = Watched()
    watched.take(StepStarted(Place("a"), "prompt", 5), started(1, "a", "b"))
    for event in events:
        watched.console(event)
        watched.screen.tick()
    shown = without_styles(watched.out.getvalue())
    watched.end()

    ours = shown.replace("\x1b[1A", "").replace("\x1b[2K", "").replace("\x1b[K", "")
    ours = ours.replace("\x1b[J", "").replace("\r", "")
    assert for_terminal(ours) == ours


@settings(deadline=None)
@given(st.data())
def test_whatever_is_pinned_and_drawn_only_what_was_written_is_left(data: st.DataObject) -> None:
    out = io.StringIO()
    plain: list[str] = []
    kinds = st.sampled_from(["line", "text", "wait", "rest", "pin", "unpin", "tick", "hold"])
    moves = data.draw(st.lists(st.tuples(kinds, st.integers(1, 20)), max_size=30))
    screen = Screen(out, Look(animate=True, width=30), lambda: 0.0, lambda: (30, 10), NEVER)
    for number, (move, times) in enumerate(moves):
        word = f"w{number}" * times
        match move:
            case "line":
                begun = plain and not plain[-1].endswith("\n")
                plain.append(("\n" if begun else "") + f"{word}\n")
                screen.line(word)
            case "text":
                plain.append(word)
                screen.text(word)
            case "pin":
                screen.pin(lambda width, _: ["", "one", "two" * (width // 4)])
            case "unpin":
                screen.pin(None)
            case "wait":
                screen.wait("waiting")
            case "rest":
                screen.rest()
            case "tick":
                screen.tick()
            case _:
                with screen.hold():
                    screen.tick()
    screen.close()
    seen, wanted = Cells(30), Cells(30)
    seen.feed(out.getvalue())
    wanted.feed("".join(plain))

    assert seen.text() == wanted.text()


def test_a_window_made_narrower_leaves_nothing_behind() -> None:
    out = io.StringIO()
    size = [40]
    screen = Screen(out, Look(animate=True, width=40), lambda: 0.0, lambda: (size[0], 10), NEVER)
    screen.pin(lambda width, _: ["x" * (width - 1), "y" * (width - 1)])
    screen.tick()
    size[0] = 20
    before = out.tell()
    for _ in range(4):
        screen.tick()

    # The two rows are four now: the cursor goes up over three of them, and erases all.
    drawn = out.getvalue()[before:]
    assert (drawn.count("\x1b[1A"), drawn.count("\x1b[2K")) == (3, 4)
    screen.close()


@pytest.mark.parametrize("rows", [["only"], ["one", "two"]], ids=["one", "several"])
def test_what_stands_on_the_screen_is_not_drawn_again(rows: list[str]) -> None:
    out = io.StringIO()
    size = [40, 10]
    pinned = list(rows)
    screen = Screen(
        out, Look(animate=True, width=40), lambda: 0.0, lambda: (size[0], size[1]), NEVER
    )
    screen.pin(lambda *_: pinned)

    def drawn() -> bool:
        before = out.tell()
        screen.tick()
        return out.tell() > before

    assert drawn()
    assert not drawn()
    screen.line("said above it")
    assert not drawn(), "it stands below what was written"
    pinned[0] = "other"
    assert drawn()
    size[0] = 50
    assert drawn()
    assert not drawn()
    size[0] = 30
    assert [drawn() for _ in range(5)] == [False, False, False, True, False]
    with screen.hold():
        assert not drawn()
    assert drawn(), "somebody else had the terminal"
    screen.text("a piece\n", elsewhere=True)
    assert drawn(), "somebody else wrote that"
    screen.close()


def test_a_display_draws_by_itself_and_ends_with_the_console() -> None:
    class Terminal(io.StringIO):
        wrote = threading.Event()

        def write(self, text: str, /) -> int:
            if "classify" in text:
                self.wrote.set()
            return super().write(text)

    out = Terminal()
    console = Presenter(Screen(out, Look(animate=True)), RUN)
    console(Stamped(1, START, StepStarted(Place("classify"), "prompt", 5)))
    console(Stamped(2, START, started(1)))
    assert out.wrote.wait(60)
    console.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "spinner"]


# Several steps at once ----------------------------------------------------------------------


def turn_of(step: str) -> Place:
    return Place(step, turn=1)


def said(step: str, text: str) -> TurnFinished:
    return TurnFinished(turn_of(step), "local", "stop", text, (), Usage(), None, 1.0)


def test_answers_of_steps_that_talk_at_once_are_not_mixed(watched: Watched) -> None:
    watched.take(StepStarted(Place("one"), "prompt"), TextDelta(turn_of("one"), "first "))
    watched.take(StepStarted(Place("two"), "prompt"))
    for word in ("a ", "b ", "c "):
        watched.take(TextDelta(turn_of("two"), word), TextDelta(turn_of("one"), word))
    seen = watched.take(said("two", "a b c "), said("one", "first a b c "))

    assert [line for line in seen.splitlines() if line] == [
        "● one",
        "first a b c",
        "● two",
        "a b c",
    ]


def test_an_answer_that_was_cut_in_two_by_another_step_goes_on_under_its_name(
    watched: Watched,
) -> None:
    call = Place("two", turn=1, call="c1")
    watched.take(StepStarted(Place("one"), "prompt"), TextDelta(turn_of("one"), "first half, "))
    watched.take(StepStarted(Place("two"), "call"))
    watched.take(ToolDecided(call, "fs__read", "fs", "read", {}, "0" * 64, "auto", "fs__*"))
    watched.take(TextDelta(turn_of("one"), "second "), TextDelta(turn_of("one"), "half"))
    seen = watched.take(said("one", "first half, second half"))

    assert [line.strip() for line in seen.splitlines() if line] == [
        "● one",
        "first half,",
        "● two",
        "▸ fs__read {}",
        "● one",
        "second half",
    ]


def test_each_step_that_is_waited_for_is_named(watched: Watched) -> None:
    watched.take(StepStarted(Place("one"), "prompt"), StepStarted(Place("two"), "prompt"))
    watched.take(TurnStarted(turn_of("one"), "local", 1), TurnStarted(turn_of("two"), "cloud", 1))

    assert "one: waiting for local, two: waiting for cloud" in watched.frame()


# Logs ---------------------------------------------------------------------------------------


def logged(events: Iterator[tuple[float, Event]]) -> list[str]:
    out = io.StringIO()
    plain = Plain(out)
    for seconds, event in events:
        plain(Stamped(1, START + seconds, event))
    return out.getvalue().splitlines()


def many(
    count: int, seconds: float, total: int | None, bad: int = 0
) -> Iterator[tuple[float, Event]]:
    yield 0.0, StepStarted(Place("classify"), "prompt", total)
    for index in range(count):
        now = index * seconds
        turn = Place("classify", f"row-{index}", 1)
        yield now, started(index)
        yield now, TurnStarted(turn, "fast", 2)
        yield now, (failed if bad and index % bad == 0 else finished)(index)
    yield count * seconds, step_finished("classify", seconds=count * seconds)


def test_a_log_has_a_line_now_and_then(snapshot: SnapshotAssertion) -> None:
    assert "\n".join(logged(many(2000, 0.1, 2000, bad=500))) == snapshot


@pytest.mark.parametrize(
    "total", sampled([50_000, None], often={0}, reason="cases of the same kind")
)
def test_a_log_stays_short_however_many_items_there_are(total: int | None) -> None:
    lines = logged(many(50_000, 0.04, total, bad=3))

    assert len(lines) < 90
    assert sum(": failed: " in line for line in lines) == 20
    assert any("16,647 more failed" in line for line in lines)


def test_a_slow_batch_says_at_times_that_it_is_alive() -> None:
    lines = logged(many(5, 400.0, 1000))

    assert sum("/1,000" in line for line in lines) == 4


def test_a_terminal_that_cannot_be_moved_on_gets_lines() -> None:
    out = io.StringIO()
    console = Presenter(Screen(out, Look()), RUN)
    for _, event in many(30, 0.0, 30, bad=10):
        console(Stamped(1, START, event))
    console.close()

    assert "\x1b" not in out.getvalue()
    assert "classify: 30 items" in out.getvalue()
    assert out.getvalue().count(": failed: ") == 3


# Counting -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["ok", "failed", "skipped", "denied"]), st.booleans())))
def test_every_item_is_counted_once(ends: list[tuple[str, bool]]) -> None:
    batch = Batch("s", len(ends), 0.0)
    for index, (status, priced) in enumerate(ends):
        batch.start(started(index), float(index))
        cost = 0.5 if priced else None
        batch.finish(finished(index, status=status, cost_usd=cost), index + 1.0)

    assert batch.ok + batch.failed + batch.skipped == batch.done == len(ends)
    assert not batch.in_flight
    assert batch.unpriced == sum(not priced for _, priced in ends)
    assert len(batch.causes) <= 10
    assert len(batch.last_causes) <= 3


@given(st.lists(st.integers(0, 30), max_size=200))
def test_alike_failures_are_one_and_only_so_many_are_kept(messages: list[int]) -> None:
    batch = Batch("s", len(messages), 0.0)
    for index, message in enumerate(messages):
        batch.finish(failed(index, f"wrong {message}"), 1.0)

    first = list(dict.fromkeys(f"wrong {message}" for message in messages))[:10]
    last = list(dict.fromkeys(f"wrong {message}" for message in reversed(messages)))[:3]
    assert list(batch.causes) == first
    assert list(reversed(batch.last_causes)) == last
    assert sum(cause.count for cause in batch.causes.values()) == sum(
        f"wrong {message}" in first for message in messages
    )


def test_a_cost_that_is_not_known_is_said() -> None:
    batch = Batch("s", 3, 0.0)
    batch.finish(finished(1, cost_usd=None), 1.0)
    assert summary_parts(batch, 1.0)[-1] == "cost unknown"

    batch.finish(finished(2, cost_usd=1.5), 1.0)
    assert summary_parts(batch, 1.0)[-1] == "$1.50 (1 unpriced)"


def test_a_cost_of_nothing_is_not_worth_a_word() -> None:
    batch = Batch("s", 2, 0.0)
    batch.finish(finished(1, cost_usd=0.0), 1.0)

    assert not any("$" in part or "cost" in part for part in summary_parts(batch, 1.0))

    batch.finish(finished(2, cost_usd=0.00012), 1.0)
    assert summary_parts(batch, 1.0)[-1] == "$0.00012"


def test_the_rate_is_that_of_late() -> None:
    batch = Batch("s", 1000, 0.0)
    for index in range(100):
        batch.finish(finished(index), index * 10.0)
    for index in range(100, 300):
        batch.finish(finished(index), 1000.0 + (index - 100) * 0.5)

    assert batch.rate(1100.0) == pytest.approx(2.0, rel=0.05)
    assert batch.eta(1100.0) == pytest.approx(350.0, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (9000, "2 h 30 min")],
)
def test_a_guess_is_told_as_people_say_it(seconds: float, text: str) -> None:
    assert eta_text(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(12.34, "12.3/s"), (0.5, "30.0/min"), (0.001, "3.6/h")])
def test_a_slow_rate_is_told_by_the_minute_or_the_hour(rate: float, text: str) -> None:
    assert rate_text(rate) == text
