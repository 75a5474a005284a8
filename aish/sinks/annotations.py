"""Annotations of a run, as the last part of it has them, and in words (B11)."""

from collections.abc import Iterator, Sequence
from typing import get_args

from aish.text import counted
from aish.vocab.event_parts import AnnotationLevel, Place
from aish.vocab.events import (
    AnnotationAdded,
    ItemStarted,
    Retry,
    RunStarted,
    Stamped,
    StepStarted,
)

_MOST = 50
_LONGEST = 500
LEVELS = get_args(AnnotationLevel)
"""From what matters most to what matters least."""


class Annotations:
    """Folds events; `found` are the annotations of a run."""

    def __init__(self) -> None:
        self.found: list[AnnotationAdded] = []

    def take(self, stamped: Stamped) -> None:
        """Fold one event in; what is made again takes the place of what was."""
        event = stamped.event
        match event:
            case AnnotationAdded():
                self.found.append(event)
            case Retry(place=place, endpoint=endpoint):
                if place.turn is None and endpoint == f"step {place.step}":
                    self._forget(place)
            case RunStarted() | StepStarted() | ItemStarted():
                self._forget(event.place)
            case _:
                pass

    def _forget(self, place: Place) -> None:
        if self.found:
            self.found = [one for one in self.found if one.place != place]


def annotation_rows(found: Sequence[AnnotationAdded]) -> Iterator[tuple[str, AnnotationLevel]]:
    """The first annotations in words, those that matter most before others."""
    ranked = sorted(found, key=lambda one: LEVELS.index(one.level))
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
