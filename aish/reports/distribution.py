"""The distribution of many numbers in bounded memory: sums in fixed logarithmic bins."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import field

from aish.core.frozen import slotted

# A bin is 6 % wide, so a quantile is that exact; and exact where all numbers in its bin are equal.
_PER_DECADE = 40
_LEAST, _MOST = -9, 15
_ZERO = 0
_OFFSET = 1 - _LEAST * _PER_DECADE
_BARS = 24


@slotted
class Distribution:
    """Counts and sums of numbers by bin; a number that was added can be removed again."""

    counts: dict[int, int] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def add(self, number: float, sign: int = 1) -> None:
        """Add a number, or with a `sign` of -1 remove it; what is not finite is not counted."""
        if not math.isfinite(number):
            return
        place = _bin(number)
        self.counts[place] = self.counts.get(place, 0) + sign
        self.sums[place] = self.sums.get(place, 0.0) + sign * number
        if not self.counts[place]:
            del self.counts[place], self.sums[place]

    def quantile(self, share: float) -> float | None:
        """The mean of the bin with the number of that rank; `None` if there are no numbers."""
        rank, below = share * (self.count - 1), 0
        for place in sorted(self.counts):
            below += self.counts[place]
            if below > rank:
                return self.sums[place] / self.counts[place]
        return None

    def bars(self) -> Sequence[tuple[float, float, int]]:
        """Neighbouring bins joined to few of one width: from, to, count; empty ones included."""
        if not self.counts:
            return ()
        first, last = min(self.counts), max(self.counts)
        width = -(-(last - first + 1) // _BARS)
        return [
            (
                _edge(place),
                _edge(place + width),
                sum(self.counts.get(n, 0) for n in range(place, place + width)),
            )
            for place in range(first, last + 1, width)
        ]


def _bin(number: float) -> int:
    if not number:
        return _ZERO
    power = math.floor(math.log10(abs(number)) * _PER_DECADE)
    place = _OFFSET + min(max(power, _LEAST * _PER_DECADE), _MOST * _PER_DECADE)
    return place if number > 0 else -place


def _edge(place: int) -> float:
    """The lower end of a bin; numbers below zero are mirrored."""
    if place == _ZERO:
        return 0.0
    if place < 0:
        return -_edge(1 - place)
    return 0.0 if place == 1 else 10 ** ((place - _OFFSET) / _PER_DECADE)


def quantiles(numbers: Distribution, shares: Sequence[float]) -> Iterator[tuple[str, float]]:
    """The quantiles with their names: `p50`, `p90`."""
    for share in shares:
        if (value := numbers.quantile(share)) is not None:
            yield f"p{share * 100:g}", value
