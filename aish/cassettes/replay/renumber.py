"""JSON-RPC responses with the ids of the request that they are replayed for."""

import json
import re
from collections.abc import Iterator, Mapping

from aish.cassettes.format.edits import Edit, apply_to_response, text_of
from aish.cassettes.format.interaction import Response
from aish.cassettes.format.json_tokens import at, locate
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_LINE = re.compile(r"^(?:data: ?)?(\{[^\r\n]*\}|\[[^\r\n]*\])[ \t]*\r?$", re.MULTILINE)


@frozen
class RequestIds:
    """The identifiers of a request: its id, and its progress token."""

    id: JsonValue
    token: JsonValue


def renumber_response(response: Response, recorded: bytes, asked: bytes) -> Response:
    """The response to the recorded request as a response to the current one."""
    old, new = _ids(recorded), _ids(asked)
    if old is None or new is None or old == new:
        return response
    return apply_to_response(response, _edits(text_of(response.body), old, new))


def _edits(text: str, old: RequestIds, new: RequestIds) -> Iterator[Edit]:
    """A body that is one message or a batch, or has one in each line or event."""
    whole = _parse_container(text)
    if whole is not None:
        yield from _changes(text, 0, len(text), whole, old, new)
        return
    for line in _LINE.finditer(text):
        value = _parse_container(line[1])
        if value is not None:
            yield from _changes(text, line.start(1), line.end(1), value, old, new)


def _changes(
    text: str, start: int, end: int, value: JsonValue, old: RequestIds, new: RequestIds
) -> Iterator[Edit]:
    """The ids of a message or a batch, with their positions."""
    changed: list[tuple[tuple[str | int, ...], JsonValue]] = []
    if isinstance(value, list):
        for place, item in enumerate(value):
            if isinstance(item, Mapping):
                changed += [((place, *path), id) for path, id in _new_ids(item, old, new)]
    elif isinstance(value, Mapping):
        changed += _new_ids(value, old, new)
    tree = locate(text, start, end) if changed else None
    edits: list[Edit] = []
    for path, id in changed:
        # An id that is an object is invalid.
        if (node := at(tree, *path)) is not None:
            spelled = json.dumps(id)
            is_within = node.is_text and isinstance(id, str)
            quote = int(node.is_text and not is_within)
            spelled = spelled[1:-1] if is_within else spelled
            edits.append(Edit(node.start - quote, node.end + quote, spelled))
    yield from sorted(edits, key=lambda edit: edit.start)


def _new_ids(
    message: JsonObject, old: RequestIds, new: RequestIds
) -> Iterator[tuple[tuple[str | int, ...], JsonValue]]:
    """The positions of old ids in a message, and the new ids."""
    if "method" not in message and _is_id(message.get("id"), old.id):
        # Some servers return a number as a string; this is preserved.
        yield ("id",), str(new.id) if isinstance(message["id"], str) else new.id
    params = message.get("params")
    is_progress = message.get("method") == "notifications/progress" and old.token is not None
    if is_progress and isinstance(params, Mapping) and params.get("progressToken") == old.token:
        yield ("params", "progressToken"), new.token


def _is_id(echoed: JsonValue, sent: JsonValue) -> bool:
    """Return true if an id was returned, of whatever type it is now."""
    if isinstance(echoed, float) and echoed.is_integer():
        echoed = int(echoed)
    return echoed is not None and str(echoed) == str(sent)


def _ids(body: bytes) -> RequestIds | None:
    message = _message(text_of(body))
    if message is None:
        return None
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    token = meta.get("progressToken") if isinstance(meta, Mapping) else None
    return RequestIds(message.get("id"), token)


def _message(text: str) -> JsonObject | None:
    value = _parse_container(text) if '"jsonrpc"' in text else None
    return value if isinstance(value, dict) and "jsonrpc" in value else None


def _parse_container(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None
