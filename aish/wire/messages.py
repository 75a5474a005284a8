"""One turn as a chat-completions message."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aish.core.messages import AssistantTurn
from aish.core.tools import Media, ToolCall
from aish.wire.arguments import legal_arguments

Message = dict[str, Any]

_OWN_FIELDS: Final = frozenset({"role", "content", "tool_calls"})


def text_message(role: str, text: str, media: Sequence[Media] = ()) -> Message:
    """A message of text, or of parts where there is media."""
    if not media:
        return {"role": role, "content": text}
    parts = [{"type": "text", "text": text}] if text else []
    return {"role": role, "content": [*parts, *map(_media_part, media)]}


def tool_message(id: str, content: str) -> Message:
    """The reply to a call."""
    return {"role": "tool", "tool_call_id": id, "content": content}


def told_result(tool: str, content: str) -> str:
    """The reply to a call as text of a user turn, for templates without a tool role (L13)."""
    return f"[tool: {tool}]\n{content}"


def assistant_message(turn: AssistantTurn, ids: Sequence[str], *, same_origin: bool) -> Message:
    """What the model said, with a call for each of `ids`; none for the form of L13.

    Content without text is `null` beside calls, as the documentation has it, and empty otherwise.
    """
    calls = [
        _call(call, id, turn_extras=same_origin) for call, id in zip(turn.calls, ids, strict=False)
    ]
    message: Message = {"role": "assistant", "content": turn.text or (None if calls else "")}
    if same_origin:
        message |= {key: value for key, value in turn.extras.items() if key not in _OWN_FIELDS}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall, id: str, *, turn_extras: bool) -> Message:
    extras = dict(call.extras) if turn_extras else {}
    inner = extras.pop("function", None)
    function = dict(inner) if isinstance(inner, Mapping) else {}
    function |= {"name": call.name, "arguments": legal_arguments(call.arguments)}
    return {**extras, "id": id, "type": "function", "function": function}


def _media_part(media: Media) -> Message:
    """An image as a data URL; anything else as a line that says what is missing."""
    if not media.mime_type.startswith("image/"):
        return {"type": "text", "text": f"[{media.mime_type} not sent]"}
    import base64  # few turns have media

    data = base64.b64encode(media.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{media.mime_type};base64,{data}"}}
