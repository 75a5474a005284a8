"""Short texts about a run: its result, tokens, durations, and its cassette."""

from collections.abc import Mapping, Sequence

from aish.core.events import (
    CassetteInfo,
    CassetteMode,
    Exit,
    Retry,
    RunFinished,
    Stamped,
    StepFinished,
    StepStarted,
    ToolFinished,
)
from aish.core.messages import Usage
from aish.core.phrases import counted, dollars

_MINUTE = 60
_TEN_SECONDS = 9.95


# Our own texts that contain a diff, line by line; untrusted texts have one line.
_BLOCKS = frozenset({"cassette", "comparison", "not_recorded", "unused_interactions"})

OF_ITEMS = frozenset({"items", "items_stopped", "max_failures"})
"""Codes of a step that failed by its items: what to do next is told again at the run's end."""


def lines_of(text: str, code: str) -> Sequence[str]:
    """A reason or a notice as shown: depending on `code`, in several lines or in one."""
    return text.split("\n") if code in _BLOCKS else (text,)


def retry_text(event: Retry, reason: str) -> str:
    """What is retried, why, and when."""
    again = f"attempt {event.attempt} in {seconds_text(event.delay)}"
    return f"retry: {event.endpoint}: {reason}; {again}"


def exit_lines(end: Exit) -> Sequence[str]:
    """Why a run did not succeed, the exit code first."""
    first, *rest = lines_of(end.reason, end.name)
    return f"exit {end.code} ({end.name}): {first}", *rest


_MODES: Mapping[CassetteMode, str] = {
    "none": "replaying {}",
    "once": "replaying {}",
    "new_episodes": "replaying {}, and recording what it does not hold",
    "all": "recording to {}",
}


def cassette_text(info: CassetteInfo) -> str:
    """What happens to a run's cassette, shown before it begins: recording costs money."""
    return _MODES[info.mode].format(info.path)


class Tally:
    """Counts steps, tool calls, and steps in which a model has answered."""

    def __init__(self) -> None:
        self._steps = 0
        self._calls = 0
        self._asked: set[str | None] = set()
        self.answers = 0

    def take(self, stamped: Stamped) -> None:
        """Count one event."""
        match stamped.event:
            case StepStarted(place=place, kind="prompt"):
                self._asked.add(place.step)
            case StepFinished(place=place, status=status) if status != "skipped":
                self._steps += 1
                self.answers += status == "ok" and place.step in self._asked
                self._asked.discard(place.step)
            case ToolFinished():
                self._calls += 1
            case _:
                pass

    def parts(self, finished: RunFinished) -> Sequence[str]:
        """The parts of the closing line, the status first."""
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
    """`412 in / 96 out tokens`; unknown values are `?`; empty if all are unknown."""
    if usage.input is None and usage.output is None:
        return ""
    known = ("?" if count is None else f"{count:,}" for count in (usage.input, usage.output))
    return "{} in / {} out tokens".format(*known)


def seconds_text(seconds: float) -> str:
    """A readable duration: `0.03 s`, `1.8 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < _TEN_SECONDS:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
