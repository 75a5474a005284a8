"""Matches recorded exchanges with answers, and finds those that belong to no model."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from aish.cassettes.format.file import load, partial
from aish.cassettes.format.interaction import Interaction, with_numbers
from aish.cassettes.inspect.conversation import ModelTurn, conversation
from aish.cassettes.record.recorder import kind_of
from aish.core.frozen import frozen
from aish.features.recording.recorded_answer import read_answer
from aish.shell.export.session_log import SessionAnswer, SessionLog

_RAN = "exec://"
_REFUSED = frozenset({401, 403})
_FIRST_ERROR = 400


@frozen
class Matched:
    """`answers` are those of the exported questions, in order; `steps` says which step asked each.

    `missing` are steps with an answer that was not found. `others` are exchanges with servers and
    local commands.
    """

    steps: tuple[str, ...]
    answers: tuple[Interaction, ...]
    others: tuple[Interaction, ...]
    missing: tuple[str, ...]

    @property
    def ran(self) -> frozenset[str]:
        """The local commands that are recorded, each by its step."""
        uris = (one.request.uri for one in self.others if not one.response.broken)
        return frozenset(uri.removeprefix(_RAN) for uri in uris if uri.startswith(_RAN))


def exchanges_of_parts(paths: Sequence[Path]) -> Iterator[tuple[Interaction, ...]]:
    """The exchanges of each part of a session, also of a part that was killed.

    Raises:
        CassetteFileError: one is no cassette, or cannot be read.
    """
    for path in paths:
        there = path if path.exists() else partial(path)
        yield load(there, unfinished=True).interactions


def match(parts: Iterable[tuple[Interaction, ...]], log: SessionLog) -> Matched:
    """Find the exchange of each answer: both are in the same order."""
    held = _join(parts)
    models = [interaction for interaction in held if kind_of(interaction.request) == "model"]
    turns = [part for part in conversation(models, read_answer) if isinstance(part, ModelTurn)]
    answers: list[tuple[str, Interaction]] = []
    missing: list[str] = []
    at = 0
    for step, answer in log.answers:
        place = next((n for n in range(at, len(turns)) if _is_of(turns[n], answer)), None)
        if place is None:
            missing.append(step)
            continue
        answers.append((step, models[turns[place].number - 1]))
        at = place + 1
    others = {
        n: one
        for n, one in enumerate(held, 1)
        if kind_of(one.request) != "model" and not _is_repeated(one, held[n:])
    }
    numbers = {old: new for new, old in enumerate(others, 1)}
    ids = {line.id for line in log.complete_lines()}
    return Matched(
        steps=tuple(step for step, _ in answers if step in ids),
        answers=tuple(interaction for step, interaction in answers if step in ids),
        others=tuple(with_numbers(interaction, numbers) for interaction in others.values()),
        missing=tuple(step for step in missing if step in ids),
    )


def _join(parts: Iterable[tuple[Interaction, ...]]) -> tuple[Interaction, ...]:
    interactions: list[Interaction] = []
    for part in parts:
        before = len(interactions)
        numbers = {number: before + number for number in range(1, len(part) + 1)}
        interactions += (with_numbers(interaction, numbers) for interaction in part)
    return tuple(interactions)


def _is_repeated(refused: Interaction, later: Sequence[Interaction]) -> bool:
    """Return true for a request that a server answered later, once the user was logged in there."""
    if refused.response.status not in _REFUSED and not refused.response.is_headless:
        return False
    return any(
        one.response.status < _FIRST_ERROR
        and one.response.broken is None
        and (one.request.uri, one.request.body) == (refused.request.uri, refused.request.body)
        for one in later
    )


def _is_of(turn: ModelTurn, entry: SessionAnswer) -> bool:
    answer = turn.answer
    names = tuple(call.name for call in answer.calls)
    return (
        answer.trouble is None
        and answer.text == entry.text
        and names == tuple(name for name, _ in entry.calls)
    )
