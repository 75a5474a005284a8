"""The `content` of a message in all its shapes, and thinking in all of its own (quirks 58, 59)."""

from collections.abc import Iterator
from typing import Any, Final, Literal

REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")

Kind = Literal["text", "reasoning", "refusal", "unknown"]


def content_pieces(content: Any) -> Iterator[tuple[Kind, str]]:
    """What a `content` says, part by part; for an unknown part its type."""
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
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in {"text", "output_text", None} and isinstance(part, dict) and _is_text(part):
        yield "text", part["text"]
    elif kind in {"thinking", "reasoning"}:
        yield "reasoning", reasoning_text(part.get("thinking") or part)
    elif kind == "refusal" and isinstance(part.get("refusal"), str):
        yield "refusal", part["refusal"]
    else:
        yield "unknown", kind if isinstance(kind, str) else "unnamed"


def _is_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)
