"""Annotations of a run: which of them stand, and how they are told (B11)."""

import pytest
from scripted_events import run_started, stamped

from aish.core.events import (
    NOWHERE,
    AnnotationAdded,
    AnnotationLevel,
    Event,
    ItemStarted,
    Place,
    Retry,
    StepStarted,
)
from aish.journal.history import RunHistory
from aish.output.result import annotation_rows

SUB, ITEM = Place("sub"), Place("each", "a")


def added(
    message: str, place: Place = NOWHERE, level: AnnotationLevel = "warning"
) -> AnnotationAdded:
    return AnnotationAdded("a.py", 3, None, level, message, place)


def found(*events: Event) -> list[str]:
    history = RunHistory()
    for one in stamped(*events):
        history.take(one)
    return [one.message for one in history.annotations.found]


@pytest.mark.parametrize(
    ("again", "left"),
    [
        (run_started(), ["sub", "item"]),
        (StepStarted(SUB, "pipeline"), ["whole", "item"]),
        (ItemStarted(ITEM, "a", 0, "0" * 16), ["whole", "sub"]),
        (Retry(SUB, "step sub", 2, 0.1, "no"), ["whole", "item"]),
        # A request of it is sent again, and what it has found stands.
        (Retry(Place("sub", turn=1), "http://x", 2, 0.1, "no"), ["whole", "sub", "item"]),
    ],
    ids=["run", "step", "item", "attempt", "request"],
)
def test_what_is_made_again_takes_the_place_of_what_was(again: Event, left: list[str]) -> None:
    before = (added("whole"), added("sub", SUB), added("item", ITEM))

    assert found(*before, again) == left
    assert "new" in found(*before, again, added("new", SUB))


def test_no_more_are_held_than_anybody_takes() -> None:
    history = RunHistory()
    for one in stamped(*[added(f"{n}") for n in range(25_003)]):
        history.take(one)

    assert (len(history.annotations.found), history.annotations.left_out) == (25_000, 3)


def test_what_matters_most_is_told_first_and_each_once() -> None:
    several = [added(f"w{n}") for n in range(60)]
    rows = list(annotation_rows([*several, several[0], added("x" * 600, level="error")]))

    assert rows[0] == (f"a.py:3: error: {'x' * 500}…", "error")
    assert rows[1] == ("a.py:3: warning: w0", "warning")
    assert rows[-1] == ("and 11 more annotations", "notice")
    assert len(rows) == 51


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (AnnotationAdded("a.py", 3, 5, "notice", "m"), "a.py:3-5: notice: m"),
        (AnnotationAdded("a.py", None, None, "notice", "m"), "a.py: notice: m"),
        (AnnotationAdded(None, None, None, "error", "m"), "error: m"),
    ],
)
def test_a_place_is_told_as_far_as_it_is_known(annotation: AnnotationAdded, text: str) -> None:
    assert next(annotation_rows([annotation]))[0] == text
