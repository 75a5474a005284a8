"""The terminal display of each event, of a run and of a session.

One `match` serves both. They differ in the values of a `Presentation`: the console of `aish run`
names its steps, for several may produce output at once, and displays items; a session draws answers
as Markdown, and a local command as it was typed, followed by its output as it arrives.

Everything is written to one stream. Text that another sink writes to the same terminal (the answer,
on stdout) is left to it, and only its line ends are tracked. That sink has to follow this one in
the event log, so that the spinner is removed before it writes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Literal, assert_never

from aish.core.events import (
    AnnotationAdded,
    AnnotationLevel,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    BatchCollected,
    BatchPlanned,
    BatchSubmitted,
    ControlCalled,
    ControlEvent,
    Event,
    ExpectChecked,
    Fallback,
    FilesChanged,
    ItemFinished,
    ItemMoved,
    ItemStarted,
    JournalOnly,
    Level,
    Notice,
    Place,
    ReasoningDelta,
    Retry,
    RunFinished,
    RunStarted,
    SessionClosed,
    SessionOpened,
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
    ValueSet,
    Verdict,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text
from aish.core.phrases import and_more, counted, dollars
from aish.core.text import for_line, for_terminal
from aish.output.live_text import CommandOutput, LiveAnswer, RawAnswer
from aish.output.progress import Batch, Batches, ItemLog, summary_parts
from aish.output.rows import fold, hint_rows, parts_in_rows, sentence
from aish.output.screen import Screen
from aish.output.status import (
    OF_ITEMS,
    DenialHints,
    OpenQuestions,
    Tally,
    call_status,
    cassette_text,
    control_text,
    exit_lines,
    lines_of,
    retry_text,
    seconds_text,
    tokens_text,
)
from aish.output.style import Look, Style, cells

SHOWN_LINES = 6
_LEVELS: Mapping[Level | AnnotationLevel, Style] = {
    "info": "dim",
    "notice": "dim",
    "warning": "yellow",
    "security": "yellow",
    "error": "red",
}
_INDENT = "  "
_LONGEST_RULE = 40
_READ_AT_MOST = 100_000
_TAB = "    "
# Who allowed a call is shown where it is not obvious: for a call, a person; for a command, which
# persons approve, a rule.
_PERSONS: Mapping[Verdict, str] = {"ask-yes": "approved by", "staged": "staged by"}
_RULES: Mapping[Verdict, str] = {"auto": "approved by", "staged": "staged by"}
# The styles of `Look.paint`.
_OURS = re.compile(r"(\x1b\[(?:0|1|2|31|32|33|36)m)")


@frozen
class Presentation:
    """The differences between the console of a run and a session.

    `closing` has the last lines: the result of the run, from its end and the counts.
    """

    name: str
    closing: Callable[["ClosingLines", RunFinished, Look], Iterable[str]]
    names_steps: bool = False
    """Whether several steps may speak, each under its name, and items have a display."""
    frames_commands: bool = False
    """Whether a local command is drawn as it was typed, and its output as it comes."""


@slotted
class ClosingLines:
    """The data for the last lines; `hint` was already shown."""

    tally: Tally = field(default_factory=Tally)
    hint: str | None = None
    annotations: list[AnnotationAdded] = field(default_factory=list)
    questions: OpenQuestions = field(default_factory=OpenQuestions)
    approving: DenialHints = field(default_factory=DenialHints)


class Presenter:
    """Draws events on a screen.

    `elsewhere` names the step whose text another sink writes. With `markdown` an answer is drawn as
    Markdown; `verbose` shows the model's reasoning and the result of each turn. The screen of a
    `guest`, a run within a session, remains open when the presenter is closed.
    """

    deltas = True

    def __init__(
        self,
        screen: Screen,
        presentation: Presentation,
        *,
        elsewhere: str | None = None,
        markdown: bool = False,
        verbose: bool = False,
        guest: bool = False,
    ) -> None:
        self.name = presentation.name
        self._screen = screen
        self._presentation = presentation
        self._elsewhere = elsewhere
        self._markdown = markdown
        self._verbose = verbose
        self._guest = guest
        self._items = ItemDisplay(screen) if presentation.names_steps else None
        self._account = ClosingLines()
        self._waits = WaitingText()
        self._lock = OutputLock()
        self._answer: LiveAnswer | None = None
        """What the speaker of the lock says now."""
        self._kind: Literal["answer", "thought"] = "answer"
        self._step: str | None = None
        """The step that was named last."""
        self._last_call: Place | None = None
        """The call drawn last, if nothing else was drawn since: its result need not name it."""
        self._below_frame = False
        self._outputs: dict[Place, CommandOutput] = {}
        self._ending: dict[str | None, ToolFinished] = {}
        """The commands that are over, of steps that are not: these know the exit code."""
        self._framed_end: str | None = None
        """The step whose end a frame has shown."""
        self._unmet: list[str] = []
        self._end: RunFinished | None = None
        self._is_titled = False

    def __call__(self, stamped: Stamped) -> None:
        event = stamped.event
        self._account.approving.take(event)
        if event.place.item is not None:
            if self._items is not None:
                self._account.tally.take(stamped)
                self._items.take(event)
            if isinstance(event, ApprovalAsked | ApprovalAnswered):
                self._question(event)
        elif isinstance(event, TextDelta):
            self._feed_answer(event.place, event.text)
        elif isinstance(event, ReasoningDelta):
            self._show_thought(event)
        else:
            self._account.tally.take(stamped)
            self._draw(event)
            self._wait()

    def opening(self, pipeline: str, doing: Sequence[str], _now: float) -> None:
        """Show the name of the run, and what is done, before it has started."""
        if not doing:
            self._screen.rest()
            return
        look = self._look
        if not self._is_titled:
            self._is_titled = True
            self._lines([look.row(pipeline, "bold")])
        if look.animate:
            self._screen.wait(for_line(", ".join(doing)))
        else:
            self._lines(line for item in doing for line in _note(look, "dim", item))

    def line(self, text: str = "", style: Style | None = None) -> None:
        """Lines of the caller, in our styles or none; they may quote untrusted text."""
        for line in text.split("\n"):
            row = _with_styles(line)
            self._screen.line(self._look.paint(style, row) if style and row else row)

    def guest(self) -> "Presenter":
        """Draws a pipeline that is run within the session, until it has ended."""
        return Presenter(self._screen, RUN, guest=True)

    def hold(self) -> AbstractContextManager[None]:
        """Draw nothing while something else uses the terminal, such as a question."""
        return self._screen.hold()

    def close(self) -> None:
        """Remove what moves, and show the result of the run.

        Not before: what other sinks print when a run has ended belongs above that line.
        """
        self._quiet()
        for place in list(self._outputs):
            self._end_output(place)
        if self._end is not None:
            self._lines(self._presentation.closing(self._account, self._end, self._look))
        if not self._guest:
            self._screen.close()

    @property
    def _look(self) -> Look:
        """The look with the current width of the terminal."""
        look, width = self._screen.look, max(1, self._screen.width)
        return look if width == look.width else replace(look, width=width)

    @property
    def _is_crowded(self) -> bool:
        return self._lock.is_crowded or (self._items is not None and self._items.are_shown)

    def _draw(self, event: Event) -> None:  # ruff: ignore[complex-structure, too-many-branches] - a union
        if isinstance(event, JournalOnly):
            return
        look = self._look
        match event:
            case RunStarted():
                self._lines(_header_lines(look, event, titled=self._is_titled))
            case StepStarted():
                # Named by its first action: a skipped step gets one line, not two.
                if self._items is not None:
                    self._items.step_started(event)
                if event.kind != "pipeline":
                    self._lock.enter(event.place.step)
            case TurnStarted():
                if not self._is_crowded:
                    self._header(event.place)
                self._waits.model(event.place, f"waiting for {for_line(event.model)}")
            case TurnFinished():
                self._turn_finished(event)
            case TextWithdrawn():
                self._withdraw_answer(event)
            case ToolDecided():
                self._header(event.place)
                self._quiet()
                self._lines(self._decision_lines(event))
                self._last_call, self._below_frame = event.place, True
            case ApprovalAsked() | ApprovalAnswered():
                self._question(event)
            case ControlCalled() | ValueSet() | ControlEvent() | AskReceived() | AskEnded():
                if text := control_text(event):
                    self._lines(_note(look, "dim", text))
            case ToolStarted():
                self._waits.call(event.place, "running" if _is_command(event) else event.tool)
            case ToolProgress():
                self._waits.progress(event)
            case ToolOutput():
                if self._presentation.frames_commands:
                    self._output(event.place).feed(event.text, event.stream)
            case ToolFinished():
                self._tool_finished(event)
            case Retry():
                self._name_step(event.place)
                self._lines(_note(look, "yellow", retry_text(event, event.reason)))
                self._waits.model(event.place, f"waiting to ask {for_line(event.endpoint)} again")
            case Fallback():
                self._name_step(event.place)
                arrow = f"{event.source} {look.glyphs.arrow} {event.target}"
                self._lines(_note(look, "yellow", f"fallback {arrow}: {event.reason}"))
            case Notice():
                self._name_step(event.place)
                first, *rest = lines_of(event.text, event.code)
                self._lines(_note(look, _LEVELS[event.level], first))
                self._lines(for_line(f"{_INDENT}{line}") for line in rest)
            case ExpectChecked():
                if not event.ok and self._presentation.names_steps:
                    self._unmet.append(event.message)
                elif not event.ok:
                    self._lines(_note(look, "red", event.message))
            case AnnotationAdded():
                # Shown at the end of a run; in a session, which may be long, at once.
                self._account.annotations.append(event)
                if not self._presentation.names_steps:
                    from aish.output.result import annotation_text

                    self._lines(_note(self._look, _LEVELS[event.level], annotation_text(event)))
            case StepFinished():
                self._step_finished(event)
            case RunFinished():
                self._end = event
                self._quiet()
            case ItemStarted() | ItemFinished() | ItemMoved():
                pass
            case TextDelta() | ReasoningDelta():
                pass
            case FilesChanged():  # a report that was asked for shows it
                pass
            case TurnProgress():  # what waits is drawn, and moves
                pass
            case BatchPlanned() | BatchSubmitted() | BatchCollected():  # a notice tells of it
                pass
            case SessionOpened() | SessionClosed():  # of a server, which has no such output
                pass
            case _:
                assert_never(event)

    def _question(self, event: ApprovalAsked | ApprovalAnswered) -> None:
        """A call that waits for somebody who is not at the terminal, and the answer.

        At the terminal the question itself shows both.
        """
        questions, look = self._account.questions, self._look
        style: Style = "yellow"
        if isinstance(event, ApprovalAsked):
            is_shown, text = event.expires is not None, questions.add(event)
        else:
            asked = questions.get(event.id)
            is_shown = event.way != "terminal" and (asked is None or asked.expires is not None)
            style = "dim" if event.answer in {"approve", "always"} else "yellow"
            text = questions.remove(event)
        if not is_shown:
            return
        if event.place.item is None:
            self._name_step(event.place)
            self._quiet()
        else:
            text = f"{event.place.step} {event.place.item}: {text}"
        self._lines(_note(look, style, text))

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._screen.line(line)

    def _wait(self) -> None:
        if waited := self._waits.text():
            self._screen.wait(waited)
        else:
            self._screen.rest()

    def _header(self, place: Place) -> None:
        """Name the step, if the last output was of another one."""
        if not self._presentation.names_steps or place.step in {None, self._step}:
            return
        self._quiet()
        self._step, self._last_call = place.step, None
        look = self._look
        self._lines(("", look.row(f"{look.glyphs.step} {place.step}", "bold")))

    def _name_step(self, place: Place) -> None:
        """Name the step of a line that does not name it itself, if it could be another."""
        if self._step is not None or self._is_crowded:
            self._header(place)

    def _feed_answer(self, place: Place, text: str) -> None:
        """More of an answer."""
        answer, speaking = self._answer, self._lock.speaking
        speaks = place is speaking or place == speaking
        if answer is None or self._kind != "answer" or not speaks:
            self._waits.over(place)
            crowd = self._presentation.names_steps and not self._is_elsewhere(place)
            if crowd and not self._lock.may_speak(place, crowded=self._is_crowded):
                return
            answer = self._begin(place, "answer")
        answer.feed(text)
        self._lock.shown_now += len(text)

    def _show_thought(self, event: ReasoningDelta) -> None:
        if not self._verbose:
            self._waits.model(event.place, "thinking")
            self._wait()
            return
        answer = self._answer
        if answer is None or self._kind != "thought" or self._lock.speaking != event.place:
            self._waits.over(event.place)
            answer = self._begin(event.place, "thought")
        answer.feed(event.text)

    def _begin(self, place: Place, kind: Literal["answer", "thought"]) -> LiveAnswer:
        """A turn begins its answer; returns what draws it."""
        self._header(place)
        self._quiet()
        if self._below_frame and not self._presentation.names_steps:
            self._screen.line()
        self._last_call, self._below_frame = None, False
        if kind == "thought":
            self.line("thinking", "dim")
        self._lock.speak(place)
        self._kind = kind
        if self._markdown and kind == "answer":
            from aish.output.markdown.answer import MarkdownAnswer

            self._answer = MarkdownAnswer(self._screen)
        else:
            self._answer = RawAnswer(self._screen, elsewhere=self._is_elsewhere(place))
        return self._answer

    def _is_elsewhere(self, place: Place) -> bool:
        return self._elsewhere is not None and place.step == self._elsewhere

    def _quiet(self, *, elsewhere: bool = False) -> None:
        """End the current answer; `elsewhere` means that another sink ends its line."""
        if self._answer is not None:
            self._answer.end()
            self._answer = None
        self._lock.interrupt()
        self._screen.rest()
        self._screen.end_line(elsewhere=elsewhere)

    def _turn_finished(self, event: TurnFinished) -> None:
        place = event.place
        self._waits.over(place)
        if event.purpose != "answer":
            # Not shown: a summary is for the model, and a sampled turn for a server.
            return
        if rest := event.text[self._lock.length_shown(place) :]:
            speaks = self._answer is not None and self._lock.speaking == place
            answer = self._answer if speaks and self._kind == "answer" else None
            (answer or self._begin(place, "answer")).feed(rest)
        if self._lock.speaking == place:
            self._quiet(elsewhere=self._is_elsewhere(place))
        self._lock.forget(place)
        if self._verbose:
            look = self._look
            cost = dollars(event.cost_usd) if event.cost_usd else ""
            parts = [event.model, tokens_text(event.usage), cost, seconds_text(event.seconds)]
            text = "".join(f" {look.glyphs.dot} {part}" for part in filter(None, parts))
            self._screen.line(look.row(text.lstrip(), "dim"))

    def _withdraw_answer(self, event: TextWithdrawn) -> None:
        if self._lock.speaking == event.place and self._answer is not None:
            self._answer.drop()
            self._answer = None
        if self._lock.forget(event.place) or event.text:
            self._name_step(event.place)
            message = "the answer so far is withdrawn"
            self._lines(_note(self._look, "yellow", message))

    def _decision_lines(self, event: ToolDecided) -> Iterator[str]:
        """A call, or a command as it was given, and who allowed it."""
        look = self._look
        is_command = self._presentation.frames_commands and _is_command(event)
        if is_command:
            yield from _command_lines(look, event)
        else:
            yield call_line(look, event.tool, event.arguments)
        if source := (_RULES if is_command else _PERSONS).get(event.verdict):
            yield look.row(f"    {source} {event.rule}", "dim")

    def _tool_finished(self, event: ToolFinished) -> None:
        place = event.place
        self._waits.end_call(place)
        is_framed = self._presentation.frames_commands and _is_command(event)
        if is_framed and event.kind != "denied":
            self._ending[place.step] = event
        else:
            self._end_output(place)
            look = self._look
            if self._last_call != place:
                self._header(place)
                self._screen.line(look.row(f"{_INDENT}{look.glyphs.answer} {event.tool}", "dim"))
            self._lines(_result_lines(look, event))
            self._framed_end = place.step if is_framed else self._framed_end
        self._last_call, self._below_frame = None, True

    def _output(self, place: Place) -> CommandOutput:
        if place not in self._outputs:
            self._outputs[place] = CommandOutput(self._screen)
        return self._outputs[place]

    def _end_output(self, place: Place) -> None:
        output = self._outputs.pop(place, None)
        if output is not None:
            output.end()

    def _command_finished(self, call: ToolFinished, step: StepFinished) -> None:
        """The result of a command is known when its step has ended."""
        result = step.output if isinstance(step.output, Mapping) else {}
        output = self._output(call.place)
        if output.is_empty:
            # Its output was not shown live: it was replayed from a cassette.
            for stream in ("stdout", "stderr"):
                if (text := result.get(stream)) and isinstance(text, str):
                    output.feed(text, stream)
        self._end_output(call.place)
        code, look = result.get("exit_code"), self._look
        how = step.error.code if step.error else step.status
        if isinstance(code, int):
            how, self._framed_end = f"exit {code}", call.place.step
        status = for_line(f"{how} {look.glyphs.dot} ") + seconds_text(call.seconds or step.seconds)
        self._lines((_end_rule(look, status, failed=code != 0),))

    def _step_finished(self, event: StepFinished) -> None:
        step = event.place.step
        self._lock.leave(step)
        self._waits.step_over(step)
        if self._lock.speaking is not None and self._lock.speaking.step == step:
            self._quiet()
        if self._items is not None:
            self._items.step_finished(event)
        ended = self._ending.pop(step, None)
        if ended is not None:
            self._command_finished(ended, event)
        for place in [place for place in self._outputs if place.step == step]:
            # Of an interrupted one what there is is shown.
            self._end_output(place)
        if self._last_call is not None and self._last_call.step == step:
            self._last_call = None
        self._below_frame = False
        is_told = step is not None and step == self._framed_end and event.status != "budget"
        if event.status != "ok" and not is_told:
            self._lines(self._failure_lines(event))
        self._unmet.clear()

    def _failure_lines(self, event: StepFinished) -> Iterator[str]:
        """The lines of a step that was skipped or failed, with a hint."""
        look, names_steps = self._look, self._presentation.names_steps
        step = f"{event.place.step or ''}: " if names_steps else ""
        if event.status == "skipped":
            if names_steps:
                why = f": {event.error.message}" if event.error else ""
                yield look.row(f"{look.glyphs.skipped} {step}skipped{why}", "dim")
            return
        message = event.error.message if event.error else event.status
        if event.status == "paused":
            yield from _note(look, "yellow", f"{step}{message}")
            return
        # Unmet expectations were shown in full; the error only repeats the first in short.
        for first, *rest in [message.split("\n") for message in self._unmet] or [[message]]:
            yield from _own_lines(look, f"{look.glyphs.no} {step}{first}", "red")
            yield from map(look.row, rest)
        if event.error and event.error.hint:
            if event.error.code not in OF_ITEMS:
                self._account.hint = event.error.hint
            yield from hint_rows(for_line(event.error.hint), look.width)


def _own_lines(look: Look, text: str, style: Style | None = None) -> Iterator[str]:
    """Yield a line of our own, folded between its words."""
    for row in sentence(for_line(text), look.width):
        yield look.paint(style, row) if style else row


def _note(look: Look, style: Style, text: str) -> Iterator[str]:
    glyph = look.glyphs.dot if style == "dim" else look.glyphs.warning
    return _own_lines(look, f"{glyph} {text}", style)


def _header_lines(look: Look, event: RunStarted, *, titled: bool) -> Iterator[str]:
    """The file if it is not `titled`, models, servers with their current state, and cassette."""
    parts = [f"{model.alias} ({model.model})" for model in event.models]
    for server in event.servers:
        state = counted(server.tools, "tool") if server.state == "ready" else server.state
        parts.append(f"{server.alias} ({state})")
    title = "" if titled else look.fit(for_line(event.pipeline), look.width)
    dot = f" {look.glyphs.dot} "
    rest = for_line((_INDENT if titled else dot) + dot.join(parts)) if parts else ""
    room = max(0, look.width - cells(title))
    if title or rest:
        start = look.paint("bold", title) if title else ""
        yield start + look.paint("dim", look.fit(rest, room))
    if event.cassette is not None:
        yield look.row(cassette_text(event.cassette), "dim")


def _run_summary(account: ClosingLines, event: RunFinished, look: Look) -> Iterator[str]:
    yield ""
    if account.annotations:
        from aish.output.result import annotation_rows

        for row, level in annotation_rows(account.annotations):
            yield from _note(look, _LEVELS[level], row)
    if event.exit.code:
        first, *rest = exit_lines(event.exit)
        yield from _own_lines(look, first, _style_of(event))
        yield from (for_line(f"{_INDENT}{line}") for line in rest)
        yield from map(for_line, account.questions.lines_at_end(event))
        if event.exit.hint and event.exit.hint != account.hint:
            yield from hint_rows(for_line(event.exit.hint), look.width)
    for denial in event.denials:
        for hint in account.approving.of(denial):
            yield from hint_rows(for_line(hint), look.width)
    for line in account.tally.served_lines(event):
        yield from _own_lines(look, line)
    status, *parts = account.tally.parts(event)
    # A line of its own: together with the folder it would be too long.
    used = parts.pop() if event.cassette is not None else None
    status_parts = [status, *map(for_line, parts)]
    first, *others = parts_in_rows(status_parts, look.glyphs.dot, look.width)
    yield look.paint(_style_of(event), status) + first.removeprefix(status)
    yield from others
    if used is not None:
        yield from _own_lines(look, used)


def _style_of(event: RunFinished) -> Style:
    if event.status == "paused":
        return "yellow"
    return "green" if event.exit.code == 0 else "red"


def _session_summary(account: ClosingLines, event: RunFinished, look: Look) -> Iterator[str]:
    if event.exit.code:
        message = event.exit.reason or event.exit.name
        yield from _own_lines(look, f"{look.glyphs.no} {message}", "red")
    parts = [counted(account.tally.answers, "answer"), tokens_text(event.usage, event.cost_usd)]
    parts += [dollars(event.cost_usd) if event.cost_usd else "", event.folder or ""]
    for row in parts_in_rows(list(map(for_line, parts)), look.glyphs.dot, look.width):
        yield look.paint("dim", row)


RUN = Presentation("the console", _run_summary, names_steps=True)
SESSION = Presentation("the session", _session_summary, frames_commands=True)


def call_line(look: Look, tool: str, arguments: JsonValue) -> str:
    """Name and arguments of a call on one dim line, with the count of what was cut."""
    line = f"{_INDENT}{look.glyphs.call} {tool} {json_text(arguments, spaced=True)}"
    text = for_line(line[:_READ_AT_MOST])
    if len(line) > _READ_AT_MOST or cells(text) > look.width:
        beginning = look.fit(text, look.width - len(f" +{len(line):,}"))
        text = f"{beginning} +{len(line) - len(beginning) + len(look.glyphs.cut):,}"
    return look.paint("dim", text)


def _is_command(event: ToolDecided | ToolStarted | ToolFinished) -> bool:
    return event.tool == "shell__run"


def _command_lines(look: Look, event: ToolDecided) -> Iterator[str]:
    """The command as given, folded and not cut; `$` precedes one that is run."""
    arguments = event.arguments if isinstance(event.arguments, Mapping) else {}
    words, command = arguments.get("argv"), str(arguments.get("command", ""))
    if isinstance(words, (list, tuple)):
        import shlex

        command = shlex.join(map(str, words))
    runs = event.verdict in {"auto", "ask-yes"}
    for number, row in enumerate(fold(for_terminal(command), look.width - 2)):
        mark = "$ " if runs and not number else _INDENT
        yield look.paint("bold" if runs else "dim", f"{mark}{row}")


def _result_lines(look: Look, finished: ToolFinished) -> Iterator[str]:
    """The result of a call, shortened, and its status.

    ▸ repo__file_read {"path": "README.md"}
    │ # aish
    │ … 40 more lines
    ╰ 0.01 s
    """
    if finished.kind == "denied":
        text = finished.content.removeprefix("[aish] ")
        yield look.row(f"{_INDENT}{look.glyphs.no} {text}", "yellow")
        return
    lines = finished.content.strip("\n").split("\n")
    shown_lines = lines if len(lines) <= SHOWN_LINES + 1 else lines[:SHOWN_LINES]
    bar = f"{_INDENT}{look.glyphs.bar} "
    for line in shown_lines:
        spread = line.removesuffix("\r")[:_READ_AT_MOST].replace("\t", _TAB)
        yield look.paint("dim", bar) + look.fit(for_line(spread), look.width - len(bar))
    if left := len(lines) - len(shown_lines):
        yield look.paint("dim", f"{bar}{look.glyphs.cut} {counted(left, 'more line')}")
    took = seconds_text(finished.seconds)
    if finished.full:
        took += f" {look.glyphs.dot} whole result: {for_line(finished.full)}"
    failed = call_status(finished) != "ok"
    label = f"{call_status(finished)} {look.glyphs.dot} {took}" if failed else took
    yield _end_rule(look, label, failed=failed)


def _end_rule(look: Look, label: str, *, failed: bool) -> str:
    """The last line of a frame; a rule that names a failure."""
    rule = look.glyphs.rule
    if not failed:
        return look.row(f"{_INDENT}{look.glyphs.end} {label}", "dim")
    head = look.fit(f"{_INDENT}{look.glyphs.end}{rule} {label} ", look.width)
    return look.paint("red", head + rule * max(0, min(look.width, _LONGEST_RULE) - len(head)))


def _with_styles(text: str) -> str:
    """The text sanitized for a terminal, except for our own styles."""
    if "\x1b" not in text:
        return for_terminal(text)
    return "".join(
        part if index % 2 else for_terminal(part) for index, part in enumerate(_OURS.split(text))
    )


@slotted
class OutputLock:
    """Selects the answer that is shown as it arrives while several steps run at once.

    The answer of a single step is shown piece by piece. With several steps, an answer is shown
    whole when it is complete, under the name of its step; one that was begun before ends there.
    """

    speaking: Place | None = None
    """The turn whose text is drawn last on the screen, and may continue."""
    shown_now: int = 0
    """How much of its answer it has said without an interruption."""
    _steps: set[str] = field(default_factory=set)
    _shown: dict[Place, int] = field(default_factory=dict)
    _late: set[Place] = field(default_factory=set)

    def enter(self, step: str | None) -> None:
        self._steps.add(step or "")

    def leave(self, step: str | None) -> None:
        self._steps.discard(step or "")

    @property
    def is_crowded(self) -> bool:
        """True if more than one step may have output to show."""
        return len(self._steps) > 1

    def may_speak(self, place: Place, *, crowded: bool) -> bool:
        """Return true if a turn may begin to show its answer; if not, it is shown when complete."""
        if place in self._late or crowded or place in self._shown:
            self._late.add(place)
            return False
        return True

    def speak(self, place: Place) -> None:
        """Draw for this turn from now on."""
        self.interrupt()
        self.speaking = place

    def interrupt(self) -> None:
        """Something else was shown: the next text is no continuation."""
        if self.speaking is not None and self.shown_now:
            self._shown[self.speaking] = self._shown.get(self.speaking, 0) + self.shown_now
        self.speaking, self.shown_now = None, 0

    def length_shown(self, place: Place) -> int:
        """Return how much of a turn's answer was shown."""
        return self._shown.get(place, 0) + (self.shown_now if place == self.speaking else 0)

    def forget(self, place: Place) -> bool:
        """Forget a turn that ended or was withdrawn; returns whether any of it was shown."""
        if place == self.speaking:
            self.interrupt()
        self._late.discard(place)
        return self._shown.pop(place, 0) > 0


