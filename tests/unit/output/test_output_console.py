import io
import threading
from collections.abc import Callable

import pytest
from scripted_events import (
    HOSTILE,
    answered,
    asked,
    decided,
    ordinary_run,
    paused_run,
    recorded_run,
    run_finished,
    run_started,
    stamped,
    step_finished,
    troubled_run,
    turn_finished,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import (
    Event,
    Failure,
    HistoryReplaced,
    Place,
    ReasoningDelta,
    Retry,
    Stamped,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolFinished,
    ToolOutput,
    ToolProgress,
    ToolStarted,
    TurnAdded,
    TurnPurpose,
    TurnStarted,
)
from aish.core.text import for_terminal
from aish.output.presenter import RUN, Presenter
from aish.output.screen import Screen
from aish.output.style import ASCII, Look

TURN = Place("read", turn=1)
CALL = Place("read", turn=1, call="c1")


def drawn(run: list[Stamped], look: Look, elsewhere: str | None = None) -> str:
    out = io.StringIO()
    console = Presenter(Screen(out, look), RUN, elsewhere=elsewhere)
    for event in run:
        console(event)
    console.close()
    return out.getvalue()


def events(*said: Event) -> list[Stamped]:
    return stamped(*said)


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize(
    "run",
    [ordinary_run, troubled_run, unmet_run, recorded_run],
    ids=["ordinary", "troubled", "unmet", "recorded"],
)
def test_a_run_as_a_person_sees_it(
    run: Callable[[], list[Stamped]], width: int, snapshot: SnapshotAssertion
) -> None:
    assert drawn(run(), Look(width=width)) == snapshot


@pytest.mark.parametrize("width", [80, 40])
def test_a_paused_run_as_a_person_sees_it(width: int, snapshot: SnapshotAssertion) -> None:
    shown = drawn(stamped(*paused_run()), Look(width=width))

    assert for_terminal(shown) == shown
    assert shown == snapshot


def test_a_question_at_the_terminal_is_not_shown_twice() -> None:
    run: list[Event] = [
        run_started(),
        StepStarted(Place("read"), "prompt"),
        asked(CALL, "repo__file_write", {}, expires=None),
        answered(CALL, way="terminal"),
    ]

    assert "waits" not in drawn(stamped(*run), Look())
    assert "approved" not in drawn(stamped(*run), Look())


def test_the_console_says_whose_answer_counts() -> None:
    run: list[Event] = [
        run_started(),
        StepStarted(Place("read"), "prompt"),
        asked(CALL, "repo__file_write", {}),
        answered(CALL, answer="deny", way="page", note="not on Friday"),
    ]

    shown = drawn(stamped(*run), Look(width=120))

    assert "repo__file_write (1a2b3c4d) denied by mia (page): not on Friday" in shown


def test_a_run_in_colour(snapshot: SnapshotAssertion) -> None:
    shown = drawn(troubled_run(), Look(color=True))

    assert shown.replace("\x1b", "<ESC>") == snapshot


def test_a_run_on_a_terminal_that_knows_ascii_only(snapshot: SnapshotAssertion) -> None:
    assert drawn(ordinary_run(), Look(glyphs=ASCII)) == snapshot


@pytest.mark.requirement("X3")
@pytest.mark.parametrize(
    "run", [ordinary_run, troubled_run, unmet_run], ids=["ordinary", "troubled", "unmet"]
)
def test_only_our_own_escape_sequences_reach_the_terminal(
    run: Callable[[], list[Stamped]],
) -> None:
    shown = drawn(run(), Look())

    assert for_terminal(shown) == shown


def test_an_escape_sequence_cut_in_two_by_streaming_stays_harmless() -> None:
    pieces = [TextDelta(TURN, character) for character in HOSTILE]

    shown = drawn(events(*pieces), Look())

    assert for_terminal(shown) == shown
    assert r"\x1b[2J" in shown


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_frame_is_wider_than_the_terminal(width: int) -> None:
    wide = "日本語" * 50
    run = events(
        decided(CALL, f"repo__{wide}", {"path": wide}),
        ToolFinished(CALL, f"repo__{wide}", "ok", f"{wide}\n{wide}", None, 1.0),
        ToolFinished(CALL, f"repo__{wide}", "handler_error", wide, "files/" + wide, 1.0),
    )

    lines = drawn(run, Look(width=width)).splitlines()

    assert (
        max(sum(1 if c.isascii() or c in "│▸◂╰─·…●" else 2 for c in line) for line in lines)
        <= width
    )


def test_text_that_another_sink_writes_is_left_to_it() -> None:
    run = events(
        TurnStarted(TURN, "local", 1),
        TextDelta(TURN, "the answer"),
        turn_finished(TURN, "the answer"),
        step_finished(),
        run_finished(),
    )

    shown = drawn(run, Look(), elsewhere="read")

    assert "the answer" not in shown
    assert "● read" in shown


def test_an_answer_that_was_not_streamed_is_shown_whole() -> None:
    assert "all at once" in drawn(events(turn_finished(TURN, "all at once")), Look())


def test_a_step_that_is_skipped_takes_one_line() -> None:
    run = events(StepStarted(Place("late"), "call"), step_finished("late", status="skipped"))

    assert drawn(run, Look()) == "○ late: skipped\n"


def test_a_denied_call_is_shown_with_the_rule() -> None:
    said = "[aish] tool call denied by rule *__delete*"
    call = (
        decided(CALL, "repo__delete", {}, verdict="deny", hint="approve it so"),
        ToolFinished(CALL, "repo__delete", "denied", said, None, 0.0),
    )
    end = run_finished(denials={"repo__delete": 1})
    failure = Failure("denied", "a call was denied", "approve it so")
    told = (*call, step_finished("one", status="denied", error=failure), end)

    assert "✗ tool call denied by rule *__delete*" in drawn(events(*call, end), Look())
    assert drawn(events(*call, end), Look()).count("hint: approve it so") == 1
    assert drawn(events(*told), Look()).count("hint: approve it so") == 1


def test_who_approved_a_call_at_the_terminal_is_shown() -> None:
    call = decided(CALL, "repo__write", {}, verdict="ask-yes", rule="the user")

    assert "    approved by the user\n" in drawn(events(call), Look())


def test_the_last_line_of_a_resumed_run_tells_its_own_part_from_the_whole() -> None:
    parts = (step_finished("two"), run_finished())
    first = drawn(events(run_started(), *parts), Look())
    resumed = drawn(events(run_started(resumed_from="run"), *parts), Look())

    assert "ok · 1 step · 1 tool call · 412 in / 96 out tokens · 1.8 s" in first
    assert "ok · 1 step · 1.8 s · whole run: 1 tool call · 412 in / 96 out tokens" in resumed


def test_a_result_among_those_of_other_calls_names_its_tool() -> None:
    other = Place("read", turn=1, call="c2")
    run = events(
        decided(CALL, "repo__first", {}),
        decided(other, "repo__second", {}),
        ToolFinished(CALL, "repo__first", "ok", "1", None, 0.1),
        ToolFinished(other, "repo__second", "ok", "2", None, 0.1),
    )

    assert [line.strip() for line in drawn(run, Look()).splitlines() if "◂" in line] == [
        "◂ repo__first",
        "◂ repo__second",
    ]


class Terminal(io.StringIO):
    """Says when something is written, so that a test can wait for a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote = threading.Event()

    def write(self, text: str, /) -> int:
        count = super().write(text)
        self.wrote.set()
        return count


def spinning(*said: Event, waited: float = 0.0) -> tuple[Presenter, Screen, io.StringIO]:
    """A console whose spinner is drawn by `tick`: its thread would do that in an hour."""
    out = io.StringIO()
    times = iter([0.0] + [waited] * 100)
    screen = Screen(out, Look(animate=True, width=40), lambda: next(times), period=3600.0)
    console = Presenter(screen, RUN)
    for event in stamped(*said):
        console(event)
    out.truncate(0)
    out.seek(0)
    screen.tick()
    return console, screen, out


@pytest.mark.parametrize(
    ("event", "label"),
    [
        (TurnStarted(TURN, "local", 1), "waiting for local"),
        (ReasoningDelta(TURN, "hm"), "thinking"),
        (ToolStarted(CALL, "repo__read"), "repo__read"),
        (Retry(TURN, "127.0.0.1", 2, 3.0, "reset"), "waiting to ask 127.0.0.1 again"),
    ],
)
def test_a_spinner_says_what_is_waited_for(event: Event, label: str) -> None:
    console, _, out = spinning(event)

    assert out.getvalue() == f"\r\x1b[2K⠋ {label}"
    console.close()
    assert out.getvalue().endswith("\r\x1b[2K")


def test_a_spinner_says_what_is_done_before_the_run_has_started() -> None:
    console, screen, out = spinning()

    console.opening("task\x1b[2J", ["starting server s\x07", "connecting to server web"], 0.0)
    screen.tick()

    title, waiting = out.getvalue().removeprefix("\r\x1b[2K").split("\n")
    assert title == "task\\x1b[2J"
    assert waiting.startswith("\r\x1b[2K⠋ starting server s\\x07, connect")
    out.truncate(0)
    out.seek(0)
    console.opening("task", (), 0.0)
    console(stamped(run_started(models=(), pipeline="task"))[0])
    assert out.getvalue().startswith("\r\x1b[2K")
    assert "starting" not in out.getvalue()
    assert "task" not in out.getvalue()
    console.close()


def test_a_spinner_counts_seconds_and_fits_the_width() -> None:
    console, _, out = spinning(TurnStarted(TURN, "m" * 80, 1), waited=12.0)
    console.close()

    assert len(out.getvalue().removesuffix("\r\x1b[2K")) == len("\r\x1b[2K") + 39


def test_progress_of_a_call_shows_in_the_spinner() -> None:
    console, _, out = spinning(
        ToolStarted(CALL, "repo__read"), ToolProgress(CALL, "repo__read", 3, 10, "\x1b[2Jhalf")
    )
    console.close()

    assert r"⠋ repo__read 3/10 \x1b[2Jhalf" in out.getvalue()


def test_the_spinner_is_gone_before_text_comes() -> None:
    console, screen, out = spinning(TurnStarted(TURN, "local", 1))
    for event in stamped(TextDelta(TURN, "Hel"), TextDelta(TURN, "lo")):
        console(event)
    screen.tick()
    console.close()

    assert out.getvalue() == "\r\x1b[2K⠋ waiting for local\r\x1b[2KHello\n"


def test_the_spinner_keeps_away_while_a_person_is_asked() -> None:
    console, screen, out = spinning(ToolStarted(CALL, "repo__read"))
    with console.hold():
        before = out.getvalue()
        screen.tick()
        assert out.getvalue() == before
    screen.tick()
    console.close()

    assert out.getvalue().count("repo__read") == 2


def test_the_spinner_goes_on_while_another_call_runs() -> None:
    other = Place("read", turn=1, call="c2")
    console, screen, out = spinning(ToolStarted(CALL, "repo__a"), ToolStarted(other, "repo__b"))
    console(stamped(ToolFinished(CALL, "repo__a", "ok", "x", None, 0.1))[0])
    screen.tick()
    console.close()

    assert "repo__a, repo__b" in out.getvalue()
    assert out.getvalue().rstrip("\r\x1b[2K").endswith(" repo__b")


def test_the_spinner_draws_by_itself_and_ends_with_the_console() -> None:
    out = Terminal()
    screen = Screen(out, Look(animate=True))
    console = Presenter(screen, RUN)
    console(stamped(TurnStarted(TURN, "local", 1))[0])
    for _ in range(2):  # the header, then frames of the spinner's thread
        assert out.wrote.wait(60)
        out.wrote.clear()
    console.close()

    assert "waiting for local" in out.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "spinner"]


def test_without_a_terminal_nothing_moves() -> None:
    run = events(TurnStarted(TURN, "local", 1), ToolStarted(CALL, "a__b"), TextWithdrawn(TURN, "x"))

    assert "\r" not in drawn(run, Look(color=True))
    assert not [thread for thread in threading.enumerate() if thread.name == "spinner"]


@pytest.mark.parametrize("purpose", ["summary", "sampling"])
def test_what_is_not_the_answer_of_the_step_is_not_shown(purpose: TurnPurpose) -> None:
    run = events(
        TurnStarted(TURN, "small", 2, purpose),
        turn_finished(TURN, "in short", purpose=purpose),
        turn_finished(TURN, "in full"),
    )

    shown = drawn(run, Look())

    assert "in short" not in shown
    assert "in full" in shown


@pytest.mark.parametrize(
    "event",
    [
        TurnAdded(TURN, {"role": "user", "text": "said"}),
        HistoryReplaced(TURN, ({"role": "user", "text": "said"},), "context_trimmed"),
        ToolOutput(CALL, "shell__run", "said", "stdout"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_told_elsewhere_is_not_drawn(event: Event) -> None:
    assert "said" not in drawn(events(event), Look())
