"""MCP servers as tests need them: one that misbehaves as told, and a faithful small Lua server.

`McpEndpoint` is a real HTTP server whose handler sees each request whole; `Legacy` and `Modern`
are handlers with the usual answers, of which a test replaces those it is about. `LuaServer` is the
POST-only server of design 12, down to its sockets.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import mcp_offered_resources
import mcp_tools
from model_endpoint import ModelEndpoint, Part, Recorded, Reply, json_reply

Handler = Callable[[Recorded], Reply]
Method = Callable[[dict[str, Any]], Any]


class McpEndpoint(ModelEndpoint):
    """An HTTP server at `url`; what its handler raises is raised at the end of the `with`."""

    def __init__(self, handler: Handler, *, port: int = 0) -> None:
        super().__init__(port=port)
        self._handler = handler

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    @property
    def methods(self) -> list[str]:
        """The JSON-RPC methods that came, in their order."""
        return [r.json.get("method", "(answer)") for r in self.requests if r.method == "POST"]

    def _choose(self, request: Recorded) -> Reply:
        try:
            return self._handler(request)
        except Exception as failure:
            self.failures.append(failure)
            return json_reply(500, {"error": repr(failure)})


def result(request: Recorded, value: Any, **headers: str) -> Reply:
    """A JSON answer to a request."""
    return json_reply(200, {"jsonrpc": "2.0", "id": request.json["id"], "result": value}, headers)


def error(request: Recorded, code: int, message: str, *, status: int = 200, **more: Any) -> Reply:
    """A JSON-RPC error as the answer."""
    fault = {"code": code, "message": message, **more}
    return json_reply(status, {"jsonrpc": "2.0", "id": request.json["id"], "error": fault})


def accepted() -> Reply:
    """202 without a body."""
    return Reply(status=202, framing="length")


def event(message: Mapping[str, Any] | str, *, id: str = "", name: str = "") -> bytes:
    """One server-sent event."""
    data = message if isinstance(message, str) else json.dumps(message)
    head = (f"id: {id}\n" if id else "") + (f"event: {name}\n" if name else "")
    return f"{head}data: {data}\n\n".encode()


def events(*parts: Part, **headers: str) -> Reply:
    """A stream of events."""
    return Reply(parts=parts, headers={"content-type": "text/event-stream", **headers})


class Legacy:
    """A server of the handshake era; `overrides` answer the methods they name.

    An override gets the recorded request and returns a `Reply`, or the result alone.
    """

    version = "2025-11-25"
    kind: Mapping[str, str] = {}

    def __init__(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] = tuple(mcp_tools.TOOLS),
        version: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        session: str | None = None,
        **overrides: Callable[[Recorded], Any],
    ) -> None:
        self.tools = list(tools)
        self.version = version or self.version
        self.capabilities = dict(capabilities if capabilities is not None else {"tools": {}})
        self.session = session
        self.overrides = {name.replace("__", "/"): found for name, found in overrides.items()}

    def __call__(self, request: Recorded) -> Reply:
        key = request.json.get("method", "answer") if request.method == "POST" else request.method
        if key in self.overrides:
            found = self.overrides[key](request)
            return found if isinstance(found, Reply) else result(request, found)
        return self.usual(request)

    def usual(self, request: Recorded) -> Reply:
        if request.method != "POST":
            return Reply(status=405, framing="length")
        message = request.json
        if "id" not in message or "method" not in message:
            return accepted()
        match message["method"]:
            case "initialize":
                hello = {
                    "protocolVersion": self.version,
                    "capabilities": self.capabilities,
                    "serverInfo": mcp_tools.SERVER_INFO,
                }
                headers = {"Mcp-Session-Id": self.session} if self.session else {}
                return result(request, hello, **headers)
            case "tools/list":
                return result(request, {"tools": self.tools})
            case "tools/call":
                return json_reply(200, mcp_tools.answer(message, "legacy"))
        return self.offered(request) or error(request, -32601, "Method not found")

    def offered(self, request: Recorded) -> Reply | None:
        """The answer for a resource or a prompt, if this server has them."""
        if not self.capabilities.keys() & mcp_offered_resources.CAPABILITIES.keys():
            return None
        message = request.json
        try:
            found = mcp_offered_resources.result_of(message["method"], message.get("params") or {})
        except LookupError as missing:
            return error(request, -32602, str(missing.args[0]))
        return None if found is None else result(request, {**self.kind, **found})


class Modern(Legacy):
    """A server of the stateless era."""

    kind: Mapping[str, str] = {"resultType": "complete"}

    def usual(self, request: Recorded) -> Reply:
        if request.method != "POST":
            return Reply(status=405, framing="length")
        message = request.json
        match message["method"]:
            case "server/discover":
                about = {
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": self.capabilities,
                }
                return result(request, about)
            case "tools/list":
                return result(request, {"resultType": "complete", "tools": self.tools})
            case "tools/call":
                return json_reply(200, mcp_tools.answer(message, "modern"))
        return self.offered(request) or error(request, -32601, "Method not found", status=404)


LUA_TOOLS = [
    {
        "name": "status",
        "description": "Says how the house is",
        "inputSchema": {"type": "object", "properties": []},
        "annotations": [],
    },
    {
        "name": "set_light",
        "description": "Switches a light",
        "inputSchema": {
            "type": "object",
            "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
            "required": ["room", "on"],
        },
    },
]


class LuaServer:
    """A POST-only MCP server as a small Lua program writes it (design 12).

    One connection, one JSON answer; `Connection: close`; pins 2025-03-26 whatever is asked; `[]`
    where an empty object is meant; 202 without a body for notifications; `401
    {"error":"unauthorized"}` without an envelope; GET answers with one `endpoint` event and closes;
    `isError: false` on some real failures.
    """

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="lua-server", daemon=True)
        self.port: int = self._socket.getsockname()[1]
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def methods(self) -> list[str]:
        return [json.loads(body)["method"] for verb, _, body in self.requests if verb == "POST"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            verb = stream.readline().split(b" ")[0].decode()
            headers = {}
            while line := stream.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = stream.read(int(headers.get("content-length", "0")))
        if verb:
            self.requests.append((verb, headers, body))
            connection.sendall(self._response(verb, headers, body))

    def _response(self, verb: str, headers: dict[str, str], body: bytes) -> bytes:
        if verb == "GET":
            return (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                b"event: endpoint\ndata: /mcp\n\n"
            )
        if self._token and headers.get("authorization") != f"Bearer {self._token}":
            return _http("401 Unauthorized", '{"error":"unauthorized"}')
        message = json.loads(body)
        if "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        number = json.dumps(message["id"])
        return _http("200 OK", f'{{"jsonrpc":"2.0","id":{number},{_lua_body(message)}}}')


def _lua_body(message: dict[str, Any]) -> str:
    match message["method"]:
        case "initialize":
            return (
                '"result":{"protocolVersion":"2025-03-26","capabilities":'
                '{"tools":{"listChanged":false}},"serverInfo":{"name":"lua","version":"1"}}'
            )
        case "ping":
            return '"result":[]'
        case "tools/list":
            return f'"result":{{"tools":{json.dumps(LUA_TOOLS)}}}'
        case "tools/call":
            return _lua_call(message["params"])
    return '"error":{"code":-32601,"message":"method not found"}'


def _lua_call(params: dict[str, Any]) -> str:
    match params["name"]:
        case "status":
            return '"result":{"content":[{"type":"text","text":"all is well"}],"isError":false}'
        case "set_light" if params["arguments"]["room"] == "attic":
            text = "Error: no such room"
            return f'"result":{{"content":[{{"type":"text","text":"{text}"}}],"isError":false}}'
        case "set_light":
            return '"result":{"content":[],"isError":false}'
    return '"error":{"code":-32602,"message":"unknown tool"}'


def _http(status: str, body: str) -> bytes:
    raw = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + raw
