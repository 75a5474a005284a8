"""`--format json`: the events of a run folded into one object (design 11).

What happens within the items of a step is not gathered: there may be a million of them. Their
results are read from their file when the object is written, and the journal has the rest.

Annotations of a run, as the last part of it has them, and in words (B11).
"""

from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import BinaryIO, cast, get_args

from aish.core.events import (
    VERSION,
    AnnotationAdded,
    AnnotationLevel,
    ExpectChecked,
    ItemStarted,
    Notice,
    Place,
    Retry,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    ToolDecided,
    ToolFinished,
    TurnFinished,
    keys_of,
    plain,
)
from aish.core.json import JsonValue, json_text
from aish.core.phrases import counted, shorten
from aish.output.items.results import ItemsFile, public

_MOST = 50
# As many as code scanning takes of one run.
_MOST_HELD = 25_000
_LONGEST = 500
LEVELS = get_args(AnnotationLevel)
"""From what matters most to what matters least."""


class Annotations:
    """Folds events; `found` are the annotations of a run, and `left_out` counts those over a limit.

    Each item of a batch may have some: they are held by their place, to be replaced as a whole.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._held = 0
        self._of: dict[Place, list[AnnotationAdded]] = {}

    @property
    def found(self) -> list[AnnotationAdded]:
        """The annotations of the run, and those of its sub-pipelines."""
        return [one for several in self._of.values() for one in several]

    def take(self, stamped: Stamped) -> None:
        """Fold one event in; what is made again takes the place of what was."""
        event = stamped.event
        match event:
            case AnnotationAdded():
                if self._held < _MOST_HELD:
                    self._of.setdefault(event.place, []).append(event)
                    self._held += 1
                else:
                    self.left_out += 1
            case Retry(place=place, endpoint=endpoint):
                if place.turn is None and endpoint == f"step {place.step}":
                    self._forget(place)
            case RunStarted() | StepStarted() | ItemStarted():
                self._forget(event.place)
            case _:
                pass

    def _forget(self, place: Place) -> None:
        self._held -= len(self._of.pop(place, ()))


def annotation_rows(found: Sequence[AnnotationAdded]) -> Iterator[tuple[str, AnnotationLevel]]:
    """The first annotations in words, those that matter most before others."""
    ranked = sorted(dict.fromkeys(found), key=lambda one: LEVELS.index(one.level))
    for one in ranked[:_MOST]:
        yield annotation_text(one), one.level
    if len(ranked) > _MOST:
        yield f"and {counted(len(ranked) - _MOST, 'more annotation')}", "notice"


def annotation_text(event: AnnotationAdded) -> str:
    """`src/total.py:2: error: the first row is left out`, as compilers write it."""
    shown = shorten(event.message, _LONGEST)
    place = place_text(event)
    return f"{place}: {event.level}: {shown}" if place else f"{event.level}: {shown}"


def place_text(event: AnnotationAdded) -> str:
    """The file with its lines, as far as they are known."""
    if event.path is None or event.line is None:
        return event.path or ""
    last = "" if event.end_line is None else f"-{event.end_line}"
    return f"{event.path}:{event.line}{last}"


Row = dict[str, JsonValue]

_OF_ANNOTATION = keys_of(AnnotationAdded)

MOST = 1000
"""Notices and expectations that are told; of items there may be any number."""


class Fold:
    """Gathers the result object; `run` is the run's id."""

    def __init__(self, run: str) -> None:
        self._head: Row = {"v": VERSION, "run": run}
        self._steps: dict[str, Row] = {}
        self._calls: dict[str, list[Row]] = {}
        self._open: dict[Place, Row] = {}
        self._asked: dict[tuple[str | None, str], str] = {}
        self._denials: list[str] = []
        self._notices: list[Row] = []
        self._expectations: list[Row] = []
        self._annotations = Annotations()
        self._left_out = 0

    def take(self, stamped: Stamped) -> None:  # ruff: ignore[complex-structure, too-many-branches] - a union
        """Fold one event in."""
        self._annotations.take(stamped)
        match stamped.event:
            case RunStarted() as started:
                self._head["pipeline"] = started.pipeline
            case Notice(place, level, code, text):
                where = _where(place)
                self._tell(self._notices, {"level": level, "code": code, "text": text, **where})
            case ExpectChecked(place, kind, ok, message):
                checked: Row = {"step": place.step, "kind": kind, "ok": ok, "message": message}
                self._tell(self._expectations, checked | _where(place))
            case ToolDecided(verdict="deny" | "ask-no") as decided if decided.place.item:
                self._tell(self._denials, decided.tool)
            case event if event.place.item is not None or event.place.step is None:
                pass
            case StepStarted(place=place):
                # Of a step that a resumed run begins anew, the earlier calls came to nothing.
                self._calls[str(place.step)] = []
            case StepFinished() as finished:
                self._finish_step(str(finished.place.step), finished)
            case TurnFinished() as turn:
                for call in turn.calls:
                    self._asked[turn.place.step, call.id] = call.arguments
            case ToolDecided() as decided:
                row = self._row(decided.place, decided.tool, decided.arguments)
                row["verdict"] = decided.verdict
                if decided.verdict in {"deny", "ask-no"}:
                    self._tell(self._denials, decided.tool)
            case ToolFinished() as finished:
                self._finish_call(finished)
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
            "annotations": self._told_annotations(),
            "usage": plain(finished.usage),
            "cost_usd": finished.cost_usd,
            "seconds": finished.seconds,
            "denials": plain(finished.denials),
            "notices": self._told_notices(),
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
            "annotations": self._told_annotations(),
            "denials": self._denials,
            "notices": self._told_notices(),
            "folder": folder,
            "cassette": None,
        }

    def _tell(self, told: list[Row] | list[str], what: Row | str) -> None:
        """Add to a list that is not to grow with the items."""
        if len(told) < MOST:
            cast("list[Row | str]", told).append(what)
        else:
            self._left_out += 1

    def _told_notices(self) -> JsonValue:
        left_out = self._left_out + self._annotations.left_out
        if not left_out:
            return cast("JsonValue", self._notices)
        said = f"{left_out} more notices, denials, expectations and annotations are in the journal"
        more: Row = {"level": "warning", "code": "left_out", "text": said}
        return cast("JsonValue", [*self._notices, more])

    def _told_annotations(self) -> JsonValue:
        return [
            {name: plain(getattr(one, name)) for name, _ in _OF_ANNOTATION} | _where(one.place)
            for one in self._annotations.found
        ]

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
            asked = self._asked.get((place.step, place.call or ""))
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


