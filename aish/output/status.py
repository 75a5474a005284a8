"""What is waited for, in the words of a spinner.

What a run came to, in one line: counted from its events, for people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

from aish.core.events import (
    CassetteInfo,
    CassetteMode,
    Place,
    RunFinished,
    Stamped,
    StepFinished,
    ToolFinished,
    ToolProgress,
)
from aish.core.frozen import slotted
from aish.core.messages import Usage
from aish.core.phrases import counted, dollars
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


_MINUTE = 60
_TEN_SECONDS = 9.95


# Texts of ours that have a difference in them, line by line; what strangers said has one line.
_BLOCKS = frozenset({"cassette", "comparison", "not_recorded", "unused_interactions"})

OF_ITEMS = frozenset({"items", "items_stopped", "max_failures"})
"""Codes of a step that failed by its items: what to do next is told again at the run's end."""


def lines_of(text: str, code: str) -> Sequence[str]:
    """A reason or a notice as it is shown: by `code`, in several lines or in one."""
    return text.split("\n") if code in _BLOCKS else (text,)


_MODES: Mapping[CassetteMode, str] = {
    "none": "replaying {}",
    "once": "replaying {}",
    "new_episodes": "replaying {}, and recording what it does not hold",
    "all": "recording to {}",
}


def cassette_text(info: CassetteInfo) -> str:
    """What happens to a run's cassette, said before it begins: recording costs money."""
    return _MODES[info.mode].format(info.path)


class Tally:
    """Counts steps and tool calls."""

    def __init__(self) -> None:
        self._steps = 0
        self._calls = 0

    def take(self, stamped: Stamped) -> None:
        """Count one event."""
        match stamped.event:
            case StepFinished(status=status) if status != "skipped":
                self._steps += 1
            case ToolFinished():
                self._calls += 1
            case _:
                pass

    def parts(self, finished: RunFinished) -> Sequence[str]:
        """The closing line in its parts, the status first."""
        parts = [finished.status, counted(self._steps, "step")]
        if self._calls:
            parts.append(counted(self._calls, "tool call"))
        if finished.denials:
            parts.append(f"{len(finished.denials)} denied")
        if tokens := tokens_text(finished.usage):
            parts.append(tokens)
        if finished.cost_usd:
            parts.append(dollars(finished.cost_usd))
        parts.append(seconds_text(finished.seconds))
        if finished.folder:
            parts.append(finished.folder)
        if used := finished.cassette:
            what = counted(used.interactions, "interaction")
            place = "to" if used.use == "recorded" else "from"
            parts.append(f"{used.use} {what} {place} {used.path}")
        return parts


def tokens_text(usage: Usage) -> str:
    """`412 in / 96 out tokens`; what is unknown is `?`, and empty if all of it is."""
    if usage.input is None and usage.output is None:
        return ""
    known = ("?" if count is None else f"{count:,}" for count in (usage.input, usage.output))
    return "{} in / {} out tokens".format(*known)


def seconds_text(seconds: float) -> str:
    """A duration as people say it: `0.03 s`, `1.8 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < _TEN_SECONDS:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
