"""Draws the frames of calls and commands on a screen; several at the same time stay apart."""

from dataclasses import replace

from aish.core.events import Place, StepFinished, ToolDecided, ToolFinished, ToolOutput
from aish.sinks.frames import again_line, result_lines
from aish.sinks.look import Look
from aish.sinks.screen import Screen
from aish.sinks.talk.calls import (
    call_line,
    command_end,
    command_lines,
    decided_lines,
    exit_code,
    is_command,
    printed,
)
from aish.sinks.talk.output import OutputFrame


class Framing:
    """What is drawn last tells whether a result has to name its call again."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._outputs: dict[Place, OutputFrame] = {}
        self._ending: dict[str | None, ToolFinished] = {}
        self._last: Place | None = None
        self.is_last = False
        """Whether a frame is the last thing on the screen."""
        self.told: str | None = None
        """The step whose end a frame has shown."""

    @property
    def look(self) -> Look:
        """The look with the width that the terminal has now."""
        look, width = self._screen.look, max(1, self._screen.width)
        return look if width == look.width else replace(look, width=width)

    def interrupt(self) -> None:
        """Something else is drawn."""
        self._last = None
        self.is_last = False

    def decided(self, event: ToolDecided) -> None:
        """A call, or a command, and who let it pass."""
        look = self.look
        if is_command(event.tool):
            lines = list(command_lines(look, event))
        else:
            lines = [call_line(look, event.tool, event.arguments)]
        for line in (*lines, *decided_lines(look, event)):
            self._screen.line(line)
        self._last = event.place
        self.is_last = True

    def output(self, event: ToolOutput) -> None:
        """Some output of it."""
        self._frame(event.place).feed(event.text, event.stream)

    def finished(self, event: ToolFinished) -> None:
        """How it ended."""
        look = self.look
        if event.kind == "denied" or not is_command(event.tool):
            self._closed(event.place)
            if self._last != event.place:
                self._screen.line(again_line(look, event.tool))
            for line in result_lines(look, event):
                self._screen.line(line)
        else:
            self._ending[event.place.step] = event
        if event.kind == "denied" and is_command(event.tool):
            self.told = event.place.step
        self._last = None
        self.is_last = True

    def step_finished(self, event: StepFinished) -> None:
        """Nothing more of a step comes; how a command ended is known now.

        Of one that was cut off what is there is shown.
        """
        step = event.place.step
        ended = self._ending.pop(step, None)
        if ended is not None:
            self._command_finished(ended, event)
        for place in [place for place in self._outputs if place.step == step]:
            self._closed(place)
        self.interrupt()

    def close(self) -> None:
        """Nothing more comes at all."""
        for place in list(self._outputs):
            self._closed(place)

    def _command_finished(self, call: ToolFinished, step: StepFinished) -> None:
        code = exit_code(step.output)
        frame = self._frame(call.place)
        if frame.is_empty:
            # Nobody has seen it print: it was played from a cassette.
            for stream, text in printed(step.output):
                frame.feed(text, stream)
        self._closed(call.place)
        how = step.error.code if step.error else step.status
        seconds = call.seconds or step.seconds
        self._screen.line(command_end(self.look, code, how, seconds))
        if code is not None:
            self.told = call.place.step

    def _frame(self, place: Place) -> OutputFrame:
        if place not in self._outputs:
            self._outputs[place] = OutputFrame(self._screen)
        return self._outputs[place]

    def _closed(self, place: Place) -> None:
        frame = self._outputs.pop(place, None)
        if frame is not None:
            frame.end()
