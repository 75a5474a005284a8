"""`--format json`: the events of a run folded into one object.

What happens within the items of a step is not collected: there may be a million of them. Their
results are read from their file when the object is written; the journal has the rest.

Annotations of a run as text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import BinaryIO, cast, get_args

from aish.core.errors import AishError
from aish.core.events import (
    VERSION,
    AnnotationAdded,
    AnnotationLevel,
    Exit,
    ExpectChecked,
    Notice,
    Place,
    RunFinished,
    RunStarted,
    ServedModels,
    Stamped,
    keys_of,
    plain,
)
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import counted, shorten
from aish.journal.history import CallRecord, Ended, Finished, RunHistory, Unit
from aish.output.event_log import Sink
from aish.output.items.results import ItemsFile, public

_MOST = 50
_LONGEST = 500
LEVELS = get_args(AnnotationLevel)
"""From what matters most to what matters least."""


def annotation_rows(found: Sequence[AnnotationAdded]) -> Iterator[tuple[str, AnnotationLevel]]:
    """The first annotations as text, the most severe first."""
    ranked = sorted(dict.fromkeys(found), key=lambda annotation: LEVELS.index(annotation.level))
    for annotation in ranked[:_MOST]:
        yield annotation_text(annotation), annotation.level
    if len(ranked) > _MOST:
        yield f"and {counted(len(ranked) - _MOST, 'more annotation')}", "notice"


def annotation_text(event: AnnotationAdded) -> str:
    """`src/total.py:2: error: the first row is left out`, in the form that compilers use."""
    message = shorten(event.message, _LONGEST)
    place = place_text(event)
    return f"{place}: {event.level}: {message}" if place else f"{event.level}: {message}"


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


def refusal_row(run: str, pipeline: str, error: AishError, calls: Sequence[JsonObject]) -> Row:
    """The object of a run that is not resumed, because these calls might be made again."""
    code, (reason, *_) = error.exit_code, error.message.splitlines()
    end = Exit(int(code), code.name.lower(), retryable=False, reason=reason, hint=error.hint)
    nulls = ("outputs", "cost_usd", "folder", "cassette", "call_counts", "served")
    nothing: Row = dict.fromkeys(nulls)
    nothing |= dict.fromkeys(("expectations", "annotations", "notices"), ())
    head: Row = {"v": VERSION, "run": run, "pipeline": pipeline, "status": "failed"}
    of_nothing: Row = {"steps": {}, "denials": {}, "usage": plain(Usage()), "seconds": 0.0}
    return {**head, "exit": plain(end), **nothing, **of_nothing, "calls": tuple(calls)}


class ResultFold:
    """Collects the result object; `run` is the run's id.

    `repeated` are the calls that it may make again.
    """

    def __init__(self, run: str, repeated: Sequence[JsonValue] = ()) -> None:
        self._head: Row = {"v": VERSION, "run": run}
        self._repeated: Row = {"calls": tuple(repeated)} if repeated else {}
        self._history = RunHistory()
        self._steps: dict[str, Row] = {}
        self._denials: Counter[str] = Counter()
        self._notices: list[Row] = []
        self._expectations: list[Row] = []
        self._left_out = 0

    def take(self, stamped: Stamped) -> None:
        match stamped.event:
            case RunStarted() as started:
                self._head["pipeline"] = started.pipeline
            case Notice(place, level, code, text):
                where = _where(place)
                self._tell(self._notices, {"level": level, "code": code, "text": text, **where})
            case ExpectChecked(place, kind, ok, message) as event:
                checked: Row = {"step": place.step, "kind": kind, "ok": ok, "message": message}
                more = {
                    "evidence": plain(event.evidence),
                    "file_digests": plain(event.file_digests),
                }
                checked |= {key: value for key, value in more.items() if value is not None}
                self._tell(self._expectations, checked | _where(place))
            case _:
                pass
        self._add(self._history.take(stamped))

    def _add(self, ended: Iterable[Ended]) -> None:
        for entry in ended:
            if isinstance(entry, Unit) and entry.item is None and entry.finished is not None:
                self._steps[entry.step] = _step_row(entry, entry.finished)
            elif isinstance(entry, CallRecord) and entry.is_refused:
                self._denials[entry.tool] += 1

    def result(self, end: RunFinished) -> Row:
        return {**self._row(end.status, end.folder, end.denials, end), **self._repeated}

    def so_far(self, status: str, folder: str) -> Row:
        """The object of a run without an end: values that it does not have are null."""
        self._add(self._history.rest())
        return self._row(status, folder, self._denials, None)

    def _row(
        self, status: str, folder: str | None, denials: Mapping[str, int], end: RunFinished | None
    ) -> Row:
        return {
            **self._head,
            "status": status,
            "exit": None if end is None else plain(end.exit),
            "outputs": None if end is None else end.outputs,
            "steps": self._steps,
            "expectations": self._expectations,
            "annotations": self._annotations_json(),
            "usage": None if end is None else plain(end.usage),
            "cost_usd": None if end is None else end.cost_usd,
            "seconds": None if end is None else end.seconds,
            "call_counts": None if end is None else plain(end.calls),
            "served": None if end is None else served_json(end.served),
            "denials": denials,
            "notices": self._notices_json(),
            "folder": folder,
            "cassette": None if end is None else plain(end.cassette),
            **self._questions_row(),
            **self._flows_row(end),
        }

    @staticmethod
    def _flows_row(end: RunFinished | None) -> Row:
        """The sources of the outputs, if the run follows them."""
        if end is None or end.output_sources is None:
            return {}
        return {"output_sources": {name: plain(one) for name, one in end.output_sources.items()}}

    def _questions_row(self) -> Row:
        """The questions without an answer, of items too; nothing if there are none."""
        rows: list[JsonValue] = [
            {
                "id": question.id,
                "tool": question.asked.tool,
                "arguments": question.asked.arguments,
                "reason": question.asked.reason,
                "expires": question.asked.expires,
                **_where(question.asked.place),
            }
            for question in self._history.pending
        ]
        return {"pending": rows} if rows else {}

    def _tell(self, rows: list[Row], what: Row) -> None:
        """Add to a list that must not grow with the items."""
        if len(rows) < MOST:
            rows.append(what)
        else:
            self._left_out += 1

    def _notices_json(self) -> JsonValue:
        left_out = self._left_out + self._history.annotations.left_out
        if not left_out:
            return cast("JsonValue", self._notices)
        text = f"{left_out} more notices, expectations and annotations are in the journal"
        more: Row = {"level": "warning", "code": "left_out", "text": text}
        return cast("JsonValue", [*self._notices, more])

    def _annotations_json(self) -> JsonValue:
        return [
            {name: plain(getattr(one, name)) for name, _ in _OF_ANNOTATION} | _where(one.place)
            for one in self._history.annotations.found
        ]


def served_json(served: Iterable[ServedModels]) -> JsonObject:
    """The names of the models that have answered, by alias."""
    return {
        one.alias: {"models": list(one.models), "fingerprints": list(one.fingerprints)}
        for one in served
    }


def _step_row(unit: Unit, finished: Finished) -> Row:
    row: Row = {
        "status": finished.status,
        "text": finished.text,
        "output": finished.output,
        "tool_calls": [_call_row(call) for call in unit.calls],
        "usage": plain(finished.usage),
        "cost_usd": finished.cost_usd,
    }
    return row if finished.error is None else row | {"error": plain(finished.error)}


def _call_row(call: CallRecord) -> Row:
    decided, finished, question = call.decided, call.finished, call.question
    row: Row = {
        "tool": call.tool,
        "arguments": call.arguments,
        "verdict": None if decided is None else decided.verdict,
        "kind": None if finished is None else finished.kind,
        "exit_code": None if finished is None else finished.exit_code,
        "content": None if finished is None else finished.content,
        "seconds": None if finished is None else finished.seconds,
    }
    if question is None:
        return row
    answered = question.answered
    return row | {
        "approval": {
            "id": question.id,
            "answer": None if answered is None else answered.answer,
            "by": None if answered is None else answered.by,
            "way": None if answered is None else answered.way,
            "note": None if answered is None else answered.note,
        }
    }


def result_pieces(result: Row, items: ItemsFile | None) -> Iterator[str]:
    """The object as JSON with a line end; the items of its steps are inserted as they are read."""
    steps = cast("dict[str, Row]", result["steps"])
    among = [step for step in (items.steps() if items else ()) if step in steps]
    if items is None or not among:
        yield f"{json_text(result, indent=2)}\n"
        return
    # Each list is replaced by an unpredictable placeholder, which the rows then replace.
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
    where = (("step", place.step), ("item", place.item))
    return {name: value for name, value in where if value is not None}


class ResultWriter(Sink):
    """Writes the object to a binary stream when the run has ended.

    `items` has the results of items, if a step has any; it must precede this sink.
    """

    name = "the result"

    def __init__(
        self,
        out: BinaryIO,
        run: str,
        items: ItemsFile | None = None,
        repeated: Sequence[JsonValue] = (),
    ) -> None:
        self._out = out
        self._fold = ResultFold(run, repeated)
        self._items = items

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in; after the last one, write."""
        self._fold.take(stamped)
        if isinstance(stamped.event, RunFinished):
            for piece in result_pieces(self._fold.result(stamped.event), self._items):
                self._out.write(piece.encode())
            self._out.flush()
