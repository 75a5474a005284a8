"""Tables of test cases of which `make test` runs a sample, and `make test-all` each one."""

from collections.abc import Collection, Iterable
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
