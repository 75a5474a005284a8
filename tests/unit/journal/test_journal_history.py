"""The fold of the event stream: what ends with which event, and what is held (B2, B11)."""

import itertools
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from item_events import STEP, item_finished, item_started
from scripted_events import (
    START,
    WAITING,
    answered,
    any_event,
    asked,
    decided,
    paused_run,
    run_finished,
    run_started,
    stamped,
    turn_finished,
)

from aish.core.events import (
    ApprovalAsked,
    Asked,
    Event,
    Exit,
    ExpectChecked,
    HistoryReplaced,
    Notice,
    Place,
    Retry,
    Stamped,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
    TurnAdded,
    TurnStarted,
)
from aish.core.messages import Usage
from aish.journal.history import (
    Aside,
    CallRecord,
    Ended,
    RunHistory,
    Segment,
    Sent,
    TurnRecord,
    Unanswered,
    Unit,
    fold_records,
)
from aish.journal.questions import QuestionFold

ASK, FIRST, SECOND = Place("ask"), Place("ask", turn=1), Place("ask", turn=2)
CALL = Place("ask", turn=1, call="c1")


def finished(place: Place = ASK) -> StepFinished:
    return StepFinished(place, "ok", "Done.", None, Usage(1, 2), 0.1, 0.5)


def kinds(found: Sequence[Ended]) -> list[str]:
    return [type(one).__name__ for one in found]


def user(text: str, place: Place = ASK) -> TurnAdded:
    return TurnAdded(place, {"role": "user", "text": text}, "answer")


def conversation() -> list[Event]:
    """A step of two turns, with a call between them."""
    return [
        run_started(),
        StepStarted(ASK, "prompt"),
        user("What is in a.txt?"),
        TurnStarted(FIRST, "local", 1),
        turn_finished(FIRST, text="", calls=(Asked("c1", "repo__file_read", '{"path":"a"}'),)),
        decided(CALL, "repo__file_read", {"path": "a"}),
        ToolStarted(CALL, "repo__file_read"),
        ToolFinished(CALL, "repo__file_read", "ok", "AAA", None, 0.1),
        TurnStarted(SECOND, "local", 3),
        turn_finished(SECOND, text="Done."),
        finished(),
        run_finished(),
    ]


def test_each_thing_is_handed_out_with_the_event_that_ends_it() -> None:
    history = RunHistory()
    found = {one.seq: kinds(history.take(one)) for one in stamped(*conversation())}

    assert {seq: names for seq, names in found.items() if names} == {
        5: ["TurnRecord"],
        8: ["CallRecord"],
        10: ["TurnRecord"],
        11: ["Unit"],
        12: ["Segment"],
    }
    assert history.rest() == []


def test_a_unit_has_everything_that_happened_in_it_in_order() -> None:
    (unit,) = [one for one in fold_records(stamped(*conversation())) if isinstance(one, Unit)]

    assert kinds(unit.entries) == ["Sent", "TurnRecord", "CallRecord", "TurnRecord"]  # type: ignore[arg-type]  # entries are among what ends, but for what was sent
    assert (unit.key, unit.kind, unit.finished) == (("ask", None), "prompt", finished())
    (call,) = unit.calls
    assert call.decided is not None
    assert (call.arguments, call.sent, call.within) == ({"path": "a"}, 7, unit.seq)
    assert call.finished is not None
    assert (call.finished.content, call.is_refused) == ("AAA", False)


def test_a_request_adds_what_is_new_in_its_conversation() -> None:
    turns = [one for one in fold_records(stamped(*conversation())) if isinstance(one, TurnRecord)]
    asked = [one.request for one in turns if one.request is not None]

    assert [[one.get("role") for one in request.messages] for request in asked] == [
        ["user"],
        ["assistant", "tool"],
    ]
    assert asked[1].messages[1]["content"] == "AAA"
    assert [(one.count, one.earlier, one.rewritten) for one in asked] == [
        (1, 0, None),
        (3, 0, None),
    ]


WAITS = Place("fix", turn=1, call="c2")


def test_a_call_has_its_question_and_the_answer() -> None:
    (unit, *_) = [one for one in fold_records(stamped(*paused_run())) if isinstance(one, Unit)]
    first, second = unit.calls

    assert first.question is not None
    assert first.question.answered is not None
    assert (first.question.answered.way, first.waits) == ("page", False)
    assert second.question is not None
    assert (second.question.id, second.question.answered, second.waits) == (WAITING, None, True)


