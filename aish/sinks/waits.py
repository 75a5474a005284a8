"""What is waited for, in the words of a spinner."""

from dataclasses import field

from aish.core.events import Place, ToolProgress
from aish.core.frozen import slotted
from aish.core.text import for_line


@slotted
class Waits:
    """Models by step, calls by place."""

    _models: dict[str, str] = field(default_factory=dict)
    _calls: dict[Place, str] = field(default_factory=dict)

    def model(self, place: Place, what: str) -> None:
        """A step's model has something to do."""
        self._models[place.step or ""] = what

    def over(self, place: Place) -> None:
        """A step's model has done it."""
        self._models.pop(place.step or "", None)

    def step_over(self, step: str | None) -> None:
        """Nothing of a step is waited for any more."""
        self._models.pop(step or "", None)
        for place in [place for place in self._calls if place.step == step]:
            del self._calls[place]

    def call(self, place: Place, tool: str) -> None:
        """A call is on its way."""
        self._calls[place] = for_line(tool)

    def answered(self, place: Place) -> None:
        """It came back."""
        self._calls.pop(place, None)

    def progress(self, event: ToolProgress) -> None:
        """How far a call is."""
        total = "" if event.total is None else f"/{event.total:g}"
        said = f" {event.message}" if event.message else ""
        if event.place in self._calls:
            self._calls[event.place] = for_line(f"{event.tool} {event.progress:g}{total}{said}")

    def text(self) -> str:
        """All of it; each with its step where there are several."""
        by_step: dict[str, list[str]] = {step: [what] for step, what in self._models.items()}
        for place, what in self._calls.items():
            by_step.setdefault(place.step or "", []).append(what)
        if len(by_step) == 1:
            return ", ".join(next(iter(by_step.values())))
        return ", ".join(f"{for_line(step)}: {' + '.join(w)}" for step, w in by_step.items())