def result_pieces(result: Row, items: ItemsFile | None) -> Iterator[str]:
    """The object as JSON with a line end, the items of its steps among it as they are read."""
    steps = cast("dict[str, Row]", result["steps"])
    among = [step for step in (items.steps() if items else ()) if step in steps]
    if items is None or not among:
        yield f"{json_text(result, indent=2)}\n"
        return
    # In the place of each list a word that nobody can have known; rows come in its stead.
    words = {step: token_hex(16) for step in among}
    told = {
        step: row | ({"items": words[step]} if step in words else {}) for step, row in steps.items()
    }
    rest = f"{json_text(result | {'steps': told}, indent=2)}\n"
    for step in (step for step in steps if step in words):
        before, _, rest = rest.partition(f'"{words[step]}"')
        yield f"{before}["
        for number, row in enumerate(items.rows(step)):
            yield f"{',' if number else ''}\n        {json_text(public(row))}"
        yield "\n      ]"
    yield rest


def _where(place: Place) -> Row:
    """Step and item, those that there are."""
    where = (("step", place.step), ("item", place.item))
    return {name: value for name, value in where if value is not None}


class Result:
    """Writes the object to a binary stream when the run has ended.

    `items` has the results of items, where a step has any; it comes before this sink.
    """

    name = "the result"
    deltas = False

    def __init__(self, out: BinaryIO, run: str, items: ItemsFile | None = None) -> None:
        self._out = out
        self._fold = Fold(run)
        self._items = items

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in; the last one writes."""
        self._fold.take(stamped)
        if isinstance(stamped.event, RunFinished):
            for piece in result_pieces(self._fold.result(stamped.event), self._items):
                self._out.write(piece.encode())
            self._out.flush()

    def close(self) -> None:
        """Nothing is held back."""
