import errno
import io
import os
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_events import any_event, decided, run_finished, run_started, turn_finished

from aish.core.events import (
    Event,
    HistoryReplaced,
    Notice,
    Place,
    ReasoningDelta,
    Stamped,
    TextDelta,
    TextWithdrawn,
    ToolFinished,
    ToolOutput,
    TurnAdded,
    to_line,
)
from aish.output.event_log import EventLog, Sink
from aish.output.formats.jsonl import JsonLines
from aish.system.secrets.secrets import Secrets

TURN = Place("read", turn=1)
SECRET = "hunter2-and-then-some"


class Watch:
    """A clock that ticks once for each look at it."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return float(self.looks)

    def monotonic(self) -> float:
        return 0.0


class Kept:
    """A sink that keeps what it is given, or fails as a disk does."""

    def __init__(self, *, deltas: bool = True, fails: int | None = None) -> None:
        self.name = "the kept"
        self.deltas = deltas
        self.fails = fails
        self.seen: list[Stamped] = []
        self.closed = False

    def __call__(self, stamped: Stamped) -> None:
        if self.fails is not None:
            raise OSError(self.fails, os.strerror(self.fails))
        self.seen.append(stamped)

    def close(self) -> None:
        self.closed = True

    @property
    def events(self) -> list[Event]:
        return [stamped.event for stamped in self.seen]


def log_of(*sinks: Sink, secret: str | None = None, failures: list[str] | None = None) -> EventLog:
    secrets = Secrets()
    if secret is not None:
        secrets.add("TOKEN", secret)

    def on_failure(sink: Sink, error: OSError) -> None:
        if failures is not None:
            failures.append(f"{sink.name}: {error.strerror}")

    return EventLog(sinks, clock=Watch(), secrets=secrets, on_failure=on_failure)


def notice(text: str) -> Notice:
    return Notice(TURN, "info", "note", text)


def shown(sink: Kept) -> str:
    return "".join(event.text for event in sink.events if isinstance(event, TextDelta))


def test_events_are_numbered_and_dated_in_their_order() -> None:
    kept = Kept()
    log = log_of(kept)

    for text in "abc":
        log.emit(notice(text))

    assert [(stamped.seq, stamped.time) for stamped in kept.seen] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_sink_that_wants_no_deltas_gets_none() -> None:
    live, whole = Kept(), Kept(deltas=False)
    log = log_of(live, whole)

    for event in (TextDelta(TURN, "a"), ReasoningDelta(TURN, "b"), notice("c")):
        log.emit(event)

    assert len(live.seen) == 3
    assert whole.events == [notice("c")]


@pytest.mark.parametrize("error", [errno.EPIPE, errno.ENOSPC])
def test_a_sink_that_fails_is_told_of_once_and_the_others_go_on(error: int) -> None:
    broken, kept, failures = Kept(fails=error), Kept(), list[str]()
    log = log_of(broken, kept, failures=failures)

    for text in "abc":
        log.emit(notice(text))
    log.close()

    assert failures == [f"the kept: {os.strerror(error)}"]
    assert len(kept.seen) == 3
    assert (broken.closed, kept.closed) == (False, True)


def test_a_sink_that_fails_before_the_first_event_is_told_of_once_and_gets_none() -> None:
    kept, failures, times = Kept(), list[str](), list[float]()

    def fail(now: float) -> None:
        times.append(now)
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    log = log_of(kept, failures=failures)
    log.before(kept, fail)
    log.before(kept, fail)
    log.emit(notice("a"))

    assert (times, kept.seen) == ([1.0], [])
    assert failures == [f"the kept: {os.strerror(errno.EPIPE)}"]


def test_a_pipe_that_nobody_reads_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    failures: list[str] = []
    with open(write, "wb", buffering=0) as out:  # ruff: ignore[builtin-open] - it has no path
        log = log_of(JsonLines(out), failures=failures)
        log.emit(notice("a"))
        log.emit(notice("b"))
        log.close()

    assert failures == [f"the event stream: {os.strerror(errno.EPIPE)}"]


def test_a_failure_may_be_told_through_the_log_itself() -> None:
    kept = Kept()
    log = EventLog(
        [Kept(fails=errno.ENOSPC), kept],
        clock=Watch(),
        secrets=Secrets(),
        on_failure=lambda sink, _: log.emit(notice(f"lost {sink.name}")),
    )

    log.emit(notice("a"))

    assert notice("lost the kept") in kept.events


def test_every_event_is_flushed_as_it_comes() -> None:
    raw = io.BytesIO()
    log = log_of(JsonLines(io.BufferedWriter(raw)))

    log.emit(notice("a"))

    assert raw.getvalue().count(b"\n") == 1


@given(
    any_event(), st.sampled_from([SECRET, 'quote"and\\slash', "käse/früh stück", "multi\nline-key"])
)
def test_no_secret_leaves_in_any_event(event: Stamped, secret: str) -> None:
    kept = Kept()
    log = log_of(kept, secret=secret)
    before = to_line(event)

    log.emit(event.event)
    log.emit(ToolFinished(TURN, secret, "ok", f"x{secret}y", secret, 0.0))

    assert secret.encode() not in b"".join(map(to_line, kept.seen))
    if not isinstance(event.event, (TextDelta, ReasoningDelta, ToolOutput)):
        assert [to_line(Stamped(event.seq, event.time, kept.events[0]))] == [before]


@pytest.mark.requirement("X4")
@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_secret_is_masked_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    kept = Kept()
    log = log_of(kept, secret=SECRET)
    text = f"the key is {SECRET}, and hunter2- is only its beginning"
    bounds = [0, *sorted(cuts), len(text)]

    for start, end in pairwise(bounds):
        if text[start:end]:
            log.emit(TextDelta(TURN, text[start:end]))
    log.emit(turn_finished(TURN, text))

    assert shown(kept) == "the key is <secret:TOKEN>, and hunter2- is only its beginning"
    assert kept.events[-1] == turn_finished(TURN, shown(kept))


def test_what_is_held_back_comes_when_the_turn_ends() -> None:
    kept = Kept()
    log = log_of(kept, secret=SECRET)

    log.emit(TextDelta(TURN, "hunter2-and"))
    before = shown(kept)
    log.emit(turn_finished(TURN, "hunter2-and"))

    assert (before, shown(kept)) == ("", "hunter2-and")


def test_what_is_held_back_of_a_withdrawn_answer_never_comes() -> None:
    kept = Kept()
    log = log_of(kept, secret=SECRET)

    log.emit(TextDelta(TURN, "hunter2-and"))
    log.emit(TextWithdrawn(TURN, "hunter2-and"))
    log.emit(TextDelta(TURN, "-then-some"))
    log.emit(turn_finished(TURN, "-then-some"))

    assert shown(kept) == "-then-some"


def test_turns_that_stream_at_once_are_masked_apart() -> None:
    kept, other = Kept(), Place("sort", turn=1)
    log = log_of(kept, secret=SECRET)

    log.emit(TextDelta(TURN, SECRET[:9]))
    log.emit(TextDelta(other, "free"))
    log.emit(TextDelta(TURN, SECRET[9:] + "."))

    assert kept.events == [TextDelta(other, "free"), TextDelta(TURN, "<secret:TOKEN>.")]


@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_secret_in_output_is_masked_wherever_it_is_cut(cuts: list[int]) -> None:
    kept, place = Kept(), Place("run-1", call="c1")
    log = log_of(kept, secret=SECRET)
    text = f"the key is {SECRET}, and hunter2-a"

    for start, end in pairwise([0, *sorted(cuts), len(text)]):
        # What comes beside it in the other stream tells nothing of where that one stands.
        log.emit(ToolOutput(place, "shell__run", text[start:end], "stdout"))
        log.emit(ToolOutput(place, "shell__run", ".", "stderr"))
    log.emit(ToolFinished(place, "shell__run", "ok", text, None, 0.0))

    output = [event for event in kept.events if isinstance(event, ToolOutput)]
    parts = {
        stream: "".join(piece.text for piece in output if piece.stream == stream)
        for stream in ("stdout", "stderr")
    }
    assert parts["stdout"] == "the key is <secret:TOKEN>, and hunter2-a"
    assert set(parts["stderr"]) == {"."}
    assert isinstance(kept.events[-1], ToolFinished)


def test_output_piece_by_piece_is_for_who_watches_and_turns_are_for_all() -> None:
    live, whole = Kept(), Kept(deltas=False)
    log = log_of(live, whole)
    added = TurnAdded(TURN, {"role": "user", "text": "hi"})
    replaced = HistoryReplaced(TURN, (added.turn,), "context_trimmed")

    for event in (ToolOutput(TURN, "shell__run", "a", "stdout"), added, replaced):
        log.emit(event)

    assert len(live.seen) == 3
    assert whole.events == [added, replaced]


def test_secrets_inside_arguments_inputs_and_errors_are_masked() -> None:
    kept = Kept()
    log = log_of(kept, secret=SECRET)

    log.emit(run_started(inputs={"a": [{"b": SECRET}]}, overrides=(f"x={SECRET}",)))
    log.emit(decided(TURN, "repo__x", {SECRET: f"-H Authorization: {SECRET}"}))
    log.emit(run_finished(outputs={"o": SECRET}, denials={SECRET: 1}, folder=SECRET))

    written = b"".join(map(to_line, kept.seen))
    assert SECRET.encode() not in written
    assert written.count(b"<secret:TOKEN>") == 7


def events_of(sinks: Sequence[Kept]) -> list[int]:
    return [len(sink.seen) for sink in sinks]


def test_after_the_log_is_closed_nothing_is_written() -> None:
    sinks = [Kept(), Kept()]
    log = log_of(*sinks)
    log.emit(notice("a"))
    log.close()
    log.emit(notice("b"))
    log.close()

    assert events_of(sinks) == [1, 1]