@slotted
class WaitingText:
    """The text of the spinner: pending models by step, pending calls by place."""

    _models: dict[str, str] = field(default_factory=dict)
    _calls: dict[Place, str] = field(default_factory=dict)

    def model(self, place: Place, what: str) -> None:
        """A request to a step's model is pending."""
        self._models[place.step or ""] = what

    def over(self, place: Place) -> None:
        """A step's model has answered."""
        self._models.pop(place.step or "", None)

    def step_over(self, step: str | None) -> None:
        """Forget what is pending of a step."""
        self._models.pop(step or "", None)
        for place in [place for place in self._calls if place.step == step]:
            del self._calls[place]

    def call(self, place: Place, tool: str) -> None:
        self._calls[place] = for_line(tool)

    def end_call(self, place: Place) -> None:
        self._calls.pop(place, None)

    def progress(self, event: ToolProgress) -> None:
        total = "" if event.total is None else f"/{event.total:g}"
        message = f" {event.message}" if event.message else ""
        if event.place in self._calls:
            self._calls[event.place] = for_line(f"{event.tool} {event.progress:g}{total}{message}")

    def text(self) -> str:
        """The whole text; with step names if there are several."""
        by_step: dict[str, list[str]] = {step: [what] for step, what in self._models.items()}
        for place, what in self._calls.items():
            by_step.setdefault(place.step or "", []).append(what)
        if len(by_step) == 1:
            return ", ".join(next(iter(by_step.values())))
        return ", ".join(f"{for_line(step)}: {' + '.join(w)}" for step, w in by_step.items())


