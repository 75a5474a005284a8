"""JSON-RPC responses with the ids of the request that they are replayed for (C4, C5)."""

import json
import re
from collections.abc import Iterator, Mapping

from aish.cassettes.format.edits import Edit, edited_response, text_of
from aish.cassettes.format.interaction import Response
from aish.cassettes.format.json_tokens import at, located
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_LINE = re.compile(r"^(?:data: ?)?(\{[^\r\n]*\}|\[[^\r\n]*\])[ \t]*\r?$", re.MULTILINE)


@frozen
class Ids:
    """The identifiers of a request: its id, and its progress token."""

    id: JsonValue
    token: JsonValue


def renumbered(response: Response, recorded: bytes, asked: bytes) -> Response:
    """The response to the recorded request as a response to the current one."""
    old, new = _ids(recorded), _ids(asked)
    if old is None or new is None or old == new:
        return response
    return edited_response(response, _edits(text_of(response.body), old, new))


def _edits(text: str, old: Ids, new: Ids) -> Iterator[Edit]:
    """A body that is one message or a batch, or has one in each line or event."""
    whole = _parsed(text)
    if whole is not None:
        yield from _changes(text, 0, len(text), whole, old, new)
        return
    for line in _LINE.finditer(text):
        value = _parsed(line[1])
        if value is not None:
            yield from _changes(text, line.start(1), line.end(1), value, old, new)


def _changes(
    text: str, start: int, end: int, value: JsonValue, old: Ids, new: Ids
) -> Iterator[Edit]:
    """The ids of a message or a batch, with their positions."""
    changed: list[tuple[tuple[str | int, ...], JsonValue]] = []
    if isinstance(value, list):
        for place, one in enumerate(value):
            if isinstance(one, Mapping):
                changed += [((place, *path), made) for path, made in _renewed(one, old, new)]
    elif isinstance(value, Mapping):
        changed += _renewed(value, old, new)
    tree = located(text, start, end) if changed else None
    edits: list[Edit] = []
    for path, made in changed:
        # An id that is an object is invalid.
        if (found := at(tree, *path)) is not None:
            spelled = json.dumps(made)
            is_within = found.is_text and isinstance(made, str)
            quote = int(found.is_text and not is_within)
            spelled = spelled[1:-1] if is_within else spelled
            edits.append(Edit(found.start - quote, found.end + quote, spelled))
    yield from sorted(edits, key=lambda edit: edit.start)


def _renewed(
    message: JsonObject, old: Ids, new: Ids
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
    """Whether an id was returned, of whatever type it is now."""
    if isinstance(echoed, float) and echoed.is_integer():
        echoed = int(echoed)
    return echoed is not None and str(echoed) == str(sent)


def _ids(body: bytes) -> Ids | None:
    message = _message(text_of(body))
    if message is None:
        return None
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    token = meta.get("progressToken") if isinstance(meta, Mapping) else None
    return Ids(message.get("id"), token)


def _message(text: str) -> JsonObject | None:
    value = _parsed(text) if '"jsonrpc"' in text else None
    return value if isinstance(value, dict) and "jsonrpc" in value else None


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None
