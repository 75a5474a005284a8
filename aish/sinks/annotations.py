"""Annotations of a run, as the last part of it has them, and in words (B11)."""

from collections.abc import Iterator, Sequence
from typing import get_args

from aish.core.events import (
    AnnotationAdded,
    AnnotationLevel,
    ItemStarted,
    Place,
    Retry,
    RunStarted,
    Stamped,
    StepStarted,
)
from aish.core.text import counted

_MOST = 50
# As many as code scanning takes of one run.
_MOST_HELD = 25_000
_LONGEST = 500
LEVELS = get_args(AnnotationLevel)
"""From what matters most to what matters least."""


class Annotations:
    """Folds events; `found` are the annotations of a run, and `left_out` counts those over a limit.

    Each item of a batch may have some: they are held by their place, to be replaced as a whole.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._held = 0
        self._of: dict[Place, list[AnnotationAdded]] = {}

    @property
    def found(self) -> list[AnnotationAdded]:
        """The annotations of the run, and those of its sub-pipelines."""
        return [one for several in self._of.values() for one in several]

    def take(self, stamped: Stamped) -> None:
        """Fold one event in; what is made again takes the place of what was."""
        event = stamped.event
        match event:
            case AnnotationAdded():
                if self._held < _MOST_HELD:
                    self._of.setdefault(event.place, []).append(event)
                    self._held += 1
                else:
                    self.left_out += 1
            case Retry(place=place, endpoint=endpoint):
                if place.turn is None and endpoint == f"step {place.step}":
                    self._forget(place)
            case RunStarted() | StepStarted() | ItemStarted():
                self._forget(event.place)
            case _:
                pass

    def _forget(self, place: Place) -> None:
        self._held -= len(self._of.pop(place, ()))


def annotation_rows(found: Sequence[AnnotationAdded]) -> Iterator[tuple[str, AnnotationLevel]]:
    """The first annotations in words, those that matter most before others."""
    ranked = sorted(dict.fromkeys(found), key=lambda one: LEVELS.index(one.level))
    for one in ranked[:_MOST]:
        yield annotation_text(one), one.level
    if len(ranked) > _MOST:
        yield f"and {counted(len(ranked) - _MOST, 'more annotation')}", "notice"


def annotation_text(event: AnnotationAdded) -> str:
    """`src/total.py:2: error: the first row is left out`, as compilers write it."""
    message = event.message
    shown = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    place = place_text(event)
    return f"{place}: {event.level}: {shown}" if place else f"{event.level}: {shown}"


def place_text(event: AnnotationAdded) -> str:
    """The file with its lines, as far as they are known."""
    if event.path is None or event.line is None:
        return event.path or ""
    last = "" if event.end_line is None else f"-{event.end_line}"
    return f"{event.path}:{event.line}{last}"
