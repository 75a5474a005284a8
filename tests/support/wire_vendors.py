"""What the vendors' libraries make of a stream, in the words of `wire_scenes`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from wire_scenes import Turn

from aish.wire.calls import canonical

Reader = Callable[[bytes], Turn]


def _http(raw: bytes) -> Any:
    httpx: Any = pytest.importorskip("httpx2")
    kind = "application/json" if raw.lstrip()[:1] == b"{" else "text/event-stream"

    def answer(_: Any) -> Any:
        return httpx.Response(200, headers={"content-type": kind}, content=raw)

    return httpx.Client(transport=httpx.MockTransport(answer))


def _reason(calls: Any, cut: Any, refused: Any) -> Any:
    return "refusal" if refused else "tool_calls" if calls else "length" if cut else "stop"


def _chat() -> Reader:
    openai: Any = pytest.importorskip("openai")
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    def read(raw: bytes) -> Turn:
        sdk = openai.OpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=_http(raw),
                            max_retries=0)  # fmt: skip
        with sdk.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            whole = stream.current_completion_snapshot
        (choice,), usage = whole.choices, whole.usage
        message, end = choice.message, choice.finish_reason
        calls = tuple(
            (one.id, one.function.name, canonical(one.function.arguments))
            for one in message.tool_calls or ()
        )
        refused = message.refusal or end == "content_filter"
        return Turn(
            message.content or "", () if refused else calls,
            _reason(calls, end == "length", refused),
            getattr(message, "reasoning", None) or "", message.refusal,
            (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None),
        )  # fmt: skip

    return read


def _messages() -> Reader:
    anthropic: Any = pytest.importorskip("anthropic")
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}

    def read(raw: bytes) -> Turn:
        sdk = anthropic.Anthropic(api_key="k", http_client=_http(raw), max_retries=0)
        with sdk.messages.stream(**asked) as stream:
            whole = stream.get_final_message()
        blocks, end = whole.content, whole.stop_reason
        calls = tuple(
            (block.id, block.name, canonical(str(block.input).replace("'", '"')))
            for block in blocks
            if block.type == "tool_use"
        )
        details = getattr(whole, "stop_details", None)
        return Turn(
            "".join(block.text for block in blocks if block.type == "text"),
            () if end == "refusal" else calls,
            _reason(calls, end == "max_tokens", end == "refusal"),
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            details.explanation if details else None,
            (whole.usage.input_tokens, whole.usage.output_tokens),
        )

    return read


def _responses() -> Reader:
    openai: Any = pytest.importorskip("openai")

    def read(raw: bytes) -> Turn:
        sdk = openai.OpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=_http(raw),
                            max_retries=0)  # fmt: skip
        with sdk.responses.stream(model="m", input="x") as stream:
            whole = [event for event in stream if hasattr(event, "response")][-1].response
        parts = [part for item in whole.output if item.type == "message" for part in item.content]
        refused = "".join(part.refusal for part in parts if part.type == "refusal")
        calls = tuple(
            (item.call_id, item.name, canonical(item.arguments))
            for item in whole.output
            if item.type == "function_call"
        )
        why, usage = whole.incomplete_details, whole.usage
        is_refused = refused or (why and why.reason == "content_filter")
        return Turn(
            "".join(part.text for part in parts if part.type == "output_text"),
            () if is_refused else calls,
            _reason(calls, why, is_refused),
            "".join(
                part.text for item in whole.output if item.type == "reasoning"
                for part in item.summary
            ),
            refused or None,
            (usage.input_tokens, usage.output_tokens) if usage else (None, None),
        )  # fmt: skip

    return read


VENDORS: Final[Mapping[str, Callable[[], Reader]]] = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
}
