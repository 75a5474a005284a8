"""The events of a run folded into spans: run, step, item, `chat`, `execute_tool` (B11).

From the stream or from a journal alike, with the same ids. Content (answers, arguments, results,
messages, item keys) is in them only where it was asked for.
"""

from collections.abc import Iterator
from dataclasses import field

from aish.core.events import (
    ExpectChecked,
    Fallback,
    ItemFinished,
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
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import slotted
from aish.reports.otel import conventions
from aish.reports.otel.facts import (
    Facts,
    Remark,
    answer_facts,
    chat_facts,
    decided_facts,
    end_facts,
    exit_facts,
    remark,
    result_facts,
    run_facts,
    tool_facts,
    why,
)
from aish.reports.otel.span import (
    Attributes,
    Span,
    SpanEvent,
    SpanKind,
    span_id,
    text,
    told,
    trace_id,
)

_GONE = "it has no end"
_CUT_OFF: Attributes = {conventions.ERROR_TYPE: "interrupted"}
_WELL = frozenset({"ok", "skipped"})


@slotted
class _Open:
    """A span that goes on."""

    id: int
    parent: int | None
    name: str
    kind: SpanKind
    start: float
    facts: Facts
    events: list[SpanEvent] = field(default_factory=list)


class Spans:
    """Folds events; holds the spans that are open, and no more."""

    def __init__(self, run: str, *, content: bool = False) -> None:
        self._run = run
        self._content = content
        self._trace = trace_id(run)
        self._started: RunStarted | None = None
        self._root: _Open | None = None
        self._units: dict[Place, _Open] = {}
        self._inner: dict[Place, _Open] = {}
        self._last = 0.0

    def take(self, stamped: Stamped) -> Iterator[Span]:
        """The spans that end with this event."""
        event = stamped.event
        if isinstance(event, RunStarted):
            # Whoever wrote so far was killed in the middle of these.
            yield from self.end()
        self._last = stamped.time
        match event:
            case RunStarted():
                self._run_started(stamped, event)
            case RunFinished():
                yield from self._run_finished(event)
            case StepStarted():
                name = f"{conventions.STEP} {event.place.step}"
                known = told({conventions.STEP_KIND: event.kind, conventions.ITEMS: event.count})
                self._unit(stamped, event.place, name, known)
            case ItemStarted():
                self._item_started(stamped, event)
            case StepFinished() | ItemFinished():
                yield from self._unit_finished(stamped, event)
            case TurnStarted() | TurnFinished():
                yield from self._turn(stamped, event)
            case ToolDecided() | ToolStarted() | ToolFinished():
                yield from self._tool(stamped, event)
            case Retry() | Fallback() | Notice() | ExpectChecked():
                self._remark(event)
            case _:
                pass

    def end(self) -> Iterator[Span]:
        """What is still open, when no more will come; the innermost first."""
        for held in (self._inner, self._units):
            while held:
                _, one = held.popitem()
                yield self._closed(one, self._last, _CUT_OFF, _GONE)
        if self._root is not None:
            root, self._root = self._root, None
            yield self._closed(root, self._last, _CUT_OFF, _GONE)

    def _run_started(self, stamped: Stamped, event: RunStarted) -> None:
        self._started = event
        name = f"{conventions.WORKFLOW} {event.pipeline}"
        known = run_facts(self._run, event)
        self._root = self._new(stamped, None, name, known)

    def _run_finished(self, event: RunFinished) -> Iterator[Span]:
        root, self._root = self._root, None
        yield from self.end()
        if root is not None:
            reason = event.exit.reason if self._content else event.exit.name
            error = reason if event.exit.code else None
            yield self._closed(root, self._last, exit_facts(event), error)

    def _item_started(self, stamped: Stamped, event: ItemStarted) -> None:
        known = {
            conventions.ITEM_INDEX: event.index,
            conventions.ITEM_KEY: self._if_content(event.key),
        }
        name = f"{conventions.ITEM} {event.place.step}"
        self._unit(stamped, event.place, name, told(known))

    def _unit(self, stamped: Stamped, place: Place, name: str, known: Facts) -> _Open:
        known = {**told({conventions.STEP_ID: place.step}), **known}
        opened = self._new(stamped, self._around(place), name, known)
        self._units[place] = opened
        return opened

    def _unit_finished(
        self, stamped: Stamped, event: StepFinished | ItemFinished
    ) -> Iterator[Span]:
        place = event.place
        unit = self._units.get(place)
        if unit is None:
            # A step that was skipped never began.
            unit = self._unit(stamped, place, f"{conventions.STEP} {place.step}", {})
        for inner in [one for one in self._inner if _within(one, place)]:
            yield self._closed(self._inner.pop(inner), self._last, _CUT_OFF, _GONE)
        del self._units[place]
        bad = event.status not in _WELL
        error = why(event.error, event.status, content=self._content) if bad else None
        yield self._closed(unit, self._last, end_facts(event), error)

    def _turn(self, stamped: Stamped, event: TurnStarted | TurnFinished) -> Iterator[Span]:
        place = event.place
        turn = self._inner.get(place)
        if turn is None or isinstance(event, TurnStarted):
            known = {conventions.TURN: place.turn}
            if isinstance(event, TurnStarted):
                known[conventions.MESSAGES] = event.messages
            turn = self._new(stamped, self._unit_of(place), conventions.CHAT, told(known), "client")
            self._inner[place] = turn
        if isinstance(event, TurnFinished):
            del self._inner[place]
            # Another model may have answered than was asked first.
            turn.name = self._about_model(turn, event)
            turn.start = min(turn.start, self._last)
            yield self._closed(turn, self._last, answer_facts(event, content=self._content))
        else:
            turn.name = self._about_model(turn, event)

    def _about_model(self, turn: _Open, event: TurnStarted | TurnFinished) -> str:
        models = self._started.models if self._started is not None else ()
        # Those of a sub-pipeline are told of as `step/alias`.
        within, cut, _ = (event.place.step or "").rpartition("/")
        known = {one.alias: one for one in models}
        model = known.get(within + cut + event.model, known.get(event.model))
        turn.facts |= chat_facts(model, event.model)
        return f"{conventions.CHAT} {model.model if model is not None else event.model}"

    def _tool(
        self, stamped: Stamped, event: ToolDecided | ToolStarted | ToolFinished
    ) -> Iterator[Span]:
        place = event.place
        call = self._inner.get(place)
        if call is None:
            name = f"{conventions.EXECUTE_TOOL} {event.tool}"
            known = tool_facts(event.tool, place.call)
            call = self._new(stamped, self._unit_of(place), name, known)
            self._inner[place] = call
        if isinstance(event, ToolDecided):
            servers = self._started.servers if self._started is not None else ()
            server = next((one for one in servers if one.alias == event.server), None)
            call.facts |= decided_facts(event, server, content=self._content)
            call.name = f"{conventions.EXECUTE_TOOL} {event.name}"
            call.kind = "client" if conventions.MCP_METHOD in call.facts else "internal"
        elif isinstance(event, ToolStarted):
            # Before, a person may have been asked.
            call.start = self._last
        else:
            del self._inner[place]
            error = None if event.kind == "ok" else self._if_content(event.content) or event.kind
            known = result_facts(event, content=self._content)
            yield self._closed(call, self._last, known, error)

    def _remark(self, event: Remark) -> None:
        name, known = remark(event, content=self._content)
        place = event.place
        about = self._inner.get(place) or self._units.get(Place(place.step, place.item))
        about = about or self._root
        if about is not None:
            about.events.append(SpanEvent(name, self._last, known))

    def _new(
        self,
        stamped: Stamped,
        parent: _Open | None,
        name: str,
        known: Facts,
        kind: SpanKind = "internal",
    ) -> _Open:
        id = span_id(self._run, stamped.seq)
        return _Open(id, parent.id if parent else None, name, kind, stamped.time, dict(known))

    def _around(self, place: Place) -> _Open | None:
        """What a step or an item is part of: its step, the step around it, the run."""
        step = place.step or ""
        outer, slash, _ = step.rpartition("/")
        candidates = [Place(step)] if place.item is not None else []
        if slash:
            candidates += [Place(outer, place.item), Place(outer)]
        found = (self._units.get(one) for one in candidates)
        return next((one for one in found if one is not None), self._root)

    def _unit_of(self, place: Place) -> _Open | None:
        own = Place(place.step, place.item)
        return self._units.get(own) or self._around(own)

    def _if_content(self, value: str) -> str | None:
        return value if self._content else None

    def _closed(self, one: _Open, end: float, known: Attributes, error: str | None = None) -> Span:
        return Span(
            trace=self._trace,
            id=one.id,
            parent=one.parent,
            name=text(one.name),
            kind=one.kind,
            start=one.start,
            end=max(end, one.start),
            attributes={**one.facts, **known},
            events=tuple(one.events),
            error=None if error is None else text(error),
        )


def _within(inner: Place, unit: Place) -> bool:
    return (inner.step, inner.item) == (unit.step, unit.item)
