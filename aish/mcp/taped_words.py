"""What passes a transport that is not HTTP, as a cassette holds it: lines of JSON, and failures."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aish.core.json import JsonObject
from aish.mcp.failures import (
    HttpStatusError,
    McpError,
    NotSentError,
    ServerEndedError,
    TransportError,
)
from aish.mcp.messages import Answer, Asked, Noted

_CLASSES = {cls.__name__: cls for cls in (TransportError, ServerEndedError, NotSentError)}
_STATUS = re.compile(r"HTTP (\d{3})(?:: )?(.*)", re.DOTALL)


def readable(message: object) -> bytes:
    """A message on one line, its Unicode as a person reads it (C10)."""
    separators = (",", ":")
    text = json.dumps(message, ensure_ascii=False, separators=separators, default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8.
        return json.dumps(message, separators=separators, default=_plain).encode()


def said(message: Asked | Noted) -> JsonObject:
    """What a server says unasked, as it sent it."""
    number = {"id": message.id} if isinstance(message, Asked) else {}
    return {"jsonrpc": "2.0", **number, "method": message.method, "params": message.params}


def answered(answer: Answer, number: int) -> JsonObject:
    """The answer to our request with this number."""
    if answer.error is None:
        return {"jsonrpc": "2.0", "id": number, "result": answer.result}
    error: dict[str, Any] = {"code": answer.error.code, "message": answer.error.message}
    if answer.error.data is not None:
        error["data"] = answer.error.data
    return {"jsonrpc": "2.0", "id": number, "error": error}


def in_words(error: McpError) -> str:
    """A failure, as `Response.broken` holds it."""
    kind = HttpStatusError if isinstance(error, HttpStatusError) else type(error)
    return f"{kind.__name__}: {error.message}"


def failure_of(words: str) -> TransportError:
    """The failure that was recorded; of the plain kind where it was recorded by somebody else."""
    name, _, message = words.partition(": ")
    if name == HttpStatusError.__name__ and (found := _STATUS.fullmatch(message)):
        return HttpStatusError(int(found[1]), found[2])
    cls = _CLASSES.get(name)
    return TransportError(words) if cls is None else cls(message)


def _plain(value: object) -> object:
    """What a pack may have put into its answer instead of the plain types of JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else str(value)
