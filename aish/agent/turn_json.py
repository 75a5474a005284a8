"""Turns as JSON, for a journal, and back: what is said to a model again is what was said.

An image is in a file of the run's folder, and only named here, with the digest of its bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from aish.agent import wording
from aish.agent.runtime import Keep
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import Media, ToolCall

ReadFile = Callable[[str], bytes | None]
"""The name that `Keep` gave -> the content; `None` where there is none any more."""

Lost = Callable[[str], None]
"""Is told in a sentence of what does not come back."""


def turn_to_json(turn: Turn, keep: Keep) -> JsonObject:
    """The turn; its images are kept by `keep`."""
    match turn:
        case SystemTurn():
            return {"role": "system", "text": turn.text}
        case UserTurn():
            return {"role": "user", "text": turn.text, **_media_told(turn.media, keep)}
        case AssistantTurn():
            told: dict[str, JsonValue] = {"role": "assistant", "text": turn.text}
            if turn.calls:
                told["calls"] = [_call_told(call) for call in turn.calls]
            if turn.extras:
                told["extras"] = turn.extras
            if turn.origin:
                told["origin"] = turn.origin
            return told
        case ToolTurn():
            reply = {"role": "tool", "call_id": turn.call_id, "tool": turn.tool}
            return {**reply, "content": turn.content, **_media_told(turn.media, keep)}


def turn_from_json(told: JsonObject, read_file: ReadFile, lost: Lost = lambda _: None) -> Turn:
    """The turn that `turn_to_json` was given.

    An image that is not there as it was has a line in its place, and `lost` is told.

    Raises:
        ValueError: this is no turn.
    """
    role = told.get("role")
    if role == "system":
        return SystemTurn(_text(told, "text"))
    if role == "user":
        media, lines = _media(told, read_file, lost)
        return UserTurn(_with(_text(told, "text"), lines), media)
    if role == "assistant":
        calls = tuple([_call(one) for one in _objects(told, "calls")])
        origin = _text(told, "origin") if "origin" in told else ""
        return AssistantTurn(_text(told, "text"), calls, _object(told, "extras"), origin)
    if role == "tool":
        media, lines = _media(told, read_file, lost)
        content = _with(_text(told, "content"), lines)
        return ToolTurn(_text(told, "call_id"), _text(told, "tool"), content, media)
    raise ValueError(f"`role` is {role!r}")


def _call_told(call: ToolCall) -> JsonObject:
    told = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return {**told, "extras": call.extras} if call.extras else told


def _call(told: JsonObject) -> ToolCall:
    name, arguments = _text(told, "name"), _text(told, "arguments")
    return ToolCall(_text(told, "id"), name, arguments, _object(told, "extras"))


def _media_told(media: Sequence[Media], keep: Keep) -> dict[str, JsonValue]:
    return {"media": [_one_told(one, keep) for one in media]} if media else {}


def _one_told(media: Media, keep: Keep) -> JsonObject:
    kept = keep(f"turn.{media.mime_type.rpartition('/')[2]}", media.data)
    digest = sha256(media.data).hexdigest()
    return {"mime_type": media.mime_type, "file": kept, "sha256": digest}


def _media(
    told: JsonObject, read_file: ReadFile, lost: Lost
) -> tuple[tuple[Media, ...], Sequence[str]]:
    """What is there as it was, and a line for each that is not."""
    found, lines = [], []
    for one in _objects(told, "media"):
        kind, name, digest = _text(one, "mime_type"), one.get("file"), _text(one, "sha256")
        data = read_file(name) if isinstance(name, str) else None
        if data is not None and sha256(data).hexdigest() == digest:
            found.append(Media(kind, data))
            continue
        lines.append(wording.media_gone(kind))
        why = "is not as it was" if data is not None else "is gone"
        lost(f"`{name}`, an image of the conversation, {why}" if name else _NOT_KEPT)
    return tuple(found), lines


_NOT_KEPT = "an image of the conversation was not kept"


def _with(text: str, lines: Sequence[str]) -> str:
    return "\n".join([*([text] if text else []), *lines])


def _text(told: JsonObject, key: str) -> str:
    found = told.get(key)
    if not isinstance(found, str):
        raise _unfit(key)
    return found


def _object(told: JsonObject, key: str) -> JsonObject:
    found = told.get(key, {})
    if not isinstance(found, Mapping):
        raise _unfit(key)
    return found


def _objects(told: JsonObject, key: str) -> Sequence[JsonObject]:
    found = told.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise _unfit(key)
    return found


def _unfit(key: str) -> ValueError:
    return ValueError(f"`{key}` is not what it should be")
