"""The shapes that the `content` of a message has, and its thinking."""

from collections.abc import Iterator
from typing import Any, Final, Literal

REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")

Kind = Literal["text", "reasoning", "refusal", "unknown"]


def content_pieces(content: Any) -> Iterator[tuple[Kind, str]]:
    """The pieces of a `content`, part by part; for an unknown part its type."""
    if isinstance(content, str):
        yield "text", content
    elif isinstance(content, list):
        for part in content:
            yield from _part(part)
    elif isinstance(content, dict):
        yield from _part(content)


def reasoning_text(value: Any) -> str:
    """The readable text in a reasoning field, which may not be a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(reasoning_text, value))
    if isinstance(value, dict):
        for name in ("text", "content", "thinking", "summary"):
            if inner := value.get(name):
                return reasoning_text(inner)
    return ""


def _part(part: Any) -> Iterator[tuple[Kind, str]]:
    if isinstance(part, str):
        yield "text", part
        return
    fields = part if isinstance(part, dict) else {}
    kind = str(fields.get("type"))
    if kind in {"text", "output_text", "None"} and isinstance(fields.get("text"), str):
        yield "text", fields["text"]
    elif kind in {"thinking", "reasoning"}:
        yield "reasoning", reasoning_text(fields.get("thinking") or fields)
    elif kind == "refusal" and isinstance(fields.get("refusal"), str):
        yield "refusal", fields["refusal"]
    else:
        yield "unknown", kind
