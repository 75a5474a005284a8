"""What the questions of a run come to, event by event (A6)."""

import itertools
from typing import Any

import pytest
from asking_runs import DIGEST, ID, NOW, RUN, answered, asked, finished
from hypothesis import given
from hypothesis import strategies as st
from scripted_events import run_started, stamped

from aish.core.events import Event, Place, Stamped, plain, rfc3339
from aish.features.approvals.questions import ApprovalQuestion, approval_question
from aish.journal.questions import QuestionFold

OTHER = "b" * 32


def folded(*events: Event) -> QuestionFold:
    fold = QuestionFold()
    for one in stamped(run_started(), *events):
        fold.take(one)
    return fold


def shown(fold: QuestionFold, now: float = 0.0) -> list[ApprovalQuestion]:
    return [approval_question(RUN, one) for one in fold.all(now)]


def only(fold: QuestionFold, now: float = 0.0) -> ApprovalQuestion:
    (question,) = shown(fold, now)
    return question


def test_an_open_question_has_all_that_a_person_needs() -> None:
    place = Place("write", "row 7", 2, "c")
    times = [rfc3339(one.time) for one in stamped(run_started(), asked())]

    assert plain(only(folded(asked(place=place)))) == {
        "id": ID,
        "run": RUN,
        "step": "write",
        "item": "row 7",
        "server": "repo",
        "tool": "repo__file_write",
        "arguments": {"path": "TITLE.md", "content": "# aish\n"},
        "digest": DIGEST,
        "reason": "no rule approves repo__file_write",
        "always": None,
        "asked": times[1],
        "expires": rfc3339(NOW),
        "state": "open",
        "caller_waiting": True,
        "answer": None,
    }


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("approve", "approved"),
        ("always", "approved"),
        ("deny", "denied"),
        ("expired", "expired"),
        ("withdrawn", "withdrawn"),
    ],
)
def test_a_question_ends_once_and_says_by_whom(answer: Any, state: str) -> None:
    later = [answered(answer=other, by="eve") for other in ("approve", "deny", "withdrawn")]
    question = only(folded(asked(), answered(answer=answer), *later, finished("failed")))

    assert (question.state, question.caller_waiting) == (state, False)
    assert question.answer is not None
    assert (question.answer.by, question.answer.way, question.answer.note) == (
        *("ada", "page", "looks right"),
    )
    assert question.answer.time == rfc3339(stamped(run_started(), asked(), finished())[2].time)


@pytest.mark.parametrize("status", ["ok", "failed", "denied", "budget"])
def test_the_end_of_the_run_withdraws_what_is_open(status: str) -> None:
    done = folded(asked(), asked(OTHER), answered(OTHER), finished(status))

    assert {one.id: one.state for one in done.all(0.0)} == {ID: "withdrawn", OTHER: "approved"}
    assert only(folded(asked(), finished(status))).answer is None


@pytest.mark.parametrize("status", ["paused", "interrupted", "failed"])
def test_a_run_that_waits_keeps_its_questions_whatever_ended_it(status: str) -> None:
    question = only(folded(asked(), finished(status, waiting=1)))

    assert (question.state, question.caller_waiting) == ("open", False)


def test_a_part_that_was_interrupted_before_it_asked_again_ends_no_question() -> None:
    """It counts only what it asked itself."""
    again = (run_started(resumed_from=RUN), finished("interrupted", waiting=0))
    question = only(folded(asked(), finished("paused"), *again))

    assert (question.state, question.caller_waiting) == ("open", False)


@pytest.mark.parametrize("end", [finished("paused"), finished("interrupted"), run_started()])
def test_what_was_asked_only_at_a_terminal_ends_with_its_process(end: Event) -> None:
    fold = folded(asked(expires=None), end)
    assert only(fold).state == "withdrawn"

    killed = folded(asked(expires=None), asked(OTHER))
    (ended,) = killed.without_process()
    assert ended.id == ID
    assert [one.state for one in killed.all(0.0)] == ["withdrawn", "open"]


def test_a_question_expires_at_its_time_and_not_before() -> None:
    fold = folded(asked(), asked(OTHER, expires=None))

    assert [one.state for one in fold.all(NOW - 0.001)] == ["open", "open"]
    assert [one.state for one in fold.all(NOW)] == ["expired", "open"]
    question = shown(fold, NOW)[0]
    assert (question.caller_waiting, question.answer) == (False, None)


@pytest.mark.parametrize("end", [[], [finished("paused")], [finished("failed")]], ids=len)
def test_a_resumed_run_takes_its_question_over(end: list[Event]) -> None:
    """The process before it was paused or killed, or another step had ended the run."""
    fold = folded(asked(), *end, run_started(resumed_from=RUN))
    assert only(fold).caller_waiting is False
    first = only(fold).asked

    fold.take(Stamped(99, 2_000_000_000.0, asked(expires=rfc3339(NOW + 60))))

    question = only(fold)
    assert (question.state, question.caller_waiting, question.asked) == ("open", True, first)
    assert question.expires == rfc3339(NOW + 60)


def test_what_was_answered_is_not_opened_again() -> None:
    fold = folded(asked(), answered(answer="deny"), run_started(), asked(digest="0" * 64))

    assert (only(fold).state, only(fold).digest) == ("denied", DIGEST)


def test_an_answer_to_a_question_that_was_never_asked_is_none() -> None:
    fold = folded(asked(), answered(OTHER))

    assert only(fold).state == "open"
    assert fold.get(OTHER) is None


def test_an_answer_after_the_end_of_the_run_is_kept_and_does_not_count() -> None:
    fold = folded(asked(), finished("failed"))
    (late,) = stamped(answered())
    assert fold.take(late) == ()

    question = fold.get(ID)
    assert question is not None
    assert (question.state, question.answer, question.answered) == ("withdrawn", None, late.event)
    assert only(fold).answer is None


def test_an_end_that_is_no_time_never_passes() -> None:
    assert only(folded(asked(expires="whenever")), NOW * 2).state == "open"


def test_each_event_says_which_questions_it_changed() -> None:
    fold = QuestionFold()
    events = (asked(), asked(OTHER), answered(), answered(), finished("ok"), finished("ok"))

    changed = [[(one.id[:1], one.state) for one in fold.take(each)] for each in stamped(*events)]

    assert changed == [
        *([("3", "open")], [("b", "open")], [("3", "approved")], []),
        *([("b", "withdrawn")], []),
    ]


KINDS = ("asked", "approve", "deny", "expired", "withdrawn", "paused", "failed", "started")


@given(st.lists(st.sampled_from(KINDS), max_size=12))
def test_an_answer_never_changes(kinds: list[str]) -> None:
    fold = QuestionFold()
    seen: list[ApprovalQuestion] = []
    for seq, kind in zip(itertools.count(1), kinds, strict=False):
        event: Event
        match kind:
            case "asked":
                event = asked()
            case "started":
                event = run_started()
            case "paused" | "failed":
                event = finished(kind)
            case _:
                event = answered(answer=kind)
        fold.take(Stamped(seq, float(seq), event))
        seen += shown(fold)

    ends = [one for one in seen if one.answer is not None]
    assert len(set(map(str, ends))) <= 1
    assert all(one.answer is not None for one in seen[len(seen) - len(ends) :])
