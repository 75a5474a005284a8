"""What the spans of models, tools and units say: events to attributes, by the table of names."""

from urllib.parse import urlsplit

from aish.core.events import (
    ExpectChecked,
    Failure,
    Fallback,
    ItemFinished,
    ModelInfo,
    Notice,
    Retry,
    RunFinished,
    RunStarted,
    ServerInfo,
    StepFinished,
    ToolDecided,
    ToolFinished,
    TurnFinished,
)
from aish.core.json import JsonValue
from aish.core.json_text import json_text
from aish.reports.otel import names
from aish.reports.otel.span import Value, told

Facts = dict[str, Value]
Remark = Retry | Fallback | Notice | ExpectChecked


def run_facts(run: str, event: RunStarted) -> Facts:
    """What is known of a run when it begins."""
    return told(
        {
            names.OPERATION: names.WORKFLOW,
            names.WORKFLOW_NAME: event.pipeline,
            names.RUN: run,
            names.PIPELINE_DIGEST: event.digest,
        }
    )


def exit_facts(event: RunFinished) -> Facts:
    """How a run ended."""
    return told(
        {
            names.STATUS: event.status,
            names.EXIT_CODE: event.exit.code,
            names.EXIT_NAME: event.exit.name,
            names.COST: event.cost_usd,
            names.ERROR_TYPE: event.exit.name if event.exit.code else None,
        }
    )


def end_facts(event: StepFinished | ItemFinished) -> Facts:
    """How a step or an item ended. Tokens stand at the requests alone: backends add them up."""
    error = event.error.code if event.error is not None else event.status
    return told(
        {
            names.STATUS: event.status,
            names.COST: event.cost_usd,
            names.ERROR_TYPE: None if event.status in {"ok", "skipped"} else error,
        }
    )


def chat_facts(model: ModelInfo | None, alias: str) -> Facts:
    """Which model is asked, and where."""
    facts: dict[str, JsonValue] = {names.OPERATION: names.CHAT, names.MODEL_ALIAS: alias}
    if model is not None:
        facts[names.REQUEST_MODEL] = model.model
        host, port = _address(model.origin)
        facts[names.PROVIDER] = names.PROVIDERS.get(host or "", host or model.origin)
        facts[names.SERVER_ADDRESS], facts[names.SERVER_PORT] = host, port
    return told(facts)


def answer_facts(event: TurnFinished, *, content: bool) -> Facts:
    """What came of a request."""
    usage = event.usage
    return told(
        {
            names.FINISH_REASONS: (event.finish,),
            names.INPUT_TOKENS: usage.input,
            names.OUTPUT_TOKENS: usage.output,
            names.CACHED_TOKENS: usage.cached,
            names.REASONING_TOKENS: usage.reasoning,
            names.FIRST_CHUNK: event.first_token_seconds,
            names.COST: event.cost_usd,
            names.OUTPUT_MESSAGES: _said(event) if content else None,
        }
    )


def decided_facts(event: ToolDecided, server: ServerInfo | None, *, content: bool) -> Facts:
    """What is called, whether it may be, and over what."""
    network = names.NETWORK.get(server.transport) if server is not None else None
    return told(
        {
            **tool_facts(event.tool, event.place.call),
            names.TOOL_NAME: event.name,
            names.SERVER: event.server,
            names.SERVER_KIND: server.transport if server is not None else None,
            names.MCP_METHOD: names.TOOLS_CALL if network else None,
            names.TRANSPORT: network,
            names.VERDICT: event.verdict,
            names.RULE: event.rule,
            names.ARGUMENTS: json_text(event.arguments) if content else None,
        }
    )


def tool_facts(tool: str, call: str | None) -> Facts:
    """What is known of any call."""
    return told(
        {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: call,
            names.TOOL: tool,
        }
    )


def result_facts(event: ToolFinished, *, content: bool) -> Facts:
    """What came of a call."""
    kinds = {"ok": None, "handler_error": names.TOOL_ERROR}
    return told(
        {
            names.KIND: event.kind,
            names.ERROR_TYPE: kinds.get(event.kind, event.kind),
            names.RESULT: event.content if content else None,
        }
    )


def remark(event: Remark, *, content: bool) -> tuple[str, Facts]:
    """Name and attributes of an event within a span; what a stranger said is content."""
    known: dict[str, JsonValue]
    match event:
        case Retry(attempt=attempt, delay=delay, reason=said):
            name, known = names.RETRY, {"attempt": attempt, "delay": delay}
        case Fallback(source=source, target=target, reason=said):
            name, known = names.FALLBACK, {"from": source, "to": target}
        case Notice(level=level, code=code, text=said):
            name, known = names.NOTICE, {"code": code, "level": level}
        case ExpectChecked(kind=kind, ok=ok, message=said):
            name, known = names.EXPECTATION, {"kind": kind, "ok": ok}
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
