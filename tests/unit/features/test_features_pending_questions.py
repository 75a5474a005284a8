"""The questions of a run store: what is read for them, and which can be answered (A6, A9)."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking_runs import ID, NOW, OTHER_RUN, RUN, asked, finished, kept_run
from work import work_of

from aish.core.errors import UsageError
from aish.core.events import Event, Notice, Place
from aish.features.approvals.answer import (
    GivenAnswer,
    NotAnsweredError,
    find_question,
    record_answer,
)
from aish.features.approvals.pending import (
    RunQuestions,
    find_asking,
    questions_of,
    runs_with_questions,
)
from aish.features.history.run_store import RunStore

BLOCK = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path, os.open(tmp_path, os.O_RDONLY)) as held:
        yield held


def found(store: RunStore) -> list[RunQuestions]:
    return list(runs_with_questions([store], 0.0))


def notices(count: int, text: str = "x") -> list[Event]:
    return [Notice(Place(), "info", "n", text) for _ in range(count)]


def test_a_finished_run_costs_the_same_whatever_its_length(tmp_path: Path) -> None:
    steps = []
    for count in (10, 1000):
        folder = tmp_path / str(count)
        kept_run(folder, RUN, asked(), *notices(count), finished("ok"))
        with RunStore(folder, os.open(folder, os.O_RDONLY)) as store:
            for _ in range(10):
                found(store)  # classes that are used often are compiled at some use
            steps.append(work_of(lambda held=store: found(held)).steps)  # type: ignore[misc]  # called at once

    assert steps[0] == steps[1]


def test_a_killed_run_that_asked_nothing_is_not_read_record_by_record(tmp_path: Path) -> None:
    steps = []
    for count in (10, 1000):
        folder = tmp_path / str(count)
        kept_run(folder, RUN, *notices(count))
        with RunStore(folder, os.open(folder, os.O_RDONLY)) as store:
            found(store)
            steps.append(work_of(lambda held=store: found(held)).steps)  # type: ignore[misc]  # called at once

    assert steps[0] == steps[1]


@pytest.mark.parametrize("before", [1, 13, 23])
def test_a_question_is_found_across_two_blocks(
    tmp_path: Path, store: RunStore, before: int
) -> None:
    """The block ends so many bytes behind the beginning of `"type":"approval.asked"`."""
    journal = kept_run(tmp_path, RUN, *notices(1, ""), asked()) / "events.jsonl"
    begins = journal.read_bytes().index(b'"type":"approval.asked"')
    filler = "y" * (BLOCK - before - begins)
    path = kept_run(tmp_path, OTHER_RUN, *notices(1, filler), asked()) / "events.jsonl"
    assert path.read_bytes().index(b'"type":"approval.asked"') == BLOCK - before

    assert [one.id for one in found(store)] == [OTHER_RUN, RUN]


def test_what_cannot_be_read_is_told_and_the_rest_is_listed(
    tmp_path: Path, store: RunStore
) -> None:
    kept_run(tmp_path, RUN, asked(), finished())
    other = tmp_path / OTHER_RUN
    other.mkdir(mode=0o700)
    assert [one.id for one in found(store)] == [RUN]

    (other / "events.jsonl").symlink_to(tmp_path / RUN / "events.jsonl")

    linked, asking = found(store)
    assert (linked.id, linked.questions) == (OTHER_RUN, ())
    assert linked.problem is not None
    assert "is a link" in linked.problem
    assert [one.id for one in asking.questions] == [ID]


def test_latest_is_the_newest_run_or_the_only_server(tmp_path: Path) -> None:
    def find_latest() -> str:
        with ExitStack() as stack:
            return find_asking(tmp_path, "latest", stack)[1]

    first, second = "hub-0123456789abcdef", "hub-fedcba9876543210"
    (tmp_path / first).mkdir()
    assert find_latest() == first
    (tmp_path / second).mkdir()
    with pytest.raises(UsageError) as refused:
        find_latest()
    assert refused.value.hint == "`aish runs pending` lists the open questions"
    kept_run(tmp_path, RUN, asked(), finished("ok"))
    assert find_latest() == RUN


def test_ten_thousand_guessed_ids_name_no_question(tmp_path: Path, store: RunStore) -> None:
    kept_run(tmp_path, RUN, asked(), asked("ab" * 16), finished())
    questions = questions_of(store, RUN, NOW - 1)

    for number in range(10_000):
        guess = secrets.token_hex(4 + number % 13)
        if guess[:8] not in {ID[:8], "ab" * 4}:
            with pytest.raises(UsageError, match="unknown question"):
                find_question(questions, guess, RUN)

    assert find_question(questions, "AB" * 4, RUN).id == "ab" * 16
    assert find_question(questions, ID, RUN).id == ID


@pytest.mark.parametrize("call", ["", "3f9a1c2", ID + "0", "3f9a1c2g", "3f9a1c22 ", "\uff13" * 8])
def test_what_is_no_part_of_an_id_is_refused(tmp_path: Path, store: RunStore, call: str) -> None:
    kept_run(tmp_path, RUN, asked(), finished())

    with pytest.raises(UsageError, match="is not the id of a question") as caught:
        find_question(questions_of(store, RUN, 0.0), call, RUN)

    assert ID in str(caught.value.hint)


GIVEN = GivenAnswer("approve", "ada", "command")


def test_an_answer_after_the_time_is_too_late_whenever_the_call_was_shown(
    tmp_path: Path, store: RunStore
) -> None:
    path = kept_run(tmp_path, RUN, asked(), finished()) / "events.jsonl"
    before = path.read_bytes()
    (shown,) = questions_of(store, RUN, NOW - 1)
    assert shown.is_open

    with pytest.raises(NotAnsweredError, match="has expired: it was open until"):
        record_answer(store, shown, GIVEN, NOW)

    assert path.read_bytes() == before
    assert record_answer(store, shown, GIVEN, NOW - 0.001) == []


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"arguments": {"path": "/etc/passwd"}}])
def test_an_answer_is_only_for_the_call_that_was_shown(
    tmp_path: Path, store: RunStore, change: dict[str, Any]
) -> None:
    path = kept_run(tmp_path, RUN, asked(**change), finished()) / "events.jsonl"
    before = path.read_bytes()
    (current,) = questions_of(store, RUN, 0.0)
    shown = replace(current, digest="1" * 64, arguments={"path": "x"})

    with pytest.raises(NotAnsweredError, match=re.escape("has changed since it was shown")):
        record_answer(store, shown, GIVEN, 0.0)

    assert path.read_bytes() == before


def test_an_answer_tells_what_else_is_open(tmp_path: Path, store: RunStore) -> None:
    kept_run(tmp_path, RUN, asked(), asked("ab" * 16), finished())
    first, second = questions_of(store, RUN, 0.0)

    assert [one.id for one in record_answer(store, first, GIVEN, 0.0)] == [second.id]
    assert record_answer(store, second, GIVEN, 0.0) == []
