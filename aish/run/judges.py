"""Which models judge results, as steps and tests expect, and how their requests begin (F12)."""

from collections.abc import Iterable, Iterator
from typing import Final

from aish.config.expected import Expectation

OPENING: Final = "You judge a text by a rubric."
"""The first line of what every judge is told; a request in a cassette is known by it."""


def judges_of(expectations: Iterable[Expectation]) -> Iterator[str]:
    """The aliases of the judges among what is expected."""
    for expectation in expectations:
        if expectation.kind == "judge" and expectation.model is not None:
            yield expectation.model
