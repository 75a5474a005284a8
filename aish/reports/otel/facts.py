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
from aish.reports.otel import conventions
from aish.reports.otel.span import Value, told

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
