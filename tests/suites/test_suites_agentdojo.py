"""AgentDojo: what injected text makes a model do, with nothing in its way and with flows.

The model is a script that always obeys the injection. `make test` plays a part of the tasks.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from cli_process import Aish

pytest.importorskip("agentdojo", reason="agentdojo is not installed (make install)")

from agentdojo_tasks import SUITES, Office, changes, pairs
from samples import spread

T = TypeVar("T")

_ALL = os.environ.get("AISH_TEST_ALL") == "1"
_PART = 6
"""So many pairs, and so many user tasks, of each suite are played by `make test`."""

_DENY = "  flow: [{from: [untrusted], to: [changes, sends], then: deny}]\n"
_ASK = "  flow: [{from: [untrusted], to: [changes, sends], then: ask}]\n"

# The user task makes a call after the injection that takes its effect back.
UNDONE = {
    ("travel", "user_task_0", "injection_task_0"),
    ("travel", "user_task_0", "injection_task_4"),
    ("banking", "user_task_14", "injection_task_7"),
}
# It asks for words in the answer alone, which flows do not cover.
WORDS_ALONE = ("travel", "injection_task_6")
# Its ground truth does not fit its own judge.
UNSOLVED = ("workspace", "user_task_7")
UNHELD = {"workspace": 18, "travel": 14, "banking": 4, "slack": 1}
"""The user tasks that change nothing after they have read something."""


@pytest.fixture(params=SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def office(suite: str, tmp_path: Path) -> Iterator[Office]:
    with Office(tmp_path, suite) as office:
        yield office


def part(every: Sequence[T]) -> list[T]:
    return [
        every[index] for index in sorted(range(len(every)) if _ALL else spread(_PART, len(every)))
    ]


def locked(office: Office, run_aish: Aish, name: str, flow: str) -> Path:
    """A file with flows, which believes the server which tools only read: it is locked."""
    file = office.pipeline(name, f'{flow}  labels: {{"office__*": [untrusted]}}\n')
    done = run_aish("lock", file)
    assert done.code == 0, done.stderr
    return file


def test_an_injection_succeeds_where_no_flow_is_denied(suite: str, office: Office) -> None:
    file = office.pipeline("undefended")

    failed = {
        (suite, *pair) for pair in part(pairs(suite)) if not office.play(file, *pair).security
    }

    assert failed <= UNDONE


@pytest.mark.requirement("T39")
def test_no_call_of_an_injection_changes_or_sends_where_flows_are_denied(
    suite: str, office: Office, run_aish: Aish
) -> None:
    file = locked(office, run_aish, "denied", _DENY)

    for user, injection in part(pairs(suite)):
        played = office.play(file, user, injection)
        assert not [name for name in played.run if changes(name)], (user, injection)
        assert not played.security or (suite, injection) == WORDS_ALONE, (user, injection)


def test_a_user_task_whose_calls_break_no_flow_ends_as_undefended(
    suite: str, office: Office, run_aish: Aish
) -> None:
    plain, file = office.pipeline("undefended"), locked(office, run_aish, "denied", _DENY)

    unheld = 0
    for user in part(list(office.suite.user_tasks)):
        undefended, denied = office.play(plain, user), office.play(file, user)
        assert bool(denied.held) == any(map(changes, undefended.own[1:])), user
        assert undefended.utility or (suite, user) == UNSOLVED
        if not denied.held:
            unheld += 1
            assert denied.utility == undefended.utility, user

    assert unheld == UNHELD[suite] or not _ALL


def test_with_a_person_who_approves_its_own_calls_each_user_task_ends_as_undefended(
    suite: str, office: Office, run_aish: Aish
) -> None:
    file = locked(office, run_aish, "asked", _ASK)

    for user in part(list(office.suite.user_tasks)):
        played = office.play(file, user, person=True)
        assert played.utility or (suite, user) == UNSOLVED
        assert played.asked == sum(map(changes, played.own[1:])), user


def test_the_suites_have_the_published_number_of_pairs() -> None:
    assert sum(len(pairs(suite)) for suite in SUITES) == 629
