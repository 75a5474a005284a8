"""Tables of test cases of which `make test` runs a sample, and `make test-all` each one."""

import functools
import os
import reprlib
import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

COLLECTED = pytest.StashKey[tuple[pytest.Item, ...]]()
"""All tests that were collected, those that are left out too."""
COSTLY = Path(__file__).parents[1] / "costly_tests.txt"
"""A line for each test that takes turns: its CPU seconds, its name; written by `cpu_costs.py`."""
TURNS = 4
_SWITCH = "AISH_TEST_TURN"
_TESTS = Path(__file__).parents[1]
_END_TO_END = _TESTS / "e2e"
_ON_EACH_CHANGE = (
    _TESTS / "docs",
    _TESTS / "test_architecture.py",
    _TESTS / "test_requirements.py",
)


def sampled(cases: Iterable[Any], *, often: Collection[int], reason: str) -> list[Any]:
    """The cases for `parametrize`: those at the indices in `often` always run, others are slow.

    A tuple is a case of several arguments, as it is for `parametrize` itself.
    """
    slow = pytest.mark.slow(reason=reason)
    listed = list(cases)
    assert max(often) < len(listed), "an index beyond the table"
    return [_case(case, () if index in often else (slow,)) for index, case in enumerate(listed)]


def spread(count: int, total: int) -> set[int]:
    """Return so many indices of a table, from the first to the last at equal distances."""
    return {round(at * (total - 1) / max(count - 1, 1)) for at in range(count)}


def divide_by_cost(
    items: Sequence[pytest.Item], waiting: Collection[str] = ()
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of `make test`, and those that `AISH_TEST_ALL=1` adds, in their order.

    Those are what is marked `slow`; of each test that is marked `sampled` all but so many cases,
    spread evenly over its table; of other end-to-end tests all cases but one, which is another
    one from test to test; and of costly tests those `waiting` for their turn. Each requirement that
    a case alone carries keeps its case, and a test in the browser all of them, as it has a target
    of its own.
    """
    cases: dict[str, list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        if (mark := item.get_closest_marker("slow")) is not None:
            (_reason,) = (*mark.args, *mark.kwargs.values())
            left_out.add(item)
        elif item.get_closest_marker("browser") is not None:
            continue
        elif function_of(item) in waiting and takes_turns(item):
            left_out.add(item)
        elif item.get_closest_marker("sampled") is not None or _END_TO_END in item.path.parents:
            cases.setdefault(function_of(item), []).append(item)
    for name, of_one in cases.items():
        kept = _sample(name, of_one)
        numbers = {number for item in kept for number in _numbers(item)}
        for item in of_one:
            if item not in kept and numbers.issuperset(_numbers(item)):
                left_out.add(item)
    return [item for item in items if item not in left_out], [*filter(left_out.__contains__, items)]


def choose_turn() -> str:
    """Choose, for this process and those that it starts, which of the costly tests are run.

    With each commit another `1 / TURNS` of them; `AISH_TEST_TURN` says which instead, or `all`.
    """
    if _SWITCH not in os.environ:
        asked = ["git", "rev-parse", "HEAD"]
        try:
            done = subprocess.run(asked, cwd=_TESTS, capture_output=True, check=False)
            commit = done.stdout
        except OSError:
            commit = b""
        os.environ[_SWITCH] = str(crc32(commit) % TURNS)
    return os.environ[_SWITCH]


TURN = choose_turn()  # before the environment is cleaned


def waiting_for_their_turn() -> set[str]:
    """Return the costly tests that are not run this time: as costly in all turns, nearly."""
    if TURN == "all":
        return set()
    listed = [line.split()[1] for line in COSTLY.read_text("utf-8").splitlines()]
    return {name for index, name in enumerate(listed) if index % TURNS != int(TURN)}


def takes_turns(item: pytest.Item) -> bool:
    """Whether it may be left out on a change: it carries no requirement, and no example."""
    return not _numbers(item) and not any(map(item.path.is_relative_to, _ON_EACH_CHANGE))


def function_of(item: pytest.Item) -> str:
    """Return the name that all cases of a test have in common."""
    return item.nodeid.partition("[")[0]


def _sample(name: str, cases: Sequence[pytest.Item]) -> Collection[pytest.Item]:
    mark = cases[0].get_closest_marker("sampled")
    if mark is None:
        return {cases[crc32(name.encode()) % len(cases)]}
    (count,) = mark.args
    return {cases[index] for index in spread(count, len(cases))}


def _numbers(item: pytest.Item) -> set[object]:
    return {number for mark in item.iter_markers("requirement") for number in mark.args}


def _case(case: Any, marks: tuple[pytest.MarkDecorator, ...]) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        return pytest.param(*case.values, id=case.id, marks=(*case.marks, *marks))
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)


Test = Callable[..., None]


def each_case(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `parametrize`, in one test: for quick cases, since a test costs more than they do.

    All of them are tried, and those that fail are told together.
    """
    parameters = [name.strip() for name in names.split(",")]

    def wrap(test: Test) -> Test:
        def run() -> None:
            failed: list[BaseException] = []
            tried = 0
            for case in cases:
                tried += 1
                values = case if len(parameters) > 1 else (case,)
                if isinstance(case, type(pytest.param())):
                    assert not case.marks, "a case with a mark is a test of its own"
                    values = case.values
                try:
                    test(**dict(zip(parameters, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{names} = {reprlib.repr(case)}")
                    failed.append(error)
            assert tried, "there is no case"
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {tried} cases", failed)

        functools.update_wrapper(run, test)
        vars(run).pop("__wrapped__")  # pytest would take its parameters for fixtures
        return run

    return wrap
