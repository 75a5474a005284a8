"""The events of a run folded into spans: run, step, item, `chat`, `execute_tool`.

From the live stream or from a journal, with the same ids. Content (answers, arguments, results,
messages, item keys) is included only if requested. Pure: a span here is a plain value independent
of any library, and its attributes are named by the table of `conventions`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, assert_never
from urllib.parse import urlsplit

from aish.core.events import (
    ApprovalAnswered,
    ExpectChecked,
    Failure,
    Fallback,
    ItemFinished,
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
    TurnFinished,
    plain,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, objects_in, parse_structured
from aish.core.messages import Served
from aish.core.patterns import lazy_pattern
from aish.core.text import safe_utf8
from aish.journal.history import (
    CallRecord,
    Ended,
    RunHistory,
    Segment,
    SentRequest,
    TurnRecord,
    Unanswered,
    Unit,
)
from aish.journal.questions import RecordedQuestion
from aish.output.status import call_status
from aish.reports.otel import conventions

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]
SpanKind = Literal["internal", "client"]

_LONGEST = 100_000
_LONGEST_PART = 30_000
# Larger integers cannot be encoded, and the whole batch would be lost.
_LARGEST = 1 << 63
# Statuses of units that have not failed: a paused one waits for an answer.
_WELL = frozenset({"ok", "skipped", "paused"})


@frozen
class SpanEvent:
    """An event at one time of a span; times are seconds since the epoch."""

    name: str
    time: float
    attributes: Attributes = field(default_factory=dict)


@frozen
class Span:
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
    """The id of the trace, which depends only on the run, live or from its journal."""
    return _number(f"aish trace {run}", 16)


def span_id(run: str, seq: int) -> int:
    """The id of a span, which depends only on the run and its event."""
    return _number(f"aish span {run} {seq}", 8)


def otel_attributes(facts: "Facts") -> Attributes:
    """Attributes without unknown values, and with texts that can be encoded."""
    return {
        name: value
        for name, fact in facts.items()
        if fact is not None and (value := _value(fact)) is not None
    }


def text(value: str) -> str:
    return safe_utf8(value[:_LONGEST])


def _value(fact: JsonValue | tuple[str, ...]) -> Value | None:
    if isinstance(fact, str):
        return text(fact)
    if isinstance(fact, tuple):
        return tuple(text(str(item)) for item in fact)
    if isinstance(fact, int) and abs(fact) >= _LARGEST:
        return None
    return fact if isinstance(fact, (bool, int, float)) else None


def _number(text: str, size: int) -> int:
    # Zero is not a valid id.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size]) or 1


Facts = dict[str, JsonValue | tuple[str, ...]]
"""Attributes by name; one of `None` is unknown."""
Remark = Retry | Fallback | Notice | ExpectChecked


def run_facts(run: str, event: RunStarted) -> Facts:
    return {
        conventions.OPERATION: conventions.WORKFLOW,
        conventions.WORKFLOW_NAME: event.pipeline,
        conventions.RUN: run,
        conventions.PIPELINE_DIGEST: event.digest,
    }


def exit_facts(event: RunFinished) -> Facts:
    return {
        conventions.STATUS: event.status,
        conventions.EXIT_CODE: event.exit.code,
        conventions.EXIT_NAME: event.exit.name,
        conventions.COST: event.cost_usd,
        conventions.ERROR_TYPE: event.exit.name if _is_error(event) else None,
    }


def _is_error(event: RunFinished) -> bool:
    """A paused run waits, and has not failed."""
    return bool(event.exit.code) and event.status != "paused"


def end_facts(event: StepFinished | ItemFinished) -> Facts:
    """The status of a step or an item. Tokens are only on the requests: backends add them up."""
    error = event.error.code if event.error is not None else event.status
    return {
        conventions.STATUS: event.status,
        conventions.COST: event.cost_usd,
        conventions.ERROR_TYPE: None if event.status in _WELL else error,
    }


def chat_facts(model: ModelInfo | None, alias: str, params: JsonObject) -> Facts:
    facts: Facts = {
        conventions.OPERATION: conventions.CHAT,
        conventions.MODEL_ALIAS: alias,
        conventions.STREAM: True,
    }
    if model is not None:
        params = {**model.params, **params}
        facts[conventions.REQUEST_MODEL] = model.model
        host, port = _address(model.origin)
        facts[conventions.PROVIDER] = conventions.PROVIDERS.get(host or "", host or model.origin)
        facts[conventions.SERVER_ADDRESS], facts[conventions.SERVER_PORT] = host, port
    return facts | dict(_params(params))


def _params(params: JsonObject) -> Iterator[tuple[str, JsonValue | tuple[str, ...]]]:
    for name, value in params.items():
        if isinstance(value, int | float) and abs(value) < _LARGEST:
            if name in conventions.NUMBERS:
                yield conventions.NUMBERS[name], float(value)
            elif name in conventions.INTEGERS and (name, value) != ("n", 1):
                yield conventions.INTEGERS[name], int(value)
        elif name == "stop" and isinstance(value, str | list):
            texts = [value] if isinstance(value, str) else value
            yield conventions.STOP_SEQUENCES, tuple(map(str, texts))
        elif name == "reasoning_effort":
            yield conventions.REASONING_LEVEL, value


def answer_facts(event: TurnFinished, *, content: bool) -> Facts:
    usage, served = event.usage, event.served or Served()
    return {
        conventions.RESPONSE_MODEL: served.model,
        conventions.RESPONSE_ID: served.id,
        conventions.FINISH_REASONS: (event.finish,),
        conventions.INPUT_TOKENS: usage.input,
        conventions.OUTPUT_TOKENS: usage.output,
        conventions.CACHED_TOKENS: usage.cached,
        conventions.CACHE_WRITTEN_TOKENS: usage.cache_written,
        conventions.REASONING_TOKENS: usage.reasoning,
        conventions.FIRST_CHUNK: event.first_token_seconds,
        conventions.COST: event.cost_usd,
        conventions.OUTPUT_MESSAGES: _answer_text(event) if content else None,
    }


def facts_of_failure(failure: Failure) -> Facts:
    """Return why a request has no answer: the endpoint's status, or the error's code."""
    match = _REFUSED.match(failure.message)
    return {
        conventions.ERROR_TYPE: failure.code if match is None else match[1],
        conventions.RESPONSE_STATUS: None if match is None else int(match[1]),
    }


def facts_of_decision(event: ToolDecided, server: ServerInfo | None, *, content: bool) -> Facts:
    """The called tool, the decision, and the transport."""
    network = conventions.NETWORK.get(server.transport) if server is not None else None
    return {
        **tool_facts(event.tool, event.place.call),
        conventions.TOOL_NAME: event.name,
        conventions.SERVER: event.server,
        conventions.SERVER_KIND: server.transport if server is not None else None,
        conventions.MCP_METHOD: conventions.TOOLS_CALL if network else None,
        conventions.TRANSPORT: network,
        conventions.VERDICT: event.verdict,
        conventions.LEVEL: event.level,
        conventions.RULE: event.rule,
        conventions.ARGUMENTS: json_text(event.arguments) if content else None,
    }


def question_facts(question: RecordedQuestion) -> Facts:
    """The question about a call; who answered is a person, and is not exported."""
    answered = question.answered
    return {
        conventions.APPROVAL: question.id,
        conventions.APPROVAL_ANSWER: "open" if answered is None else answered.answer,
        conventions.APPROVAL_WAY: None if answered is None else answered.way,
    }


def tool_facts(tool: str, call: str | None) -> Facts:
    return {
        conventions.OPERATION: conventions.EXECUTE_TOOL,
        conventions.TOOL_NAME: tool,
        conventions.TOOL_TYPE: "function",
        conventions.TOOL_CALL_ID: call,
        conventions.TOOL: tool,
    }


def result_facts(event: ToolFinished, *, content: bool) -> Facts:
    kinds = {"ok": None, "handler_error": conventions.TOOL_ERROR}
    return {
        conventions.KIND: event.kind,
        conventions.ERROR_TYPE: conventions.TOOL_ERROR
        if event.exit_code
        else kinds.get(event.kind, event.kind),
        conventions.RESULT: event.content if content else None,
    }


def remark(event: Remark, *, content: bool) -> tuple[str, Facts]:
    """Name and attributes of an event within a span; untrusted text is content."""
    known: dict[str, JsonValue]
    match event:
        case Retry(attempt=attempt, delay=delay, reason=reason):
            name, known = conventions.RETRY, {"attempt": attempt, "delay": delay}
        case Fallback(source=source, target=target, reason=reason):
            name, known = conventions.FALLBACK, {"from": source, "to": target}
        case Notice(level=level, code=code, text=reason):
            name, known = conventions.NOTICE, {"code": code, "level": level}
        case ExpectChecked(kind=kind, ok=ok, message=reason):
            name, known = conventions.EXPECTATION, {"kind": kind, "ok": ok}
    known["message"] = reason if content else None
    return name, {f"{name}.{key}": value for key, value in known.items()}


def why(error: Failure | None, status: str, *, content: bool) -> str:
    """Return why a unit failed; a message may quote a model's answer."""
    if error is None:
        return status
    return error.message if content else error.code


