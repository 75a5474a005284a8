"""Ids for tool calls whose own id is missing, repeats, or cannot be sent back (L16)."""

from collections.abc import Container, Sequence

from aish.core.events import Place
from aish.wire.call_ids import made_id


def unique_ids(ids: Sequence[str], place: Place, used: Container[str]) -> tuple[str, ...]:
    """The ids of one turn's calls: each kept where it is fit and new, else made.

    A made id follows from step, item, turn and index alone, so that a replayed run makes the same.
    """
    unique: dict[str, None] = {}
    # Those of earlier turns are only looked at, never copied: that would cost more each turn.
    taken = _Either(unique, used)
    for index, given in enumerate(ids):
        fit = _is_fit(given) and given not in taken
        unique[given if fit else made_id(place, index, taken)] = None
    return tuple(unique)


class _Either:
    """What is in one of two containers."""

    def __init__(self, one: Container[str], other: Container[str]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, id: object) -> bool:
        return id in self._one or id in self._other


def _is_fit(id: str) -> bool:
    return bool(id.strip()) and id.isascii() and id.isprintable()
