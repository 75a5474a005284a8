"""Time as a length: the parts of a run one after the other, without the hours between them."""

from collections.abc import Sequence

from aish.core.frozen import frozen
from aish.reports.units import Segment

WIDTH = 1000.0
_GAP = 12.0


@frozen
class Span:
    """A part of the run and where it is drawn."""

    began: float
    ended: float
    left: float
    width: float


class Axis:
    """Places moments between 0 and `WIDTH`."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        took = [max(one.ended - one.began, 0.0) for one in segments]
        self.seconds = sum(took)
        room = WIDTH - _GAP * (len(took) - 1)
        scale = room / self.seconds if self.seconds else 0.0
        self.spans: list[Span] = []
        left = 0.0
        for segment, length in zip(segments, took, strict=True):
            self.spans.append(Span(segment.began, segment.ended, left, length * scale))
            left += length * scale + _GAP
        self._scale = scale

    def at(self, moment: float) -> float:
        """Where a moment is."""
        place = 0.0
        for span in self.spans:
            if moment < span.began:
                break
            place = span.left + min(moment - span.began, span.ended - span.began) * self._scale
        return place
