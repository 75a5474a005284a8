"""A session as a person sees it: answers, tool calls, commands, and what went wrong (S4).

Like `console`, for a conversation: steps have no names, a run begins and ends in one line each,
and an answer is drawn as the Markdown it is.
"""

import re
from contextlib import AbstractContextManager
from typing import Literal, assert_never

from aish.core.events import (
    AnnotationAdded,
    Event,
    ExpectChecked,
    Fallback,
    ItemFinished,
    ItemStarted,
    JournalOnly,
    Level,
    Notice,
    Place,
    ReasoningDelta,
    Retry,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolOutput,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnProgress,
    TurnStarted,
)
from aish.core.text import for_line, for_terminal
from aish.sinks.annotations import annotation_text
from aish.sinks.console import Console
from aish.sinks.look import Look, Style
from aish.sinks.screen import Screen
from aish.sinks.sentences import hint_rows, sentence
from aish.sinks.talk.answer import Answer, Raw, Rendered
from aish.sinks.talk.calls import is_command
from aish.sinks.talk.ends import closing_rows, opening_text, turn_text
from aish.sinks.talk.framing import Framing
from aish.sinks.tally import lines_of, seconds_text
from aish.sinks.waits import Waits

_LEVELS: dict[Level, Style] = {"info": "dim", "warning": "yellow", "error": "red"}

# What `Look.paint` writes.
_OURS = re.compile(r"(\x1b\[(?:0|1|2|31|32|33|36)m)")


