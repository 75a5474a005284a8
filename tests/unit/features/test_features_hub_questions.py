"""The questions of a server on disk: of several who answer the first wins, and nothing is lost."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from asking_runs import ID, NOW, answered, asked

from aish.core.events import Event, Place, Stamped, ToolDecided, rfc3339
from aish.features.approvals.hub_questions import (
    KEPT_SECONDS,
    QuestionFolder,
    read_questions,
)
from aish.features.history.run_store import open_store

BEFORE = NOW - 900
PLACE = Place(step="stdio", client="stdio", session="s")
ASKED = asked(place=PLACE, expires=rfc3339(NOW))
GIVEN = ToolDecided(
    PLACE, ASKED.tool, ASKED.server, ASKED.name, None, ASKED.digest, "ask-yes", "ada (page)"
)


def other(number: int) -> str:
    return f"{number:032x}"


@contextmanager
def full_disk() -> Generator[None]:
    """Nothing more can be written into any file of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_of_two_processes_the_first_answer_counts_and_one_call_gets_it(tmp_path: Path) -> None:
    one, two = QuestionFolder(tmp_path), QuestionFolder(tmp_path)
    seen: list[Event] = []
    two.on_event = lambda stamped: seen.append(stamped.event)
    one.note(ID, ASKED, BEFORE)
    two.look()

    won = two.answer(yes := answered(place=PLACE), BEFORE + 1)
    lost = one.answer(answered(answer="deny", place=PLACE), BEFORE + 2)
    used = [folder.give(ID, GIVEN, BEFORE + 3, waited=False) for folder in (one, two, one)]

    assert won is None
    assert lost is not None
    assert lost.question.state == "approved"
    assert used == [True, False, False]
    assert seen == [ASKED, yes, GIVEN]
    with open_store(tmp_path.parent, tmp_path.parent) as store:
        (held,), problem = read_questions(store, tmp_path.name)
    assert problem is None
    assert held.given
    assert [type(stamped) for stamped in held.events] == [Stamped] * 3


def test_an_answer_after_its_time_does_not_count(tmp_path: Path) -> None:
    folder = QuestionFolder(tmp_path)
    folder.note(ID, ASKED, BEFORE)

    late = folder.answer(answered(place=PLACE), NOW)
    ended = folder.answer(answered(answer="expired", way="time", place=PLACE), NOW + 1)

    assert late is not None
    assert late.question.state == "expired"
    assert ended is None
    with pytest.raises(FileNotFoundError):
        folder.answer(answered(other(1)), BEFORE)


def test_half_a_record_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    QuestionFolder(tmp_path).note(ID, ASKED, BEFORE)
    with (tmp_path / f"{ID}.jsonl").open("ab") as file:
        file.write(b'{"v":1,"seq":2,"time":"2096-')
    folder = QuestionFolder(tmp_path)
    problems: list[str] = []
    folder.on_problem = problems.append

    folder.look()
    assert folder.answer(answered(place=PLACE), BEFORE + 1) is None

    anew = QuestionFolder(tmp_path)
    anew.look()
    (held,) = anew.all()
    assert held.question.state == "approved"
    assert problems == []


def test_what_a_full_disk_does_not_take_does_not_count(tmp_path: Path) -> None:
    folder = QuestionFolder(tmp_path)
    with full_disk(), pytest.raises(OSError, match="too large"):
        folder.note(ID, ASKED, BEFORE)
    nothing = sorted(tmp_path.glob("*.jsonl"))
    folder.note(ID, ASKED, BEFORE)
    with full_disk(), pytest.raises(OSError, match="too large"):
        folder.answer(answered(place=PLACE), BEFORE + 1)
    still = folder.look_at(ID)
    with full_disk(), pytest.raises(OSError, match="too large"):
        folder.give(ID, GIVEN, BEFORE + 2, waited=False)
    unused = folder.look_at(ID)

    assert nothing == []
    assert still is not None
    assert still.question.is_open
    assert unused is not None
    assert not unused.given
    assert folder.answer(answered(place=PLACE), BEFORE + 3) is None


def test_what_ended_long_ago_is_deleted_and_what_is_open_is_kept(tmp_path: Path) -> None:
    folder = QuestionFolder(tmp_path)
    for number in range(5):
        folder.note(other(number), replace(ASKED, id=other(number)), BEFORE)
    for number in range(1, 5):
        folder.answer(answered(other(number), place=PLACE), BEFORE + number / 10_000)

    folder.clean(BEFORE + 1, most=3)
    kept = {one.id for one in folder.all()}
    folder.clean(NOW + KEPT_SECONDS + 1)

    # The open one, and the latest that have ended.
    assert kept == {other(0), *(other(number) for number in range(2, 5))}
    assert folder.all() == ()
    assert sorted(tmp_path.glob("*.jsonl")) == []
