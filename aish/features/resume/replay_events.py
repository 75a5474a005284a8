"""Events of an earlier part of a run, for sinks that report the whole run."""

from collections.abc import Iterable, Iterator
from typing import Any

from aish.core.events import Stamped
from aish.core.json import JsonObject
from aish.engine.resume_state import ResumeState
from aish.features.launch import EarlierPart
from aish.features.resume.find import PastPart
from aish.features.resume.scan import owners
from aish.journal.reader import parse_event

_OF_THE_RUN = frozenset({"run.started", "run.finished"})
# A later part uses the answers to questions of an earlier one.
_QUESTIONS = frozenset({"approval.asked", "approval.answered"})


def earlier_part(past: PastPart, state: ResumeState) -> EarlierPart:
    """The part of a run that was done before, for what goes on with it or shows it again."""

    def events(kinds: frozenset[str] | None, known: int) -> Iterator[Stamped]:
        with past.read() as reading:
            if state.ended:
                yield from retold_whole(reading, state)
            else:
                yield from retold(reading, state, kinds, known)

    return EarlierPart(state, events, None if state.ended else past.journal.go_on)


def retold(
    records: Iterable[JsonObject],
    resume_state: ResumeState,
    kinds: frozenset[str] | None = None,
    known: int = 0,
) -> Iterator[Stamped]:
    """The events of completed units, and all questions; failed attempts are omitted.

    Only of some `kinds`, and for items only those whose end is not `known`: of a million items few
    have to be repeated.

    Raises:
        JournalError: the journal is damaged.
    """
    for record in records:
        kind = record.get("type")
        wanted = kind not in _OF_THE_RUN if kinds is None else kind in kinds
        if wanted and (kind in _QUESTIONS or _stays(record, resume_state, known)):
            yield from filter(None, (parse_event(record),))


def retold_whole(records: Iterable[JsonObject], resume_state: ResumeState) -> Iterator[Stamped]:
    """The events of a successful run, as if it had never been interrupted."""
    for record in records:
        seq: Any = record.get("seq")
        stays = record.get("type") in _QUESTIONS or _stays(record, resume_state, 0)
        if seq >= resume_state.part_seq or stays:
            yield from filter(None, (parse_event(record),))


def _stays(record: Any, resume_state: ResumeState, known: int) -> bool:
    seq = record["seq"]
    for step, item in owners(record.get("step"), record.get("item")):
        if item is None:
            begun = resume_state.begun.get(step)
            if begun is not None:
                return bool(seq >= begun)
            continue
        items = resume_state.items.get(step)
        between = None if items is None else items.records_of(item)
        if between is not None:
            return bool(between[0] <= seq and between[1] > known)
    return False
