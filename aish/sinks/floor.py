"""Who has the floor: whose answer is shown as it comes while several steps talk at the same time.

One step alone is shown piece by piece. Where others want to be seen too, an answer is shown whole
once it is there, under the name of its step; one that was begun before that is ended there.
"""

from dataclasses import field

from aish.core.events import Place
from aish.core.frozen import slotted


@slotted
class Floor:
    """`speaking` is the turn whose text stands last on the screen, in a line that goes on."""

    speaking: Place | None = None
    _steps: set[str] = field(default_factory=set)
    _shown: dict[Place, int] = field(default_factory=dict)
    _late: set[Place] = field(default_factory=set)

    def enter(self, step: str | None) -> None:
        """A step begins."""
        self._steps.add(step or "")

    def leave(self, step: str | None) -> None:
        """A step is over."""
        self._steps.discard(step or "")

    @property
    def is_crowded(self) -> bool:
        """Whether there is more than one who may want to be seen."""
        return len(self._steps) > 1

    def may_speak(self, place: Place, *, crowded: bool) -> bool:
        """Whether a piece of this turn's text can be shown now, after the last one of it."""
        if place in self._late:
            return False
        if place == self.speaking or (not crowded and place not in self._shown):
            return True
        self._late.add(place)
        return False

    def spoke(self, place: Place, length: int) -> None:
        """So much more of a turn's text was shown."""
        self.speaking = place
        self._shown[place] = self._shown.get(place, 0) + length

    def interrupt(self) -> None:
        """Something else was shown: what comes now is no continuation."""
        self.speaking = None

    def rest(self, place: Place, text: str) -> str:
        """What of a turn's text was not shown yet; the turn is over."""
        shown = self._shown.pop(place, 0)
        self._late.discard(place)
        return "" if place == self.speaking and shown else text[shown:]

    def forget(self, place: Place) -> None:
        """What was shown of a turn is void."""
        self._shown.pop(place, None)
        self._late.discard(place)
        if self.speaking == place:
            self.speaking = None