def _answer_text(event: TurnFinished) -> str | None:
    turn = {"role": "assistant", "text": event.text, "calls": plain(event.calls)}
    return _in_json([_message(turn) | {"finish_reason": event.finish}])


def messages_json(request: SentRequest) -> str | None:
    return _in_json([_message(one) for one in request.talk[: request.count - request.earlier]])


def _in_json(messages: Sequence[JsonObject]) -> str | None:
    """As many of the last messages as fit: an attribute that was cut would be no JSON."""
    texts: list[str] = []
    room = _LONGEST - len("[]")
    for message in reversed(messages):
        texts.append(json_text(message))
        room -= len(texts[-1]) + len(",")
        if room < 0:
            texts.pop()
            break
    return f"[{','.join(reversed(texts))}]" if texts else None


def _message(turn: JsonObject) -> dict[str, JsonValue]:
    """A message of a journal, which may contain anything, as the convention represents it."""
    parts: list[JsonValue] = []
    if "call_id" in turn:
        response = _part(turn.get("content"))
        parts.append({"type": "tool_call_response", "id": turn["call_id"], "response": response})
    elif turn.get("text"):
        parts.append({"type": "text", "content": _part(turn["text"])})
    for item in objects_in(turn.get("calls")):
        arguments = parse_structured(_part(item.get("arguments")))
        call = {"type": "tool_call", "id": item.get("id"), "name": item.get("name")}
        parts.append({**call, "arguments": arguments})
    for medium in objects_in(turn.get("media")):
        kind = str(medium.get("mime_type"))
        about = {"type": "file", "modality": kind.partition("/")[0], "mime_type": kind}
        parts.append({**about, "file_id": medium.get("file")})
    return {"role": turn.get("role"), "parts": parts}


