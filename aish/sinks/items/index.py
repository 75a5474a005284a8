"""Where the lines of a results file stand: by step and place among the items, 8 bytes each."""

from array import array
from collections.abc import Iterator

MOST_ITEMS = 50_000_000
"""More items in one step are refused: a number that large came from a damaged file."""

_NOWHERE = -1


class ItemsIndex:
    """The offset of the last line of each item; loose lines have none that is newer."""

    def __init__(self) -> None:
        self._loose: array[int] = array("q")
        self._offsets: dict[str, array[int]] = {}
        self._displaced: dict[str, array[int]] = {}

    def put(self, step: str, index: int, offset: int) -> int | None:
        """Note where a line stands; where an older one of that place stands, if there is one."""
        offsets = self._offsets.get(step)
        if offsets is None:
            offsets = self._offsets[step] = array("q")
        if index >= len(offsets):
            offsets.extend([_NOWHERE] * (index + 1 - len(offsets)))
        older = offsets[index]
        offsets[index] = offset
        return None if older == _NOWHERE else older

    def displace(self, step: str, offset: int) -> None:
        """Note a line whose place another item has by now: it comes after all others."""
        self._displaced.setdefault(step, array("q")).append(offset)

    def count(self, step: str) -> int:
        """How many items of a step have a line."""
        return sum(1 for _ in self.offsets(step))

    def put_loose(self, offset: int) -> None:
        """Note a line that no step is asked for."""
        self._loose.append(offset)

    def get(self, step: str, index: int) -> int | None:
        """Where the last line of an item stands."""
        offsets = self._offsets.get(step, ())
        found = offsets[index] if index < len(offsets) else _NOWHERE
        return None if found == _NOWHERE else found

    def offsets(self, step: str) -> Iterator[int]:
        """Of the lines of a step, in the order of its items."""
        yield from (offset for offset in self._offsets.get(step, ()) if offset != _NOWHERE)
        yield from self._displaced.get(step, ())

    def steps(self) -> tuple[str, ...]:
        """The steps that have lines, in the order of the first one of each."""
        return tuple(self._offsets)

    def all_offsets(self) -> Iterator[int]:
        """Of the last lines of all items and the loose ones, in the order of the file."""
        last = (offset for step in self._offsets for offset in self.offsets(step))
        return iter(sorted([*last, *self._loose]))