def test_an_answer_after_the_end_returns_the_unit_again_and_makes_the_run_no_longer() -> None:
    history = RunHistory()
    events = stamped(*paused_run())
    for one in events:
        history.take(one)
    before = history.segments[-1].ended
    assert [one.id for one in history.pending] == [WAITING]

    (unit,) = history.take(Stamped(99, before + 86_400, answered(WAITS)))

    assert isinstance(unit, Unit)
    assert [call.waits for call in unit.calls] == [False, False]
    assert history.pending == []
    assert history.segments[-1].ended == before
    assert history.take(Stamped(100, before + 86_500, answered(WAITS, answer="deny"))) == ()
    assert history.rest() == []


def test_a_resumed_run_asks_the_same_question_again_and_uses_the_answer() -> None:
    history = RunHistory()
    resumed: list[Event] = [
        run_started(),
        StepStarted(Place("fix"), "prompt"),
        asked(WAITS, "repo__file_remove", {}),
        answered(WAITS),
        decided(WAITS, "repo__file_remove", {}, verdict="ask-yes", approval=WAITING),
        ToolFinished(WAITS, "repo__file_remove", "ok", "gone", None, 0.1),
    ]
    events = stamped(*paused_run(), *resumed)
    found = [call for one in events for call in history.take(one) if isinstance(call, CallRecord)]

    question = found[-1].question
    assert question is not None
    assert question.answered is not None
    assert question.began == events[5].time
    assert history.pending == []


def test_an_answer_given_while_paused_belongs_to_the_call_that_a_resumed_run_makes() -> None:
    resumed: list[Event] = [
        answered(WAITS),
        run_started(),
        StepStarted(Place("fix"), "prompt"),
        decided(WAITS, "repo__file_remove", {}, verdict="ask-yes", approval=WAITING),
        ToolFinished(WAITS, "repo__file_remove", "ok", "gone", None, 0.1),
    ]
    calls = [
        one for one in fold_records(stamped(*paused_run(), *resumed)) if isinstance(one, CallRecord)
    ]

    assert calls[-1].question is not None
    assert calls[-1].question.answered == answered(WAITS)


@pytest.mark.parametrize(("code", "count"), [(8, 1), (143, 1), (130, 1), (1, 0), (0, 0)])
def test_a_run_that_has_finished_for_good_has_no_open_questions(code: int, count: int) -> None:
    questions = QuestionFold()
    end = run_finished(exit=Exit(code, "x", retryable=False, reason=""))
    for one in stamped(*paused_run()[:-1], end):
        questions.take(one)

    assert len(questions.pending) == count
    if count:
        assert questions.pending[0].outlives_process(START)
        assert not questions.pending[0].outlives_process(START + 1e9)


def test_what_was_asked_only_at_a_terminal_is_not_pending_after_its_process() -> None:
    history = RunHistory()
    *begun, end = paused_run()
    alone = [replace(one, expires=None) if isinstance(one, ApprovalAsked) else one for one in begun]
    for one in stamped(*alone):
        history.take(one)
    assert [one.id for one in history.pending] == [WAITING]

    history.take(Stamped(99, START + 99, end))

    assert history.pending == []


def test_messages_in_the_place_of_others_are_all_there_are() -> None:
    events = [
        *conversation()[:8],
        HistoryReplaced(ASK, ({"at": 0}, {"role": "user", "text": "Short."}), "too long", "answer"),
        TurnStarted(SECOND, "local", 2),
        turn_finished(SECOND, text="Done."),
    ]
    turns = [one for one in fold_records(stamped(*events)) if isinstance(one, TurnRecord)]

    request = turns[-1].request
    assert request is not None
    assert [one["text"] for one in request.messages] == ["What is in a.txt?", "Short."]
    assert request.rewritten == "too long"


def test_two_requests_of_one_purpose_at_once_keep_their_answers() -> None:
    one, two = Place("ask", turn=1, call="a"), Place("ask", turn=1, call="b")
    events: list[Event] = [
        StepStarted(ASK, "prompt"),
        TurnStarted(one, "local", 1, "sampling"),
        TurnStarted(two, "local", 2, "sampling"),
        turn_finished(two, text="second", purpose="sampling"),
        turn_finished(one, text="first", purpose="sampling"),
    ]
    turns = [found for found in fold_records(stamped(*events)) if isinstance(found, TurnRecord)]

    told = [(found.said.text, found.request and found.request.count) for found in turns]
    assert told == [("second", 2), ("first", 1)]


