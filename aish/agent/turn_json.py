"""JSON encoding of turns and structured results for a journal, and the decoding.

An image is stored in a file of the run's folder, and referenced with the digest of its bytes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from typing import Any

from aish.agent import wording
from aish.agent.runtime import Keep
from aish.config.documents import parse_json
from aish.core.events import TextSpan
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.sources import NO_SOURCES, Sources
from aish.core.text import safe_utf8
from aish.core.tools import PDF, Media, ToolCall

ReadFile = Callable[[str], bytes | None]
"""The name that `Keep` gave -> the content; `None` where there is none any more."""

Lost = Callable[[str], None]
"""Is told in a sentence of what does not come back."""


SOURCES = "sources"
"""The key of a turn with the sources that no turn before it has."""
SECRETS = "secrets"
"""The key of a turn whose secrets can be put back in the place of their tags."""


def turn_to_json(turn: Turn, keep: Keep) -> JsonObject:
    """The turn; its images are stored by `keep`."""
    match turn:
        case SystemTurn():
            return {"role": "system", "text": turn.text}
        case UserTurn():
            return {"role": "user", "text": turn.text, **_media_told(turn.media, keep)}
        case AssistantTurn():
            turn_data: dict[str, JsonValue] = {"role": "assistant", "text": turn.text}
            if turn.calls:
                turn_data["calls"] = [_call_told(call) for call in turn.calls]
            if turn.extras:
                turn_data["extras"] = turn.extras
            if turn.origin:
                turn_data["origin"] = turn.origin
            return turn_data
        case ToolTurn():
            reply: dict[str, JsonValue] = {"role": "tool", "call_id": turn.call_id}
            reply |= {"tool": turn.tool, "content": turn.content, **_media_told(turn.media, keep)}
            return {**reply, "is_error": True} if turn.is_error else reply


def turn_from_json(
    told: JsonObject,
    read_file: ReadFile,
    lost: Lost = lambda _: None,
    sources: Sources = NO_SOURCES,
) -> Turn:
    """The turn that was given to `turn_to_json`, with the sources that it has.

    A missing or changed image is replaced by a line of text, and `lost` is notified.

    Raises:
        ValueError: this is not a turn.
    """
    role = told.get("role")
    if role == "system":
        return SystemTurn(_text(told, "text"), sources)
    if role == "user":
        media, lines = _media(told, read_file, lost)
        return UserTurn(_with(_text(told, "text"), lines), media, sources)
    if role == "assistant":
        calls = tuple([_call(call) for call in _objects(told, "calls")])
        origin = _text(told, "origin") if "origin" in told else ""
        return AssistantTurn(_text(told, "text"), calls, _object(told, "extras"), origin, sources)
    if role == "tool":
        media, lines = _media(told, read_file, lost)
        content = _with(_text(told, "content"), lines)
        call_id, tool = _text(told, "call_id"), _text(told, "tool")
        is_error = told.get("is_error") is True
        return ToolTurn(call_id, tool, content, media, is_error=is_error, sources=sources)
    raise ValueError(f"`role` is {role!r}")


def _call_told(call: ToolCall) -> JsonObject:
    data = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return {**data, "extras": call.extras} if call.extras else data


def _call(data: JsonObject) -> ToolCall:
    name, arguments = _text(data, "name"), _text(data, "arguments")
    return ToolCall(_text(data, "id"), name, arguments, _object(data, "extras"))


def _media_told(media: Sequence[Media], keep: Keep) -> dict[str, JsonValue]:
    return {"media": [_one_told(item, keep) for item in media]} if media else {}


def _one_told(media: Media, keep: Keep) -> JsonObject:
    name = keep(f"turn.{media.mime_type.rpartition('/')[2]}", media.data)
    digest = sha256(media.data).hexdigest()
    return {"mime_type": media.mime_type, "file": name, "sha256": digest}


def _media(
    turn: JsonObject, read_file: ReadFile, lost: Lost
) -> tuple[tuple[Media, ...], Sequence[str]]:
    """The unchanged images, and a line for each other one."""
    media, lines = [], []
    for entry in _objects(turn, "media"):
        kind, name, digest = _text(entry, "mime_type"), entry.get("file"), _text(entry, "sha256")
        data = read_file(name) if isinstance(name, str) else None
        if data is not None and sha256(data).hexdigest() == digest:
            media.append(Media(kind, data))
            continue
        lines.append(wording.media_gone(kind))
        why = "is not as it was" if data is not None else "is gone"
        what = f"{'a PDF' if kind == PDF else 'an image'} of the conversation"
        lost(f"`{name}`, {what}, {why}" if name else f"{what} was not kept")
    return tuple(media), lines


def _with(text: str, lines: Sequence[str]) -> str:
    return "\n".join([*([text] if text else []), *lines])


def _text(turn: JsonObject, key: str) -> str:
    value = turn.get(key)
    if not isinstance(value, str):
        raise _unfit(key)
    return value


def _object(turn: JsonObject, key: str) -> JsonObject:
    value = turn.get(key, {})
    if not isinstance(value, Mapping):
        raise _unfit(key)
    return value


def _objects(turn: JsonObject, key: str) -> Sequence[JsonObject]:
    value = turn.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise _unfit(key)
    return value


def _unfit(key: str) -> ValueError:
    return ValueError(f"`{key}` has the wrong form")


# Location of a call's structured content, if it is not a file.
CONTENT = "content"
STEP_OUTPUT = "output"
"""In older journals, the output of the step whose only call it is."""

# A shorter text is no longer than a reference to it.
_SHORTEST = 64
# Texts nested more deeply, or after this amount, are stored as they are.
_DEEPEST = 16
_MOST_SEARCHED = 64 * 1024 * 1024


@frozen
class Structured:
    """Encoded structured content: `place` is its location if it is not in `value`.

    At the path of each span, the referenced text of the result precedes the remaining text.
    """

    value: JsonValue = None
    place: str | None = None
    spans: tuple[TextSpan, ...] = ()


def structured_to_event(
    structured: JsonValue,
    text: str,
    full: str | None,
    *,
    limit: int,
    keep: Callable[[bytes], str | None],
    mask: Callable[[str], str],
) -> Structured:
    """Encode it beside `text`, which is in the file `full` or, without one, in the event.

    If it is still longer than `limit`, it is stored by `keep`.
    """
    dumped = json.dumps(structured, ensure_ascii=False)
    if _is_same(text, dumped):
        return Structured(place=CONTENT if full is None else full)
    texts = _Texts(text, mask)
    rest = texts.take_out(structured)
    spans = tuple(texts.spans)
    if spans:
        dumped = json.dumps(rest, ensure_ascii=False)
    if len(dumped) <= limit:
        return Structured(rest, spans=spans)
    return Structured(place=keep(safe_utf8(dumped).encode()), spans=spans)


def structured_from_event(
    finished: JsonObject, output: JsonValue, read_file: ReadFile
) -> JsonValue:
    """The structured content of a `tool.finished`; `output` is that of its step or item.

    `None` if its location is missing, or has changed.
    """
    place, spans = finished.get("structured_in"), finished.get("structured_spans")
    if place == STEP_OUTPUT:
        return output
    try:
        value = finished.get("structured")
        if place is not None:
            value = parse_json(_text_at(None if place == CONTENT else place, finished, read_file))
        return _put_back(value, spans, finished, read_file) if spans else value
    except (LookupError, TypeError, ValueError):
        return None


def _text_at(file: JsonValue, finished: JsonObject, read_file: ReadFile) -> str:
    """The content of the file; without one, the text of the event."""
    if file is None:
        return str(finished.get("content") or "")
    data = read_file(str(file))
    if data is None:
        raise LookupError(file)
    return data.decode()


def _put_back(value: JsonValue, spans: Any, finished: JsonObject, read_file: ReadFile) -> JsonValue:
    text = _text_at(finished.get("full"), finished, read_file)
    whole: Any = {"": deepcopy(value)}
    for span in spans:
        start, end = span["start"], span["end"]
        if not 0 <= start <= end <= len(text):
            raise ValueError(end)
        holder, last = whole, ""
        for part in span["path"]:
            holder, last = holder[last], part
        holder[last] = text[start:end] + holder[last]
    restored: JsonValue = whole[""]
    return restored


class _Texts:
    """The long texts of a value that also occur in `text`."""

    def __init__(self, text: str, mask: Callable[[str], str]) -> None:
        # Masked text is written: positions refer to it, if masking it again would not change it.
        self._text = mask(text)
        self._mask = mask
        self._left = _MOST_SEARCHED if mask(self._text) == self._text else 0
        self.spans: list[TextSpan] = []

    def take_out(self, value: JsonValue, path: tuple[str | int, ...] = ()) -> JsonValue:
        if isinstance(value, str):
            return self._rest(value, path)
        if len(path) == _DEEPEST or self._left <= 0:
            return value
        if isinstance(value, Mapping):
            return {key: self.take_out(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.take_out(item, (*path, place)) for place, item in enumerate(value)]
        return value

    def _rest(self, text: str, path: tuple[str | int, ...]) -> str:
        if len(text) < _SHORTEST or self._left <= 0:
            return text
        masked = self._mask(text)
        # White space at the end is the most frequent difference between results and their texts.
        body = masked.rstrip()
        if len(body) < _SHORTEST:
            return text
        self._left -= len(self._text)
        start = self._text.find(body)
        if start < 0 or any(isinstance(key, str) and self._mask(key) != key for key in path):
            return text
        self.spans.append(TextSpan(path, start, start + len(body)))
        return masked[len(body) :]


def _is_same(text: str, dumped: str) -> bool:
    """Return true if a text is the JSON of `dumped`, ignoring white space."""
    if text == dumped:
        return True
    if text[:1] != dumped[:1]:
        return False
    try:
        return json.dumps(parse_json(text), ensure_ascii=False) == dumped
    except ValueError:
        return False
