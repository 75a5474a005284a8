"""For a person who watches: streaming text, framed tool calls, a spinner while nothing comes.

Of a step with items there is a display of how far it is, and nothing of what happens in each.

Everything goes to stderr. Text that another sink writes to the same terminal (the answer, on
stdout) is left to it, and only its line ends are kept track of. That sink has to come after this
one in the event log, so that the spinner is gone before it writes.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import assert_never

from aish.core.events import (
    AnnotationAdded,
    AnnotationLevel,
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
from aish.core.phrases import counted
from aish.core.text import for_line, for_terminal
from aish.output.progress.panel import ItemDisplay
from aish.output.screen import OutputLock, Screen
from aish.output.status import OF_ITEMS, Tally, Waits, cassette_text, lines_of, seconds_text
from aish.output.style import Look, Style, hint_rows, parts_in_rows, sentence
from aish.output.terminal.tool_output import again_line, call_line, result_lines

_LEVELS: dict[Level, Style] = {"info": "dim", "warning": "yellow", "error": "red"}
_OF_ANNOTATIONS: dict[AnnotationLevel, Style] = {
    "notice": "dim",
    "warning": "yellow",
    "error": "red",
}


class Console:
    """Draws events on a screen; `elsewhere` names the step whose text another sink writes."""

    name = "the console"
    deltas = True

    def __init__(self, screen: Screen, *, elsewhere: str | None = None) -> None:
        self._screen = screen
        self._look: Look = screen.look
        self._elsewhere = elsewhere
        self._tally = Tally()
        self._step: str | None = None
        self._hint: str | None = None
        self._last_call: Place | None = None
        self._floor = OutputLock()
        self._waits = Waits()
        self._items = ItemDisplay(screen)
        self._unmet: list[str] = []
        self._annotations: list[AnnotationAdded] = []
        self._end: RunFinished | None = None

    def __call__(self, stamped: Stamped) -> None:
        """Draw what this event is worth."""
        event = stamped.event
        if event.place.item is not None:
            self._tally.take(stamped)
            self._items.take(event)
        elif isinstance(event, TextDelta):
            self._piece(event)
        elif isinstance(event, ReasoningDelta):
            self._waits.model(event.place, "thinking")
            self._wait()
        else:
            self._tally.take(stamped)
            self._draw(event)
            self._wait()

    def hold(self) -> AbstractContextManager[None]:
        """Keep everything away while a person is asked on the same terminal."""
        return self._screen.hold()

    def close(self) -> None:
        """Take the spinner away, and say what the run came to.

        Not before: what other sinks print when a run has ended belongs above that line.
        """
        self.end()
        self._screen.close()

    def end(self) -> None:
        """Say what the run came to, and leave the screen to whoever has it."""
        self._rest()
        if self._end is not None:
            self._closing(self._end)

    def _rest(self) -> None:
        self._screen.rest()
        self._screen.end_line()

    def _draw(self, event: Event) -> None:  # ruff: ignore[complex-structure, too-many-branches] - a union
        if isinstance(event, JournalOnly):
            return
        match event:
            case RunStarted():
                self._run_started(event)
            case StepStarted():
                # Named by what it does first: a step that is skipped gets one line, not two.
                self._items.step_started(event)
                if event.kind != "pipeline":
                    self._floor.enter(event.place.step)
            case TurnStarted():
                if not self._is_crowded:
                    self._header(event.place)
                self._waits.model(event.place, f"waiting for {for_line(event.model)}")
            case TurnFinished():
                self._turn_finished(event)
            case TextWithdrawn():
                self._floor.forget(event.place)
                self._named(event.place)
                self._note("yellow", "what was said since the question is withdrawn")
            case ToolDecided():
                self._header(event.place)
                self._screen.line(call_line(self._look, event.tool, event.arguments))
                self._last_call = event.place
            case ToolStarted():
                self._waits.call(event.place, event.tool)
            case ToolProgress():
                self._waits.progress(event)
            case ToolFinished():
                self._tool_finished(event)
            case Retry():
                self._retry(event)
            case Fallback():
                self._fallback(event)
            case Notice():
                self._notice(event)
            case ExpectChecked():
                self._unmet += () if event.ok else (event.message,)
            case StepFinished():
                self._step_finished(event)
            case AnnotationAdded():
                self._annotations.append(event)
            case RunFinished():
                self._end = event
                self._rest()
            case TextDelta() | ReasoningDelta() | ItemStarted() | ItemFinished() | ToolOutput():
                pass
            case TurnProgress():  # what waits is drawn, and moves
                pass
            case _:
                assert_never(event)

    def _run_started(self, event: RunStarted) -> None:
        glyphs = self._look.glyphs
        parts = [f"{model.alias} ({model.model})" for model in event.models]
        ready = (one for one in event.servers if one.state == "ready")
        parts += [f"{one.alias} ({counted(one.tools, 'tool')})" for one in ready]
        title = for_line(event.pipeline)
        rest = self._look.fit(
            for_line("".join(f" {glyphs.dot} {part}" for part in parts)),
            max(0, self._look.width - len(title)),
        )
        self._screen.line(self._look.paint("bold", title) + self._look.paint("dim", rest))
        if event.cassette is not None:
            said = self._look.fit(for_line(cassette_text(event.cassette)), self._look.width)
            self._screen.line(self._look.paint("dim", said))

    def _header(self, place: Place) -> None:
        """Name the step, where another one was drawn last."""
        if place.step is None or place.step == self._step:
            return
        self._step = place.step
        self._last_call = None
        self._floor.interrupt()
        label = for_line(f"{self._look.glyphs.step} {place.step}")
        self._screen.line()
        self._screen.line(self._look.paint("bold", self._look.fit(label, self._look.width)))

    def _named(self, place: Place) -> None:
        """Name the step of a line that does not name it itself, where that could be another."""
        if self._step is not None or self._is_crowded:
            self._header(place)

    @property
    def _is_crowded(self) -> bool:
        return self._floor.is_crowded or self._items.are_shown

    def _piece(self, event: TextDelta) -> None:
        self._waits.over(event.place)
        is_shared = event.place.step == self._elsewhere
        if is_shared or self._floor.may_speak(event.place, crowded=self._is_crowded):
            self._text(event.place, event.text)

    def _text(self, place: Place, text: str) -> None:
        self._header(place)
        self._floor.spoke(place, len(text))
        self._last_call = None
        self._screen.text(for_terminal(text), elsewhere=place.step == self._elsewhere)

    def _turn_finished(self, event: TurnFinished) -> None:
        self._waits.over(event.place)
        if event.purpose != "answer":
            # Said to nobody here: a summary is for the model, and a sampled turn for a server.
            return
        if rest := self._floor.rest(event.place, event.text):
            self._text(event.place, rest)
        self._floor.forget(event.place)
        self._screen.rest()
        self._screen.end_line(elsewhere=event.place.step == self._elsewhere)

    def _tool_finished(self, event: ToolFinished) -> None:
        self._waits.answered(event.place)
        if self._last_call != event.place:
            self._header(event.place)
            self._screen.line(again_line(self._look, event.tool))
        self._lines(result_lines(self._look, event))
        self._last_call = None

    def _wait(self) -> None:
        if waited := self._waits.text():
            self._screen.wait(waited)
        else:
            self._screen.rest()

    def _retry(self, event: Retry) -> None:
        self._named(event.place)
        again = f"attempt {event.attempt} in {seconds_text(event.delay)}"
        self._note("yellow", f"retry: {event.endpoint}: {event.reason}; {again}")
        self._waits.model(event.place, f"waiting to ask {for_line(event.endpoint)} again")

    def _fallback(self, event: Fallback) -> None:
        self._named(event.place)
        arrow = f"{event.source} {self._look.glyphs.arrow} {event.target}"
        self._note("yellow", f"fallback {arrow}: {event.reason}")

    def _notice(self, event: Notice) -> None:
        self._named(event.place)
        first, *rest = lines_of(event.text, event.code)
        self._note(_LEVELS[event.level], first)
        self._lines(for_line(f"  {line}") for line in rest)

    def _note(self, style: Style, text: str) -> None:
        glyph = self._look.glyphs.dot if style == "dim" else self._look.glyphs.warning
        self._say(f"{glyph} {text}", style)

    def _say(self, text: str, style: Style | None = None) -> None:
        """A line of ours, folded between its words."""
        for row in sentence(for_line(text), self._screen.width):
            self._screen.line(self._look.paint(style, row) if style else row)

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._screen.line(line)

    def _step_finished(self, event: StepFinished) -> None:
        step = for_line(event.place.step or "")
        self._floor.leave(event.place.step)
        self._waits.step_over(event.place.step)
        self._rest()
        self._items.step_finished(event)
        if event.status == "skipped":
            why = for_line(f": {event.error.message}" if event.error else "")
            mark = f"{self._look.glyphs.skipped} {step}: skipped{why}"
            self._screen.line(self._look.paint("dim", self._look.fit(mark, self._look.width)))
        elif event.status != "ok":
            said = event.error.message if event.error else event.status
            # What does not hold has been said in full; the error is the first of it in short.
            for first, *rest in [message.split("\n") for message in self._unmet] or [[said]]:
                self._say(f"{self._look.glyphs.no} {step}: {first}", "red")
                self._lines(self._look.fit(for_line(line), self._look.width) for line in rest)
            if event.error and event.error.hint:
                if event.error.code not in OF_ITEMS:
                    self._hint = event.error.hint
                self._lines(hint_rows(for_line(event.error.hint), self._screen.width))
        self._unmet.clear()

    def _closing(self, event: RunFinished) -> None:
        self._screen.line()
        if self._annotations:
            from aish.output.result import annotation_rows

            for row, level in annotation_rows(self._annotations):
                self._note(_OF_ANNOTATIONS[level], row)
        if event.exit.code:
            first, *rest = lines_of(event.exit.reason, event.exit.name)
            self._say(f"exit {event.exit.code} ({event.exit.name}): {first}", "red")
            self._lines(for_line(f"  {line}") for line in rest)
            if event.exit.hint and event.exit.hint != self._hint:
                self._lines(hint_rows(for_line(event.exit.hint), self._screen.width))
        status, *rest = self._tally.parts(event)
        # A line of its own: with the folder before it, it would not fit into one.
        used = rest.pop() if event.cassette is not None else None
        parts = [status, *map(for_line, rest)]
        style: Style = "green" if event.exit.code == 0 else "red"
        first, *others = parts_in_rows(parts, self._look.glyphs.dot, self._screen.width)
        self._screen.line(self._look.paint(style, status) + first.removeprefix(status))
        self._lines(others)
        if used is not None:
            self._say(used)
