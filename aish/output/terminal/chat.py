"""A session as a person sees it: answers, tool calls, commands, and what went wrong (S4).

Like `console`, for a conversation: steps have no names, a run begins and ends in one line each,
and an answer is drawn as the Markdown it is.

Draws the frames of calls and commands on a screen; several at the same time stay apart.

The frames around tool calls and local commands: pure, text in, lines out (S4).

▸ docs__search {"query": "approvals", "limit": 3}        $ git log --oneline -3
  approved by you                                          │ 1b2c3d4 Add the shell
│ 12 results                                               ╰ exit 0 · 0.02 s
╰ 0.31 s

The first and the last line of a session, and what a turn came to: pure, events in, text out.

What a local command prints, in a frame that grows while it runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
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
    Verdict,
)
from aish.core.json import JsonValue, json_text
from aish.core.phrases import counted, dollars
from aish.core.text import for_line, for_terminal
from aish.output.markdown.blocks import LONGEST, Line
from aish.output.markdown.wrap import Folding, folded
from aish.output.result import annotation_text
from aish.output.screen import Screen
from aish.output.status import Waits, lines_of, seconds_text, tokens_text
from aish.output.style import Look, Style, cells, hint_rows, parts_in_rows, sentence
from aish.output.terminal.answer import Answer, Cleaner, Raw, Rendered
from aish.output.terminal.console import Console
from aish.output.terminal.tool_output import again_line, failure_rule, result_lines

_READ_AT_MOST = 100_000
_PERSONS: Mapping[Verdict, str] = {"ask-yes": "approved by", "staged": "kept for later by"}
_RULES: Mapping[Verdict, str] = {"auto": "approved by", "staged": "kept for later by"}


def is_command(tool: str) -> bool:
    """Whether a call is a local command."""
    return tool == "shell__run"


def call_line(look: Look, tool: str, arguments: JsonValue) -> str:
    """Name and arguments of a call on one dim line, with the count of what does not fit."""
    said = f"  {look.glyphs.call} {tool} {json_text(arguments, spaced=True)}"
    shown = for_line(said[:_READ_AT_MOST])
    if len(said) > _READ_AT_MOST or cells(shown) > look.width:
        room = look.width - len(f" +{len(said):,}")
        kept = look.fit(shown, room)
        left = len(said) - len(kept) + len(look.glyphs.cut)
        shown = f"{kept} +{left:,}"
    return look.paint("dim", shown)


def decided_lines(look: Look, event: ToolDecided) -> Iterator[str]:
    """Who let a call pass, where that is news; a denied one says it itself.

    Of a call that is a person, of a command, which persons give, it is a rule.
    """
    if said := (_RULES if is_command(event.tool) else _PERSONS).get(event.verdict):
        yield look.paint("dim", look.fit(for_line(f"    {said} {event.rule}"), look.width))


def command_lines(look: Look, event: ToolDecided) -> Iterator[str]:
    """The command as it was given, folded and not cut; a `$` stands before one that is run."""
    rows = folded(for_terminal(_command(event.arguments)), look.width - 2)
    runs = event.verdict in {"auto", "ask-yes"}
    for number, row in enumerate(rows):
        mark = "$ " if runs and not number else "  "
        yield look.paint("bold" if runs else "dim", f"{mark}{row}")


def printed(output: JsonValue) -> Sequence[tuple[str, str]]:
    """What a command printed, by stream."""
    given = output if isinstance(output, Mapping) else {}
    both = [(name, given.get(name)) for name in ("stdout", "stderr")]
    return [(name, text) for name, text in both if isinstance(text, str) and text]


def exit_code(output: JsonValue) -> int | None:
    """The exit code of a command, if it has come to one."""
    code = output.get("exit_code") if isinstance(output, Mapping) else None
    return code if isinstance(code, int) else None


def command_end(look: Look, code: int | None, how: str, seconds: float) -> str:
    """The exit code, or how it ended without one, and the time; red if it is not 0."""
    said = for_line(f"{how if code is None else f'exit {code}'} {look.glyphs.dot} ")
    said += seconds_text(seconds)
    if code != 0:
        return look.paint("red", failure_rule(look, said))
    return look.paint("dim", look.fit(f"  {look.glyphs.end} {said}", look.width))


def _command(arguments: JsonValue) -> str:
    given = arguments if isinstance(arguments, Mapping) else {}
    words = given.get("argv")
    if isinstance(words, (list, tuple)):
        import shlex

        return shlex.join(map(str, words))
    return str(given.get("command", ""))


def opening_text(look: Look, event: RunStarted) -> str:
    """The file, its models, and the servers with what is known of them by now."""
    parts = [f"{model.alias} ({model.model})" for model in event.models]
    for server in event.servers:
        state = counted(server.tools, "tool") if server.state == "ready" else server.state
        parts.append(f"{server.alias} ({state})")
    title = look.fit(for_line(event.pipeline), look.width)
    rest = "".join(f" {look.glyphs.dot} {part}" for part in parts)
    return look.paint("bold", title) + look.paint(
        "dim", look.fit(for_line(rest), max(0, look.width - len(title)))
    )


def closing_rows(look: Look, event: RunFinished, answers: int) -> Iterator[str]:
    """What the session came to, and where it is kept."""
    parts = [counted(answers, "answer"), tokens_text(event.usage)]
    if event.cost_usd:
        parts.append(dollars(event.cost_usd))
    if event.folder:
        parts.append(event.folder)
    return parts_in_rows(list(map(for_line, parts)), look.glyphs.dot, look.width)


def turn_text(look: Look, event: TurnFinished) -> str:
    """Tokens, cost and time of one turn."""
    cost = dollars(event.cost_usd) if event.cost_usd else ""
    parts = [event.model, tokens_text(event.usage), cost, seconds_text(event.seconds)]
    return f"{look.glyphs.dot} " + f" {look.glyphs.dot} ".join(filter(None, parts))


_ENDS = re.compile(r"([\r\n])")


class Overwritten:
    r"""Lines of which the part after the last `\r` counts, as progress bars use it.

    A part that is too long to wait for is handed on in pieces.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._kept = ""
        self._parts: list[str] = []
        self._size = 0
        self._is_long = False

    @property
    def partial(self) -> str:
        """What there is of the line that has not ended; may be asked for by another thread."""
        return "".join(tuple(self._parts)) or self._kept

    def feed(self, text: str) -> Iterator[Line]:
        """What `text` makes complete."""
        if "\n" not in text and "\r" not in text:
            yield from self._add(text)
            return
        for part in _ENDS.split(text):
            if part == "\n":
                yield from self._ended(always=True)
            elif part == "\r":
                yield from self._returned()
            else:
                yield from self._add(part)

    def end(self) -> Iterator[Line]:
        """Nothing more comes."""
        yield from self._ended(always=False)

    def _add(self, text: str) -> Iterator[Line]:
        if self._is_long:
            if text:
                yield Line(text, "next")
            return
        self._parts.append(text)
        self._size += len(text)
        if self._size >= self._longest:
            yield Line("".join(self._parts), "first")
            self._parts.clear()
            self._kept = ""
            self._is_long = True

    def _returned(self) -> Iterator[Line]:
        if self._is_long:
            yield Line("", "end")
        elif self._size:
            self._kept = "".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._is_long = False

    def _ended(self, *, always: bool) -> Iterator[Line]:
        if self._is_long:
            yield from self._returned()
        elif always or self.partial:
            yield Line(self.partial)
        self._parts.clear()
        self._kept = ""
        self._size = 0