def _part(value: JsonValue) -> str:
    return str(value or "")[:_LONGEST_PART]


def _address(origin: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None, None
    return parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


# How the endpoint's errors begin, in a step's error and as the reason of another attempt.
_REFUSED = lazy_pattern(r"(?:model `[^`]*`: )?HTTP ([1-5][0-9]{2})\b")
_GONE = "it has no end"
_CUT_OFF: Facts = {conventions.ERROR_TYPE: "interrupted"}


class Spans:
    """Makes a span of each unit that ends; holds only open ones."""

    def __init__(self, run: str, *, content: bool = False) -> None:
        self._run = run
        self._content = content
        self._trace = trace_id(run)
        self._history = RunHistory()
        self._started: RunStarted | None = None
        self._root: int | None = None
        self._remarks: dict[int | None, list[SpanEvent]] = {}
        self._last = 0.0
        self._seq = 0

    def take(self, stamped: Stamped) -> Iterator[Span]:
        """The spans that end with this event."""
        event = stamped.event
        ended = self._history.take(stamped)
        if isinstance(event, ApprovalAnswered):
            # The spans of what has ended remain as they are.
            return
        # What is still open when a run is resumed ended with the last event before that.
        at = self._last if isinstance(event, RunStarted) else stamped.time
        self._last, self._seq = stamped.time, stamped.seq
        for entry in ended:
            yield from self._span(entry, at)
        if isinstance(event, RunStarted):
            self._started, self._root = event, stamped.seq
        elif isinstance(event, Remark):
            name, known = remark(event, content=self._content)
            about = self._history.around(event.place) or self._root
            if about is not None:
                self._remarks.setdefault(about, []).append(
                    SpanEvent(name, self._last, otel_attributes(known))
                )

    def end(self) -> Iterator[Span]:
        """The spans still open at the end of the events; the innermost first."""
        for entry in self._history.rest():
            yield from self._span(entry, self._last)

    def _span(self, entry: Ended, end: float) -> Iterator[Span]:
        match entry:
            case Segment():
                yield self._of_segment(entry, end)
            case Unit():
                # A unit without start and end consists only of its contents.
                if entry.started is not None or entry.finished is not None:
                    yield self._of_unit(entry, end)
            case TurnRecord():
                yield self._of_turn(entry, end)
            case Unanswered():
                yield self._of_unanswered(entry, end)
            case CallRecord():
                yield self._of_call(entry, end)
            case _:
                assert_never(entry)

    def _of_segment(self, segment: Segment, end: float) -> Span:
        self._root = None
        started, finished = segment.started, segment.finished
        error: str | None = _GONE
        name = f"{conventions.WORKFLOW} {started.pipeline}"
        if finished is None:
            facts = run_facts(self._run, started) | _CUT_OFF
        else:
            facts = run_facts(self._run, started) | exit_facts(finished)
            reason = finished.exit.reason if self._content else finished.exit.name
            error = reason if _is_error(finished) else None
        begin = segment.seq, segment.began
        return self._make_span(begin, end, None, name, facts, error)

    def _of_unit(self, unit: Unit, end: float) -> Span:
        started, finished = unit.started, unit.finished
        name = conventions.STEP
        facts: Facts = {conventions.STEP_ID: unit.step}
        if isinstance(started, StepStarted):
            facts |= {conventions.STEP_KIND: started.kind, conventions.ITEMS: started.count}
        elif started is not None:
            name = conventions.ITEM
            key = self._if_content(started.key)
            facts |= {conventions.ITEM_INDEX: started.index, conventions.ITEM_KEY: key}
        error: str | None = _GONE
        if finished is None:
            facts |= _CUT_OFF
        else:
            facts |= end_facts(finished)
            bad = finished.status not in _WELL
            error = why(finished.error, finished.status, content=self._content) if bad else None
        begin = unit.seq, unit.began
        span = self._make_span(
            begin, end, unit.within or self._root, f"{name} {unit.step}", facts, error
        )
        if started is None and unit.seq != self._seq:
            # Its number is that of its first turn or call, which is not its child here.
            span = replace(span, id=_number(f"aish span {self._run} {unit.seq} end", 8))
        return span

    def _of_turn(self, turn: TurnRecord, end: float) -> Span:
        request, said = turn.request, turn.said
        facts: Facts = {conventions.TURN: turn.place.turn}
        begin = turn.seq, end
        if request is not None:
            facts |= self._request_facts(request)
            begin = turn.seq, request.began
        # The answering model may differ from the first one requested.
        model = self._model(turn.place, said.model)
        params = {} if request is None else request.params
        facts |= chat_facts(model, said.model, params) | answer_facts(said, content=self._content)
        return self._chat(begin, end, turn.within, model, said.model, facts)

    def _of_unanswered(self, turn: Unanswered, end: float) -> Span:
        request = turn.request
        model = self._model(request.place, request.model)
        facts = {conventions.TURN: request.place.turn, **self._request_facts(request)}
        facts |= _CUT_OFF if turn.failure is None else facts_of_failure(turn.failure)
        error = _GONE
        if turn.failure is not None:
            error = why(turn.failure, "", content=self._content)
        begin = request.seq, request.began
        return self._chat(begin, end, request.within, model, request.model, facts, error)

    def _chat(
        self,
        begin: tuple[int, float],
        end: float,
        within: int | None,
        model: ModelInfo | None,
        alias: str,
        facts: Facts,
        error: str | None = None,
    ) -> Span:
        name = f"{conventions.CHAT} {model.model if model is not None else alias}"
        return self._make_span(begin, end, within or self._root, name, facts, error, "client")

    def _request_facts(self, request: SentRequest) -> Facts:
        model = self._model(request.place, request.model)
        return {
            conventions.MESSAGES: request.count,
            conventions.INPUT_MESSAGES: messages_json(request) if self._content else None,
            **chat_facts(model, request.model, request.params),
        }

    def _model(self, place: Place, alias: str) -> ModelInfo | None:
        models = self._started.models if self._started is not None else ()
        # Those of a sub-pipeline are reported as `step/alias`.
        within, cut, _ = (place.step or "").rpartition("/")
        known = {model.alias: model for model in models}
        return known.get(within + cut + alias, known.get(alias))

    def _of_call(self, call: CallRecord, end: float) -> Span:
        decided, finished = call.decided, call.finished
        name, facts = call.tool, tool_facts(call.tool, call.place.call)
        if decided is not None:
            name = decided.name
            servers = self._started.servers if self._started is not None else ()
            server = next((one for one in servers if one.alias == decided.server), None)
            facts |= facts_of_decision(decided, server, content=self._content)
        error: str | None = None if call.waits else _GONE
        if call.question is not None:
            facts |= question_facts(call.question)
        if call.waits:
            pass
        elif finished is None:
            facts |= _CUT_OFF
        else:
            facts |= result_facts(finished, content=self._content)
            status = call_status(finished)
            error = None if status == "ok" else self._if_content(finished.content) or status
        kind: SpanKind = "client" if facts.get(conventions.MCP_METHOD) else "internal"
        # It begins when it is sent to its server: before, the user may have been asked.
        begin, parent = (call.seq, call.began), call.within or self._root
        name = f"{conventions.EXECUTE_TOOL} {name}"
        return self._make_span(begin, end, parent, name, facts, error, kind)

    def _if_content(self, value: str) -> str | None:
        return value if self._content else None

    def _make_span(
        self,
        begin: tuple[int, float],
        end: float,
        parent: int | None,
        name: str,
        facts: Facts,
        error: str | None,
        kind: SpanKind = "internal",
    ) -> Span:
        seq, start = begin
        return Span(
            trace=self._trace,
            id=span_id(self._run, seq),
            parent=None if parent is None else span_id(self._run, parent),
            name=text(name),
            kind=kind,
            start=start,
            end=max(end, start),
            attributes=otel_attributes(facts),
            events=tuple(self._remarks.pop(seq, ())),
            error=None if error is None else text(error),
        )
