"""The events of a run folded into spans: run, step, item, `chat`, `execute_tool` (B11).

From the stream or from a journal alike, with the same ids. Content (answers, arguments, results,
messages, item keys) is in them only where it was asked for. Pure: a span here is a value that no
library has seen yet, and its attributes are named by the table of `conventions`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Literal
from urllib.parse import urlsplit

from aish.core.events import (
    ExpectChecked,
    Failure,
    Fallback,
    ItemFinished,
    ItemStarted,
    ModelInfo,
    Notice,
    Place,
    Retry,
    RunFinished,
    RunStarted,
    ServerInfo,
    Stamped,
    StepFinished,
    StepStarted,
    ToolDecided,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue, json_text
from aish.core.text import safe_utf8
from aish.reports.otel import conventions

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]
SpanKind = Literal["internal", "client"]

_LONGEST = 100_000


@frozen
class SpanEvent:
    """Something at one moment of a span; times are seconds since the epoch."""

    name: str
    time: float
    attributes: Attributes = field(default_factory=dict)


@frozen
class Span:
    """Something that took time. `error` is why it failed, `""` where that is not told."""

    trace: int
    id: int
    parent: int | None
    name: str
    kind: SpanKind
    start: float
    end: float
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None


def trace_id(run: str) -> int:
    """The same for the same run, live or from its journal."""
    return _number(f"aish trace {run}", 16)


def span_id(run: str, seq: int) -> int:
    """The same for the same event of the same run."""
    return _number(f"aish span {run} {seq}", 8)


def told(values: Mapping[str, JsonValue | tuple[str, ...]]) -> dict[str, Value]:
    """Attributes without those that are not known, and with texts that can be encoded."""
    return {
        name: value
        for name, given in values.items()
        if given is not None and (value := _value(given)) is not None
    }


def text(value: str) -> str:
    """A stranger's text, as long as it is worth sending."""
    return safe_utf8(value[:_LONGEST])


def _value(given: JsonValue | tuple[str, ...]) -> Value | None:
    if isinstance(given, str):
        return text(given)
    if isinstance(given, tuple):
        return tuple(text(str(one)) for one in given)
    return given if isinstance(given, (bool, int, float)) else None


def _number(text: str, size: int) -> int:
    # Zero is no id.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size]) or 1


Facts = dict[str, Value]
Remark = Retry | Fallback | Notice | ExpectChecked


def run_facts(run: str, event: RunStarted) -> Facts:
    """What is known of a run when it begins."""
    return told(
        {
            conventions.OPERATION: conventions.WORKFLOW,
            conventions.WORKFLOW_NAME: event.pipeline,
            conventions.RUN: run,
            conventions.PIPELINE_DIGEST: event.digest,
        }
    )


def exit_facts(event: RunFinished) -> Facts:
    """How a run ended."""
    return told(
        {
            conventions.STATUS: event.status,
            conventions.EXIT_CODE: event.exit.code,
            conventions.EXIT_NAME: event.exit.name,
            conventions.COST: event.cost_usd,
            conventions.ERROR_TYPE: event.exit.name if event.exit.code else None,
        }
    )


def end_facts(event: StepFinished | ItemFinished) -> Facts:
    """How a step or an item ended. Tokens stand at the requests alone: backends add them up."""
    error = event.error.code if event.error is not None else event.status
    return told(
        {
            conventions.STATUS: event.status,
            conventions.COST: event.cost_usd,
            conventions.ERROR_TYPE: None if event.status in {"ok", "skipped"} else error,
        }
    )


def chat_facts(model: ModelInfo | None, alias: str) -> Facts:
    """Which model is asked, and where."""
    facts: dict[str, JsonValue] = {
        conventions.OPERATION: conventions.CHAT,
        conventions.MODEL_ALIAS: alias,
    }
    if model is not None:
        facts[conventions.REQUEST_MODEL] = model.model
        host, port = _address(model.origin)
        facts[conventions.PROVIDER] = conventions.PROVIDERS.get(host or "", host or model.origin)
        facts[conventions.SERVER_ADDRESS], facts[conventions.SERVER_PORT] = host, port
    return told(facts)


