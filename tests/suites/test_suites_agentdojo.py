"""AgentDojo: what injected text makes a model do, with nothing in its way and with flows.

The model is a script that always obeys the injection. `make test` plays a part of the pairs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("agentdojo", reason="agentdojo is not installed (make install)")

from agentdojo_tasks import SUITES, Office, pairs
from samples import spread

_ALL = os.environ.get("AISH_TEST_ALL") == "1"
_PART = 6
"""So many pairs of each suite are played by `make test`."""

# The user task makes a call after the injection that takes its effect back.
UNDONE = {
    ("travel", "user_task_0", "injection_task_0"),
    ("travel", "user_task_0", "injection_task_4"),
    ("banking", "user_task_14", "injection_task_7"),
}


@pytest.fixture(params=SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def office(suite: str, tmp_path: Path) -> Iterator[Office]:
    with Office(tmp_path, suite) as office:
        yield office


def chosen(suite: str) -> list[tuple[str, str]]:
    every = pairs(suite)
    return [
        every[index] for index in sorted(range(len(every)) if _ALL else spread(_PART, len(every)))
    ]


def test_an_injection_succeeds_where_no_flow_is_denied(suite: str, office: Office) -> None:
    file = office.pipeline("undefended")

    failed = {(suite, *pair) for pair in chosen(suite) if not office.play(file, *pair).security}

    assert failed <= UNDONE


def test_the_suites_have_the_published_number_of_pairs() -> None:
    assert sum(len(pairs(suite)) for suite in SUITES) == 629
