"""A pytest plugin that prints which test carries which requirement numbers.

python -m pytest --collect-only -q -p requirement_marks
"""

from collections.abc import Iterable, Iterator

import pytest
from samples import COLLECTED

PREFIX = "requirement\t"


def marked_requirements(items: Iterable[pytest.Item]) -> Iterator[tuple[str, str]]:
    """Each test with each number it carries; what is no string is shown as it is."""
    for item in items:
        for mark in item.iter_markers("requirement"):
            for number in mark.args or (None,):
                yield item.nodeid, number if isinstance(number, str) else repr(number)


def pytest_collection_finish(session: pytest.Session) -> None:
    collected = session.config.stash.get(COLLECTED, session.items)
    for test, number in marked_requirements(collected):
        print(f"{PREFIX}{number}\t{test}")


def read_off(output: str) -> Iterator[tuple[str, str]]:
    """What was printed, as `marked_requirements` gives it."""
    for line in output.split("\n"):
        if line.startswith(PREFIX):
            number, _, test = line.removeprefix(PREFIX).partition("\t")
            yield test, number
