"""For CI logs: one line on stderr for each relevant event, no escape sequences.

Text of models, tools and items is passed through `for_ci_log`, so that the runner that reads the
log takes none of it for a command. What happens within items is only counted: there may be a
million.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO, assert_never

from aish import __version__
from aish.core.events import (
    AnnotationAdded,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    BatchCollected,
    BatchPlanned,
    BatchSubmitted,
    ControlCalled,
    ControlEvent,
    ExpectChecked,
    Fallback,
    FilesChanged,
    ItemFinished,
    ItemMoved,
    ItemStarted,
    JournalOnly,
    Notice,
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
    TurnPurpose,
    TurnStarted,
    ValueSet,
)
from aish.core.json import json_text, parse_structured
from aish.core.phrases import counted, shorten
from aish.core.text import for_ci_log, for_line
from aish.output.event_log import Sink
from aish.output.progress import Batches, ItemLog
from aish.output.status import (
    OF_ITEMS,
    DenialHints,
    OpenQuestions,
    Tally,
    call_status,
    cassette_text,
    changes_text,
    control_text,
    exit_lines,
    lines_of,
    retry_text,
    seconds_text,
    tokens_text,
)

_LONGEST = 200
_MOST_LINES = 60
_PURPOSES: Mapping[TurnPurpose, str] = {
    "answer": "",
    "summary": " for a summary",
    "sampling": " for a server",
    "judge": " for a verdict",
}


class Plain(Sink):
    """Writes lines to a text stream."""

    name = "the log"

    def __init__(self, out: TextIO, began: float | None = None) -> None:
        """Times are relative to `began`, in seconds since the epoch, else to the first event."""
        self._out = out
        self._tally = Tally()
        self._began = began
        self._is_titled = False
        self._hint: str | None = None
        self._approving = DenialHints()
        self._batches = Batches()
        self._items = ItemLog()
        self._annotations: list[AnnotationAdded] = []
        self._questions = OpenQuestions()

    def __call__(self, stamped: Stamped) -> None:
        self._tally.take(stamped)
        self._approving.take(stamped.event)
        lines = self._in_item if stamped.event.place.item is not None else self._lines
        self._write(lines(stamped), stamped.time)

    def opening(self, pipeline: str, doing: Sequence[str], now: float) -> None:
        """Write the first line, and what is done, before the run has started."""
        self._write((*self._title(__version__, pipeline), *doing), now)

    def _write(self, texts: Iterable[str], now: float) -> None:
        if self._began is None:
            self._began = now
        lines = [for_ci_log(for_line(line)) for line in texts]
        if lines:
            elapsed = f"[{now - self._began:7.2f}s] "
            self._out.write("".join(f"{elapsed}{line}\n" for line in lines))
            self._out.flush()

    def _lines(self, stamped: Stamped) -> Iterator[str]:  # ruff: ignore[complex-structure, too-many-branches] - a union
        event = stamped.event
        if isinstance(event, JournalOnly):
            return
        where = [part for part in (event.place.step, event.place.item) if part is not None]
        at = f"{' '.join(where)}: " if where else ""
        match event:
            case RunStarted():
                yield from self._title(event.aish, event.pipeline)
                yield from _run_started(event)
            case StepStarted():
                self._batches.step_started(event, stamped.time)
                yield f"{at}started ({event.kind}{', no items' if event.count == 0 else ''})"
            case StepFinished():
                # What a paused step waits for is told at the end.
                if event.error and event.error.code not in OF_ITEMS | {"paused"}:
                    self._hint = event.error.hint
                yield from self._batch_finished(event)
                yield from _step_finished(event, at)
            case TurnStarted():
                asked = f"{event.model}{_PURPOSES[event.purpose]}"
                yield f"{at}asking {asked}, {counted(event.messages, 'message')}"
            case TurnProgress():
                came = "1 token" if event.tokens == 1 else f"{event.tokens:,} tokens"
                since = seconds_text(event.seconds)
                yield f"{at}{event.model} is still answering after {since}, {came} so far"
            case TurnFinished():
                yield _turn_finished(event, at)
            case ToolDecided():
                called = shorten(
                    f"{event.tool} {json_text(event.arguments, spaced=True)}", _LONGEST
                )
                yield f"{at}tool {called}: {event.verdict} ({event.rule})"
            case ApprovalAsked():
                yield f"{at}{self._questions.add(event)}"
            case ApprovalAnswered():
                yield f"{at}{self._questions.remove(event)}"
            case ControlCalled() | ValueSet() | ControlEvent() | AskReceived() | AskEnded():
                if text := control_text(event):
                    yield f"{at}{text}"
            case ToolFinished():
                yield _tool_finished(event, at)
            case TextWithdrawn():
                yield f"{at}the answer so far is withdrawn"
            case Retry():
                yield f"{at}{retry_text(event, shorten(event.reason, _LONGEST))}"
            case Fallback():
                reason = shorten(event.reason, _LONGEST)
                yield f"{at}fallback: {event.source} to {event.target}: {reason}"
            case Notice():
                first, *rest = lines_of(event.text, event.code)
                yield f"{at}{event.level}: {first} ({event.code})"
                yield from rest
            case ExpectChecked():
                first, *rest = event.message.split("\n")
                yield f"{at}{'met' if event.ok else 'not met'}: {event.kind}: {first}"
                yield from (f"{at}{line}" for line in (() if event.ok else rest))
            case AnnotationAdded():
                self._annotations.append(event)
            case FilesChanged():
                yield changes_text(event)
            case RunFinished():
                yield from self._run_finished(event)
            case TextDelta() | ReasoningDelta() | ToolStarted() | ToolProgress() | ToolOutput():
                pass
            case ItemStarted() | ItemFinished() | ItemMoved():
                pass
            case BatchPlanned() | BatchSubmitted() | BatchCollected():  # a notice tells of it
                pass
            case SessionOpened() | SessionClosed():  # of a server, which has no such output
                pass
            case _:
                assert_never(event)

    def _title(self, aish: str, pipeline: str) -> Iterator[str]:
        if not self._is_titled:
            self._is_titled = True
            yield f"aish {aish}: {pipeline}"

    def _in_item(self, stamped: Stamped) -> Iterator[str]:
        batch = self._batches.take(stamped.event, stamped.time)
        if batch is not None and isinstance(stamped.event, ItemStarted | ItemFinished):
            yield from self._items.lines(*batch, stamped.time)
        elif batch is not None:
            yield from self._lines(stamped)

    def _batch_finished(self, event: StepFinished) -> Iterator[str]:
        batch = self._batches.ended(event.place.step)
        if batch is not None:
            yield from self._items.ended(batch, event.seconds)
            for code, count in self._batches.untold(batch):
                yield f"{batch.step}: {count:,} more of `{code}`"

    def _run_finished(self, event: RunFinished) -> Iterator[str]:
        for denial, count in event.denials.items():
            yield f"denied: {denial}" + (f" ({count:,} times)" if count > 1 else "")
            yield from (f"hint: {hint}" for hint in self._approving.of(denial))
        if self._annotations:
            from aish.output.result import annotation_rows

            yield from (row for row, _ in annotation_rows(self._annotations))
        if event.exit.code:
            yield from exit_lines(event.exit)
            yield from self._questions.lines_at_end(event)
            if event.exit.hint and event.exit.hint != self._hint:
                yield f"hint: {event.exit.hint}"
        yield from self._tally.served_lines(event)
        yield ", ".join(self._tally.parts(event))


def _run_started(event: RunStarted) -> Iterator[str]:
    for model in event.models:
        yield f"model {model.alias}: {model.model} at {model.origin}"
    for server in event.servers:
        detail = counted(server.tools, "tool") if server.state == "ready" else server.error
        more = f", {shorten(detail, _LONGEST)}" if detail else ""
        yield f"server {server.alias} ({server.transport}): {server.state}{more}"
    if event.cassette is not None:
        yield cassette_text(event.cassette)


def _step_finished(event: StepFinished, at: str) -> Iterator[str]:
    if event.status == "skipped":
        yield f"{at}skipped" + (f": {event.error.message}" if event.error else "")
        return
    if event.status == "paused":
        why = f": {event.error.message}" if event.error else ""
        yield f"{at}paused, {seconds_text(event.seconds)}{why}"
        return
    yield f"{at}{event.status}, {seconds_text(event.seconds)}"
    if event.error is not None:
        yield f"{at}error: {event.error.message} ({event.error.code})"
        if event.error.hint:
            yield f"{at}hint: {event.error.hint}"
    if event.status == "failed":
        yield from _answer(event, at)


def _answer(event: StepFinished, at: str) -> Iterator[str]:
    """The answer of a failed step, whose turns were only summarized."""
    answer = event.output if event.text else None
    if event.text and (answer is None or isinstance(answer, str)):
        answer = parse_structured(event.text)
    if not (answer is None or isinstance(answer, str)):
        from aish.output.formats.text import yaml_text

        answer = yaml_text(answer)
    lines = (answer or "").strip("\n").splitlines()
    if not lines:
        return
    yield f"{at}answer:"
    yield from (f"{at}  {shorten(line, _LONGEST)}" for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield f"{at}  … {counted(len(lines) - _MOST_LINES, 'more line')}"


def _turn_finished(event: TurnFinished, at: str) -> str:
    parts = [event.finish, tokens_text(event.usage), seconds_text(event.seconds)]
    text = f": {shorten(event.text.strip(), _LONGEST)}" if event.text.strip() else ""
    said = "began an answer" if event.purpose == "paused" else "answered"
    return f"{at}{event.model} {said} ({', '.join(filter(None, parts))}){text}"


def _tool_finished(event: ToolFinished, at: str) -> str:
    size = counted(len(event.content), "character")
    text = size if event.kind == "ok" else shorten(event.content, _LONGEST)
    file_text = f", whole in {event.full}" if event.full else ""
    took = seconds_text(event.seconds)
    return f"{at}tool {event.tool}: {call_status(event)}, {took}{file_text}: {text}"