def test_what_has_no_end_is_cut_off_where_the_run_begins_again() -> None:
    history = RunHistory()
    for one in stamped(*conversation()[:7], TurnStarted(SECOND, "local", 1)):
        history.take(one)
    found = history.take(Stamped(20, START + 9, run_started()))

    assert kinds(found) == ["Unanswered", "CallRecord", "Unit", "Segment"]
    unanswered, call, unit, segment = found
    assert isinstance(unanswered, Unanswered)
    assert isinstance(call, CallRecord)
    assert isinstance(unit, Unit)
    assert isinstance(segment, Segment)
    assert (call.finished, unit.finished, segment.finished) == (None, None, None)
    assert [part.seq for part in history.segments] == [1, 20]


def test_a_notice_about_a_step_that_an_earlier_part_has_done_opens_no_unit() -> None:
    history = RunHistory()
    told = Notice(Place("read"), "warning", "resumed_masked", "its journal has only a name")
    found = [
        one for each in stamped(run_started(), told, run_finished()) for one in history.take(each)
    ]

    assert [type(one) for one in found] == [Segment]
    assert history.notices == [told]


def test_another_attempt_cuts_off_what_the_last_one_began() -> None:
    met = ExpectChecked(ASK, "contains", ok=False, message="no")
    again = Retry(ASK, "step ask", 2, 0.1, "why")
    events = [*conversation()[:7], met, again, TurnStarted(FIRST, "local", 1), finished()]
    found = list(fold_records(stamped(*events)))

    assert kinds(found) == ["TurnRecord", "CallRecord", "Unanswered", "Unit", "Segment"]
    unanswered, unit = found[2], found[3]
    assert isinstance(unanswered, Unanswered)
    assert isinstance(unit, Unit)
    assert unanswered.request.attempt == 2
    # What was expected of the first attempt does not count.
    assert not unit.checks
    assert isinstance(unit.entries[-1], Aside)


def test_what_a_sub_pipeline_does_is_within_the_item_that_it_runs_for() -> None:
    inner = Place("rows/look", "b")
    events: list[Event] = [
        run_started(),
        StepStarted(Place("rows"), "pipeline", 1),
        item_started(1, key="b", step="rows"),
        StepStarted(inner, "call"),
        decided(Place("rows/look", "b", call="c"), "repo__file_read", {}),
        finished(inner),
    ]
    call, unit = list(fold_records(stamped(*events)))[:2]

    assert isinstance(call, CallRecord)
    assert isinstance(unit, Unit)
    assert (call.within, unit.within) == (4, 3)


@pytest.mark.parametrize(
    ("place", "number"),
    [(Place(), None), (Place("other"), None), (ASK, 2), (FIRST, 4), (CALL, 6), (SECOND, 2)],
)
def test_what_is_open_at_a_place_is_known_by_its_first_event(
    place: Place, number: int | None
) -> None:
    history = RunHistory()
    for one in stamped(*conversation()[:4], Notice(FIRST, "info", "x", "y"), *conversation()[5:7]):
        history.take(one)

    assert history.around(place) == number


@given(st.lists(any_event(), max_size=20))
def test_any_stream_can_be_folded(told: list[Stamped]) -> None:
    events = stamped(*(one.event for one in told))
    found = list(fold_records(events))

    assert kinds(list(fold_records(events))) == kinds(found)
    for unit in found:
        if isinstance(unit, Unit):
            assert all(
                isinstance(one, TurnRecord | CallRecord | Aside | Sent) for one in unit.entries
            )


def test_nothing_of_an_item_that_is_over_is_held() -> None:
    history, seq = RunHistory(), itertools.count(1)

    def feed(*events: Event) -> None:
        for event in events:
            history.take(Stamped(next(seq), START, event))

    def item(index: int) -> None:
        turn, call = Place(STEP, str(index), 1), Place(STEP, str(index), 1, f"c{index}")
        feed(item_started(index), user("x" * 100, Place(STEP, str(index))))
        feed(TurnStarted(turn, "m", 1), turn_finished(turn, calls=(Asked(f"c{index}", "t", "{}"),)))
        feed(decided(call, "t", {}), ToolStarted(call, "t"))
        feed(ToolFinished(call, "t", "ok", "z" * 100, None, 0.1), item_finished(index))

    feed(run_started(), StepStarted(Place(STEP), "prompt"))
    for index in range(500):
        item(index)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for index in range(500, 2500):
        item(index)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    # The smallest object an item is 50,000 bytes.
    assert grown < 40_000
