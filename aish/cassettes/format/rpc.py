"""The properties of a message to an MCP server that recording and replay need."""

import json
from collections.abc import Mapping

from aish.cassettes.format.interaction import Request
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_OPENING = frozenset({"initialize", "notifications/initialized", "server/discover", "tools/list"})
_REFUSED = -32603


@frozen
class Said:
    """A message to a server; `method` is empty for a response, or if it is no message."""

    verb: str
    method: str = ""
    id: JsonValue = None

    @property
    def is_request(self) -> bool:
        """True if a response is expected."""
        return bool(self.method) and self.id is not None

    @property
    def is_volatile(self) -> bool:
        """True if only timing decides that it is sent: opening a stream, ending."""
        return (
            self.is_listening or self.verb == "DELETE" or self.method == "notifications/cancelled"
        )

    @property
    def is_listening(self) -> bool:
        """True if it opens a stream for unsolicited messages of the server."""
        return self.verb == "GET" or self.method == "subscriptions/listen"

    @property
    def is_reply(self) -> bool:
        """True if it responds to a request of the server."""
        return not self.method and self.id is not None

    @property
    def is_fresh(self) -> bool:
        """True if it belongs to the session itself, and goes live with it."""
        return self.is_volatile or self.method in _OPENING

    def refusal(self) -> bytes:
        """The error response, if a single call may fail."""
        error = {"code": _REFUSED, "message": "the cassette has no such call"}
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "error": error}).encode()


def peek(request: Request) -> Said:
    """The message in a request to an MCP server."""
    verb = request.method.upper()
    message = message_of(request.body)
    if message is None:
        return Said(verb)
    method = message.get("method")
    return Said(verb, method if isinstance(method, str) else "", message.get("id"))


def message_of(body: bytes) -> JsonObject | None:
    """The single JSON-RPC message in a body."""
    if b'"jsonrpc"' not in body:
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, Mapping) else None
