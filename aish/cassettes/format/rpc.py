"""What a message to an MCP server is, as far as a tape has to know."""

import json
from collections.abc import Mapping

from aish.cassettes.format.interaction import Request
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_OPENING = frozenset({"initialize", "notifications/initialized", "server/discover", "tools/list"})
_REFUSED = -32603


@frozen
class Said:
    """A message on its way to a server; `method` is empty where it is an answer, or no message."""

    verb: str
    method: str = ""
    id: JsonValue = None

    @property
    def is_request(self) -> bool:
        """Whether an answer is waited for."""
        return bool(self.method) and self.id is not None

    @property
    def is_volatile(self) -> bool:
        """Whether it depends on timing alone that this is said: a stream to hear on, an end."""
        return (
            self.is_listening or self.verb == "DELETE" or self.method == "notifications/cancelled"
        )

    @property
    def is_listening(self) -> bool:
        """Whether a stream is wanted on which the server says what it likes, when it likes."""
        return self.verb == "GET" or self.method == "subscriptions/listen"

    @property
    def is_reply(self) -> bool:
        """Whether it answers something that the server asked."""
        return not self.method and self.id is not None

    @property
    def is_fresh(self) -> bool:
        """Whether it belongs to a session's own life, and goes live wherever the session does."""
        return self.is_volatile or self.method in _OPENING

    def refusal(self) -> bytes:
        """The answer where a single call may fail."""
        error = {"code": _REFUSED, "message": "the cassette has no such call"}
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "error": error}).encode()


def peek(request: Request) -> Said:
    """What a request to an MCP server says."""
    verb = request.method.upper()
    message = message_of(request.body)
    if message is None:
        return Said(verb)
    method = message.get("method")
    return Said(verb, method if isinstance(method, str) else "", message.get("id"))


def message_of(body: bytes) -> JsonObject | None:
    """The one JSON-RPC message that a body is."""
    if b'"jsonrpc"' not in body:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None
