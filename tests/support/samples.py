"""Tables of test cases of which `make test` runs a sample, and `make test-all` each one."""

import functools
import reprlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

COLLECTED = pytest.StashKey[tuple[pytest.Item, ...]]()
"""All tests that were collected, those that are left out too."""
_END_TO_END = Path(__file__).parents[1] / "e2e"


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


def divide_by_cost(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of `make test`, and those that `AISH_TEST_ALL=1` adds, in their order.

    Those are what is marked `slow`; of each test that is marked `sampled` all but so many cases,
    spread evenly over its table; and of other end-to-end tests all cases but one, which is another
    one from test to test. Each requirement that a case alone carries keeps its case, and a test in
    the browser all of them, as it has a target of its own.
    """
    cases: dict[str, list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        if (mark := item.get_closest_marker("slow")) is not None:
            (_reason,) = (*mark.args, *mark.kwargs.values())
            left_out.add(item)
        elif item.get_closest_marker("browser") is not None:
            continue
        elif item.get_closest_marker("sampled") is not None or _END_TO_END in item.path.parents:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, of_one in cases.items():
        kept = _sample(name, of_one)
        numbers = {number for item in kept for number in _numbers(item)}
        for item in of_one:
            if item not in kept and numbers.issuperset(_numbers(item)):
                left_out.add(item)
    return [item for item in items if item not in left_out], [*filter(left_out.__contains__, items)]


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
