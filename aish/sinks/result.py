"""`--format json`: the events of a run folded into one object (design 11)."""

from typing import BinaryIO, cast

from aish.sinks.json_text import json_text
from aish.sinks.lines import VERSION, plain
from aish.vocab.event_parts import Place
from aish.vocab.events import (
    ExpectChecked,
    Notice,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    ToolDecided,
    ToolFinished,
    TurnFinished,
)
from aish.vocab.json import JsonValue

Row = dict[str, JsonValue]


class Fold:
    """Gathers the result object; `run` is the run's id."""

    def __init__(self, run: str) -> None:
        self._head: Row = {"v": VERSION, "run": run}
        self._steps: dict[str, Row] = {}
        self._calls: dict[str, list[Row]] = {}
        self._open: dict[Place, Row] = {}
        self._asked: dict[tuple[str | None, str | None, str], str] = {}
        self._denials: list[str] = []
        self._notices: list[Row] = []
        self._expectations: list[Row] = []

    def take(self, stamped: Stamped) -> None:  # ruff: ignore[complex-structure] - a union
        """Fold one event in."""
        match stamped.event:
            case RunStarted() as started:
                self._head["pipeline"] = started.pipeline
            case StepStarted(place=place) | StepFinished(place=place) if place.step is None:
                pass
            case StepStarted(place=place):
                self._calls.setdefault(str(place.step), [])
            case StepFinished() as finished:
                self._finish_step(str(finished.place.step), finished)
            case TurnFinished() as turn:
                for call in turn.calls:
                    key = (turn.place.step, turn.place.item, call.id)
                    self._asked[key] = call.arguments
            case ToolDecided() as decided:
                row = self._row(decided.place, decided.tool, decided.arguments)
                row["verdict"] = decided.verdict
                if decided.verdict in {"deny", "ask-no"}:
                    self._denials.append(decided.tool)
            case ToolFinished() as finished:
                self._finish_call(finished)
            case Notice(place, level, code, text):
                where: Row = {} if place.step is None else {"step": place.step}
                self._notices.append({"level": level, "code": code, "text": text, **where})
            case ExpectChecked(place, kind, ok, message):
                checked: Row = {"step": place.step, "kind": kind, "ok": ok, "message": message}
                self._expectations.append(checked)
            case _:
                pass

    def result(self, finished: RunFinished) -> Row:
        """The object, once the run has ended."""
        return {
            **self._head,
            "status": finished.status,
            "exit": plain(finished.exit),
            "outputs": finished.outputs,
            "steps": self._steps,
            "expectations": self._expectations,
            "usage": plain(finished.usage),
            "cost_usd": finished.cost_usd,
            "seconds": finished.seconds,
            "denials": plain(finished.denials),
            "notices": self._notices,
            "folder": finished.folder,
            "cassette": plain(finished.cassette),
        }

    def so_far(self, status: str, folder: str) -> Row:
        """The object of a run that has no end: what it has no value for is null."""
        unknown = dict.fromkeys(("outputs", "usage", "cost_usd", "seconds"))
        return {
            **self._head,
            "status": status,
            "exit": None,
            **unknown,
            "steps": self._steps,
            "expectations": self._expectations,
            "denials": self._denials,
            "notices": self._notices,
            "folder": folder,
            "cassette": None,
        }

    def _finish_step(self, step: str, finished: StepFinished) -> None:
        self._steps[step] = {
            "status": finished.status,
            "text": finished.text,
            "output": finished.output,
            "tool_calls": cast("JsonValue", self._calls.pop(step, [])),
            "usage": plain(finished.usage),
            "cost_usd": finished.cost_usd,
        }
        if finished.error is not None:
            self._steps[step]["error"] = plain(finished.error)

    def _finish_call(self, finished: ToolFinished) -> None:
        place = finished.place
        row = self._open.pop(place, None)
        if row is None:
            # Refused before any rule was asked: what the model wrote is all there is.
            asked = self._asked.get((place.step, place.item, place.call or ""))
            row = self._row(place, finished.tool, asked)
            del self._open[place]
        row["kind"] = finished.kind
        row["content"] = finished.content
        row["seconds"] = finished.seconds

    def _row(self, place: Place, tool: str, arguments: JsonValue) -> Row:
        row: Row = {
            "tool": tool,
            "arguments": arguments,
            "verdict": None,
            "kind": None,
            "content": None,
            "seconds": None,
        }
        self._open[place] = row
        self._calls.setdefault(str(place.step), []).append(row)
        return row


class Result:
    """Writes the object to a binary stream when the run has ended."""

    name = "the result"
    deltas = False

    def __init__(self, out: BinaryIO, run: str) -> None:
        self._out = out
        self._fold = Fold(run)

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in; the last one writes."""
        self._fold.take(stamped)
        if isinstance(stamped.event, RunFinished):
            text = json_text(self._fold.result(stamped.event), indent=2)
            self._out.write(f"{text}\n".encode())
            self._out.flush()

    def close(self) -> None:
        """Nothing is held back."""
