"""Answers of JSON-RPC with the ids of the request they are played to (C4, C5)."""

import json
import re
from collections.abc import Iterator, Mapping

from aish.cassettes.edits import Edit, edited_response, text_of
from aish.cassettes.interaction import Response
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue

_LINE = re.compile(r"^(?:data: ?)?(\{[^\r\n]*\}|\[[^\r\n]*\])[ \t]*\r?$", re.MULTILINE)


@frozen
class Ids:
    """What numbers a request: its id, and the token by which progress is told."""

    id: JsonValue
    token: JsonValue


def renumbered(response: Response, recorded: bytes, asked: bytes) -> Response:
    """The answer to the recorded request as an answer to the one that was asked."""
    old, new = _ids(recorded), _ids(asked)
    if old is None or new is None or old == new:
        return response
    return edited_response(response, _edits(text_of(response.body), old, new))


def _edits(text: str, old: Ids, new: Ids) -> Iterator[Edit]:
    """A body that is one message or a batch, or has such in each line or event."""
    whole = _parsed(text)
    if whole is not None:
        if (changed := _changed(whole, old, new)) is not None:
            yield Edit(0, len(text), changed)
        return
    for line in _LINE.finditer(text):
        value = _parsed(line[1])
        if value is not None and (changed := _changed(value, old, new)) is not None:
            yield Edit(line.start(1), line.end(1), changed)


def _changed(value: JsonValue, old: Ids, new: Ids) -> str | None:
    """A message or a batch with new ids; nothing if it has none of the old ones."""
    made: JsonValue
    if isinstance(value, list):
        made = [_renewed(one, old, new) if isinstance(one, Mapping) else one for one in value]
    else:
        made = _renewed(value, old, new) if isinstance(value, Mapping) else value
    return None if made == value else json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def _renewed(message: JsonObject, old: Ids, new: Ids) -> JsonObject:
    made = dict(message)
    if "method" not in message and _is_id(message.get("id"), old.id):
        # Some servers echo a number as a string; they go on doing so.
        made["id"] = str(new.id) if isinstance(message["id"], str) else new.id
    params = message.get("params")
    is_progress = message.get("method") == "notifications/progress"
    if is_progress and isinstance(params, Mapping) and old.token is not None:
        token = params.get("progressToken")
        made["params"] = {**params, "progressToken": new.token if token == old.token else token}
    return made


def _is_id(echoed: JsonValue, sent: JsonValue) -> bool:
    """Whether an id came back, of whatever type it is now."""
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