class ItemDisplay:
    """Counts what happens in items, and shows it on the screen: a display, then a summary."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._look = screen.look
        self._batches = Batches()
        self._log: ItemLog | None = None if screen.look.animate else ItemLog()

    @property
    def are_shown(self) -> bool:
        """True if any step has items that are running."""
        return bool(self._batches.running)

    def step_started(self, event: StepStarted) -> None:
        """A step begins, with items or without."""
        self._batches.step_started(event, self._screen.now())

    def take(self, event: Event) -> None:
        was_idle, now = not self._batches.running, self._screen.now()
        batch = self._batches.take(event, now)
        if batch is None:
            return
        if was_idle:
            self._screen.pin(self._draw_panel)
        if not isinstance(event, ItemStarted | ItemFinished):
            self._notice(event)
        elif self._log is not None:
            for line in self._log.lines(*batch, now):
                self._screen.line(for_line(line))

    def step_finished(self, event: StepFinished) -> None:
        """The step has ended: its summary remains."""
        batch = self._batches.ended(event.place.step)
        if batch is None:
            return
        if not self._batches.running:
            self._screen.pin(None)
        self._screen.line()
        self._screen.line(self._look.row(f"{self._look.glyphs.step} {batch.step}", "bold"))
        parts = summary_parts(batch, event.seconds)
        for row in parts_in_rows(parts, self._look.glyphs.dot, self._look.width, "  "):
            self._screen.line(self._look.row(row))
        if self._log is None:
            self._failures(batch)
        for code, count in self._batches.untold(batch):
            if code != "throttled":
                self._screen.line(self._look.row(f"  {count:,} more of `{code}`", "dim"))

    def _failures(self, batch: Batch) -> None:
        for message, cause in batch.causes.items():
            others = and_more(cause.count - 1)
            mark = f"  {self._look.glyphs.no} {cause.first}{others}: {message}"
            self._screen.line(self._look.row(mark, "red"))
        more = batch.failed - sum(cause.count for cause in batch.causes.values())
        if more > 0:
            self._screen.line(f"  {self._look.glyphs.cut} and {more:,} more failed")

    def _draw_panel(self, width: int, height: int) -> Sequence[str]:
        # In the drawing thread: importing rich takes as long as some requests.
        from aish.output.progress_panel import panel_lines

        batches: list[Batch] = list(self._batches.running.values())
        return panel_lines(batches, self._look, width, height, self._screen.now())

    def _notice(self, event: Event) -> None:
        if isinstance(event, Notice) and (self._log is not None or event.code != "throttled"):
            where = f"{event.place.step} {event.place.item}"
            text = f"{self._look.glyphs.warning} {where}: {event.text}"
            self._screen.line(self._look.row(text, "yellow"))