class Talk:
    """Draws a session's events on a screen; `plain` leaves answers as they were written.

    `verbose` shows what the model thinks, and what each turn came to.
    """

    name = "the session"
    deltas = True

    def __init__(self, screen: Screen, *, plain: bool, verbose: bool = False) -> None:
        self._screen = screen
        self._plain = plain
        self._verbose = verbose
        self._waits = Waits()
        self._answer: Answer | None = None
        self._speaker: Place | None = None
        self._kind: Literal["answer", "thought"] = "answer"
        self._said_now = 0
        self._shown: dict[Place, int] = {}
        """How much of a turn's text was shown, of those that said something before."""
        self._frames = Framing(screen)
        self._asked: set[str | None] = set()
        """The steps under way in which a model answers."""
        self._answers = 0

    def __call__(self, stamped: Stamped) -> None:
        """Draw what this event is worth."""
        event = stamped.event
        if event.place.item is not None:
            # What happens in items is somebody else's to show.
            return
        if isinstance(event, TextDelta):
            self._said(event.place, event.text)
        elif isinstance(event, ReasoningDelta):
            self._thought(event)
        else:
            self._draw(event)
            self._wait()

    def line(self, text: str = "", style: Style | None = None) -> None:
        """Lines of the shell's own, in styles of ours or in none; they may quote strangers."""
        for line in text.split("\n"):
            shown = _with_styles(line)
            self._screen.line(self._look.paint(style, shown) if style and shown else shown)

    def visitor(self) -> Console:
        """Draws a pipeline that is run within the session, until that has ended."""
        return _Visitor(self._screen)

    def hold(self) -> AbstractContextManager[None]:
        """Keep everything away while somebody else has the terminal."""
        return self._screen.hold()

    def close(self) -> None:
        """Take away what moves."""
        self._quiet()
        self._frames.close()
        self._screen.close()

    @property
    def _look(self) -> Look:
        return self._frames.look

    def _draw(self, event: Event) -> None:  # ruff: ignore[complex-structure, too-many-branches] - a union
        if isinstance(event, JournalOnly):
            return
        match event:
            case RunStarted():
                self._screen.line(opening_text(self._look, event))
            case StepStarted():
                if event.kind == "prompt":
                    self._asked.add(event.place.step)
            case TurnStarted():
                self._waits.model(event.place, f"waiting for {for_line(event.model)}")
            case TurnFinished():
                self._turn_finished(event)
            case TextWithdrawn():
                self._withdrawn(event)
            case ToolDecided():
                self._quiet()
                self._frames.decided(event)
            case ToolStarted():
                what = "running" if is_command(event.tool) else event.tool
                self._waits.call(event.place, what)
            case ToolProgress():
                self._waits.progress(event)
            case ToolOutput():
                self._frames.output(event)
            case ToolFinished():
                self._waits.answered(event.place)
                self._frames.finished(event)
            case Retry():
                self._retry(event)
            case Fallback():
                arrow = f"{event.source} {self._look.glyphs.arrow} {event.target}"
                self._note("yellow", f"fallback {arrow}: {event.reason}")
            case Notice():
                first, *rest = lines_of(event.text, event.code)
                self._note(_LEVELS[event.level], first)
                for line in rest:
                    self._screen.line(for_line(f"  {line}"))
            case StepFinished():
                self._step_finished(event)
            case RunFinished():
                self._quiet()
                self._finished(event)
            case ExpectChecked():
                if not event.ok:
                    self._note("red", event.message)
            case AnnotationAdded():
                self._note("red" if event.level == "error" else "dim", annotation_text(event))
            case ItemStarted() | ItemFinished() | TextDelta() | ReasoningDelta() | TurnProgress():
                pass
            case _:
                assert_never(event)

    def _thought(self, event: ReasoningDelta) -> None:
        if self._verbose:
            self._piece(event.place, "thought", event.text)
        else:
            self._waits.model(event.place, "thinking")
            self._wait()

    def _said(self, place: Place, text: str) -> None:
        self._piece(place, "answer", text)
        self._said_now += len(text)

    def _piece(self, place: Place, kind: Literal["answer", "thought"], text: str) -> None:
        """More of what a model says or, in verbose, thinks."""
        if self._answer is None or self._kind != kind or self._speaker != place:
            self._quiet()
            self._waits.over(place)
            if self._frames.is_last:
                self._screen.line()
            self._frames.interrupt()
            self._speaker, self._kind = place, kind
            if kind == "thought":
                self.line("thinking", "dim")
            is_raw = self._plain or kind == "thought"
            self._answer = Raw(self._screen) if is_raw else Rendered(self._screen)
        self._answer.feed(text)

    def _quiet(self) -> None:
        """End what is being said."""
        if self._answer is not None:
            self._answer.end()
        self._silent()

    def _silent(self) -> None:
        if self._speaker is not None and self._said_now:
            self._shown[self._speaker] = self._shown.get(self._speaker, 0) + self._said_now
        self._said_now = 0
        self._answer = None
        self._speaker = None

    def _turn_finished(self, event: TurnFinished) -> None:
        self._waits.over(event.place)
        if event.purpose != "answer":
            # Said to nobody here: a summary is for the model, and a sampled turn for a server.
            return
        shown = self._shown.pop(event.place, 0)
        if self._speaker == event.place:
            shown += self._said_now
        if rest := event.text[shown:]:
            self._piece(event.place, "answer", rest)
        self._quiet()
        self._shown.pop(event.place, None)
        if self._verbose:
            said = for_line(turn_text(self._look, event))
            self._screen.line(self._look.paint("dim", self._look.fit(said, self._look.width)))

    def _withdrawn(self, event: TextWithdrawn) -> None:
        if self._answer is not None:
            self._answer.drop()
        self._silent()
        if self._shown.pop(event.place, 0) or event.text:
            self._note("yellow", "what was said since the question is withdrawn")

    def _retry(self, event: Retry) -> None:
        again = f"attempt {event.attempt} in {seconds_text(event.delay)}"
        self._note("yellow", f"retry: {event.endpoint}: {event.reason}; {again}")
        self._waits.model(event.place, f"waiting to ask {for_line(event.endpoint)} again")

    def _step_finished(self, event: StepFinished) -> None:
        self._quiet()
        self._waits.step_over(event.place.step)
        self._frames.step_finished(event)
        is_told = event.place.step is not None and event.place.step == self._frames.told
        self._answers += event.status == "ok" and event.place.step in self._asked
        self._asked.discard(event.place.step)
        if event.status in {"ok", "skipped"} or (is_told and event.status != "budget"):
            # How a command ended is told by its frame.
            return
        said = event.error.message if event.error else event.status
        self._say("red", f"{self._look.glyphs.no} {said}")
        if event.error and event.error.hint:
            for row in hint_rows(for_line(event.error.hint), self._screen.width):
                self._screen.line(row)

    def _finished(self, event: RunFinished) -> None:
        if event.exit.code:
            self._say("red", f"{self._look.glyphs.no} {event.exit.reason or event.exit.name}")
        for row in closing_rows(self._look, event, self._answers):
            self._screen.line(self._look.paint("dim", row))

    def _note(self, style: Style, text: str) -> None:
        glyph = self._look.glyphs.dot if style == "dim" else self._look.glyphs.warning
        self._say(style, f"{glyph} {text}")

    def _say(self, style: Style, text: str) -> None:
        """A line of ours, folded between its words."""
        for row in sentence(for_line(text), self._screen.width):
            self._screen.line(self._look.paint(style, row))

    def _wait(self) -> None:
        if self._answer is not None:
            return
        if waited := self._waits.text():
            self._screen.wait(waited)
        else:
            self._screen.rest()


class _Visitor(Console):
    """A console on a screen that stays open when it is closed."""

    def close(self) -> None:
        """Say what the run came to."""
        self.end()


def _with_styles(text: str) -> str:
    """The text made fit for a terminal, but for the styles that are ours."""
    if "\x1b" not in text:
        return for_terminal(text)
    return "".join(
        part if index % 2 else for_terminal(part) for index, part in enumerate(_OURS.split(text))
    )
