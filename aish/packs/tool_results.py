"""Results of built-in tools, in the form of an MCP `CallToolResult` (K3, K7)."""

from collections.abc import Mapping
from dataclasses import field

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import safe_utf8

TEXT_LIMIT = 50_000
"""Characters of text in one result."""


class PackError(Exception):
    """A failure reported to the model: a stable code, a sentence, and details for programs."""

    def __init__(self, code: str, message: str, **details: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


@frozen
class Answer:
    """The answer of a tool: text for a model and the same as data."""

    text: str
    data: Mapping[str, JsonValue] = field(default_factory=dict)


def success(answer: Answer) -> dict[str, JsonValue]:
    """A result; text that is too long is cut even if the tool did not."""
    text, data = safe_utf8(answer.text), dict(answer.data)
    if len(text) > TEXT_LIMIT:
        # The tools cut at a better place and say how to continue: this is the last resort.
        note = f"\n[truncated: true, {len(text):,} characters in all; ask for less at a time]"
        text = text[: TEXT_LIMIT - len(note)] + note
        data["truncated"] = True
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": data,
        "isError": False,
    }


def failure(error: PackError) -> dict[str, JsonValue]:
    """A failure as a result: `ERROR: <message>` and the code in `structuredContent.error`."""
    described: JsonObject = {
        "code": error.code,
        "message": safe_utf8(error.message),
        "details": error.details,
    }
    text = safe_utf8(f"ERROR: {error.message}")[:TEXT_LIMIT]
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"error": described},
        "isError": True,
    }
