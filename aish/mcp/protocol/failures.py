"""How talking to an MCP server fails; none of these leaves the room (M8).

`Server` turns them into results and into the reason why a server did not come up.
"""

from aish.core.json import JsonValue

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED_BY_USER = -1
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

BODY_SHOWN = 400


class McpError(Exception):
    """A failed exchange; `message` is one sentence without a full stop."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RpcError(McpError):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class TransportError(McpError):
    """No JSON-RPC answer came: the network, the process, or something that is not MCP."""


class ServerEndedError(TransportError):
    """The server process is gone; it may be started again."""


class NotSentError(ServerEndedError):
    """The server was gone before it had the whole message: to send it again is safe."""


class ToolChangedError(McpError):
    """A tool is not any more what it was when the call of it was decided on: nothing was sent."""

    def __init__(self, server: str, name: str) -> None:
        super().__init__(f"{server}__{name} changed before it could be called")


class LeftError(TransportError):
    """In replay: whoever waited for this answer gave up, as the recording has it."""

    def __init__(self) -> None:
        super().__init__("nobody waited for the answer")


class HttpStatusError(TransportError):
    """An HTTP status of 400 or more; `rpc` is the JSON-RPC error in its body, if it is one."""

    def __init__(self, status: int, body: str, rpc: RpcError | None = None) -> None:
        shown = body.strip()[:BODY_SHOWN]
        super().__init__(f"HTTP {status}: {shown}" if shown else f"HTTP {status}")
        self.status = status
        self.rpc = rpc


class SessionLostError(HttpStatusError):
    """404 to a request with a session id: the server forgot us, a new session is due."""