def answer_facts(event: TurnFinished, *, content: bool) -> Facts:
    """What came of a request."""
    usage = event.usage
    return told(
        {
            conventions.FINISH_REASONS: (event.finish,),
            conventions.INPUT_TOKENS: usage.input,
            conventions.OUTPUT_TOKENS: usage.output,
            conventions.CACHED_TOKENS: usage.cached,
            conventions.REASONING_TOKENS: usage.reasoning,
            conventions.FIRST_CHUNK: event.first_token_seconds,
            conventions.COST: event.cost_usd,
            conventions.OUTPUT_MESSAGES: _said(event) if content else None,
        }
    )


def decided_facts(event: ToolDecided, server: ServerInfo | None, *, content: bool) -> Facts:
    """What is called, whether it may be, and over what."""
    network = conventions.NETWORK.get(server.transport) if server is not None else None
    return told(
        {
            **tool_facts(event.tool, event.place.call),
            conventions.TOOL_NAME: event.name,
            conventions.SERVER: event.server,
            conventions.SERVER_KIND: server.transport if server is not None else None,
            conventions.MCP_METHOD: conventions.TOOLS_CALL if network else None,
            conventions.TRANSPORT: network,
            conventions.VERDICT: event.verdict,
            conventions.RULE: event.rule,
            conventions.ARGUMENTS: json_text(event.arguments) if content else None,
        }
    )


def tool_facts(tool: str, call: str | None) -> Facts:
    """What is known of any call."""
    return told(
        {
            conventions.OPERATION: conventions.EXECUTE_TOOL,
            conventions.TOOL_NAME: tool,
            conventions.TOOL_TYPE: "function",
            conventions.TOOL_CALL_ID: call,
            conventions.TOOL: tool,
        }
    )


def result_facts(event: ToolFinished, *, content: bool) -> Facts:
    """What came of a call."""
    kinds = {"ok": None, "handler_error": conventions.TOOL_ERROR}
    return told(
        {
            conventions.KIND: event.kind,
            conventions.ERROR_TYPE: kinds.get(event.kind, event.kind),
            conventions.RESULT: event.content if content else None,
        }
    )


def remark(event: Remark, *, content: bool) -> tuple[str, Facts]:
    """Name and attributes of an event within a span; what a stranger said is content."""
    known: dict[str, JsonValue]
    match event:
        case Retry(attempt=attempt, delay=delay, reason=said):
            name, known = conventions.RETRY, {"attempt": attempt, "delay": delay}
        case Fallback(source=source, target=target, reason=said):
            name, known = conventions.FALLBACK, {"from": source, "to": target}
        case Notice(level=level, code=code, text=said):
            name, known = conventions.NOTICE, {"code": code, "level": level}
        case ExpectChecked(kind=kind, ok=ok, message=said):
            name, known = conventions.EXPECTATION, {"kind": kind, "ok": ok}
    known["message"] = said if content else None
    return name, told({f"{name}.{key}": value for key, value in known.items()})


def why(error: Failure | None, status: str, *, content: bool) -> str:
    """Why a unit failed; a message may quote what a model said."""
    if error is None:
        return status
    return error.message if content else error.code


def _said(event: TurnFinished) -> str:
    """The answer as the convention has it in JSON."""
    parts: list[JsonValue] = [{"type": "text", "content": event.text}] if event.text else []
    parts += [
        {"type": "tool_call", "id": one.id, "name": one.name, "arguments": one.arguments}
        for one in event.calls
    ]
    return json_text([{"role": "assistant", "parts": parts, "finish_reason": event.finish}])


def _address(origin: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None, None
    return parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


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