class _Stream:
    """One of the two that a command writes to."""

    def __init__(self, look: Look, style: Style) -> None:
        self.lines = Overwritten()
        self.bar = look.paint(style, f"  {look.glyphs.bar} ")
        self.cleaner = Cleaner()
        self.folding = Folding(1)


class OutputFrame:
    """Below the line that names the command; what is on stderr has a bar of another colour."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        look = screen.look
        self._margin = 2 + len(look.glyphs.bar) + 1
        self._streams = {"stdout": _Stream(look, "dim"), "stderr": _Stream(look, "yellow")}
        self._in_line: _Stream | None = None
        self.is_empty = True
        screen.end_line()
        screen.pin(self._tail)

    def feed(self, text: str, name: str) -> None:
        """Some output has come."""
        stream = self._streams[name]
        self.is_empty = self.is_empty and not text
        self._draw(stream, stream.lines.feed(text))

    def end(self) -> None:
        """The command has ended."""
        for stream in self._streams.values():
            self._draw(stream, stream.lines.end())
        self._screen.pin(None)
        self._screen.end_line()

    def _draw(self, stream: _Stream, lines: Iterator[Line]) -> None:
        room = self._screen.width - self._margin
        if shown := "".join([self._row(stream, line, room) for line in lines]):
            self._screen.instead(shown)

    def _row(self, stream: _Stream, line: Line, room: int) -> str:
        goes_on = self._in_line is stream
        if line.part == "end":
            self._in_line = None if goes_on else self._in_line
            return "\n" if goes_on else ""
        if goes_on:
            return stream.folding.piece(stream.cleaner.piece(line.text))
        broken = "" if self._in_line is None else "\n"
        if line.part == "whole":
            self._in_line = None
            shown = for_terminal(line.text)
            if "\t" in shown or cells(shown) > room:
                shown = Folding(room, stream.bar).piece(shown)
            return f"{broken}{stream.bar}{shown}\n"
        stream.folding = Folding(room, stream.bar)
        if line.part == "first":
            stream.cleaner = Cleaner()
        self._in_line = stream
        return broken + stream.bar + stream.folding.piece(stream.cleaner.piece(line.text))

    def _tail(self, width: int, height: int) -> Sequence[str]:
        """Lines that have not ended: a bar of progress, a question."""
        rows = [
            stream.bar + row
            for stream in self._streams.values()
            if stream.lines.partial
            for row in folded(
                for_terminal(stream.lines.partial[-width * height :]), width - 1 - self._margin
            )
        ]
        return rows[-max(1, height) :]


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


_LEVELS: dict[Level, Style] = {"info": "dim", "warning": "yellow", "error": "red"}

# What `Look.paint` writes.
_OURS = re.compile(r"(\x1b\[(?:0|1|2|31|32|33|36)m)")


class Chat:
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
