"""Tables of test cases of which `make test` runs a sample, and `make test-all` each one."""

import functools
import reprlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


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
