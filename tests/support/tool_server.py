"""An MCP server in this process, whose tools are functions of the test, and what it was asked.

    with ToolServer() as server:
        server.add("crm", tool("get", reads=True), lambda arguments: "a customer")
        ... url: server.url("crm") ...
    assert server.calls == [("crm", "get", {"id": 7})]

One socket serves any number of servers, each at a path of its own. Both eras are spoken, without
sessions. A handler returns the text of the result, or the whole result as an object; what it raises
is a result with `isError`.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import mcp_tools

Message = dict[str, Any]
Handler = Callable[[Message], "str | Message"]


class ServedCall(NamedTuple):
    """A call that a server has run."""

    alias: str
    tool: str
    arguments: Message


@dataclass
class _Server:
    tools: dict[str, Message] = field(default_factory=dict)
    handlers: dict[str, Handler] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)


def tool(
    name: str, *arguments: str, reads: bool = False, description: str = "", **more: Any
) -> Message:
    """The definition of a tool, whose arguments are any texts."""
    schema = more.pop("schema", None) or {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "additionalProperties": False,
    }
    return {
        "name": name,
        "description": description or name,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": reads},
        **more,
    }


class ToolServer:
    """The server; a context manager with threads of its own."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._lock = threading.Lock()
        self._http = _Listener(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.calls: list[ServedCall] = []
        self.params: list[Message] = []
        """All that came with each call."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def url(self, alias: str) -> str:
        """Where the server of that name is."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/{alias}"

    def add(self, alias: str, definition: Message, handler: Handler) -> None:
        server = self._servers.setdefault(alias, _Server())
        server.tools[definition["name"]] = definition
        server.handlers[definition["name"]] = handler

    def offer(
        self, alias: str, *, resources: Mapping[str, str] = {}, prompts: Mapping[str, str] = {}
    ) -> None:
        """Resources (by their URI) and prompts (by name, without arguments) of a server."""
        server = self._servers.setdefault(alias, _Server())
        server.resources.update(resources)
        server.prompts.update(prompts)

    def reply(self, alias: str, message: Message) -> Message | None:
        """The reply to one message; `None` for a notification."""
        if "id" not in message or "method" not in message:
            return None
        reply: Message = {"jsonrpc": "2.0", "id": message["id"]}
        modern = mcp_tools.version_of(message) is not None
        try:
            result = self._result(alias, self._servers[alias], message)
        except (LookupError, mcp_tools.RpcFaultError) as error:
            fault = getattr(error, "error", {"code": -32602, "message": f"not found: {error}"})
            return reply | {"error": fault}
        return reply | {"result": ({"resultType": "complete"} if modern else {}) | result}

    def _result(self, alias: str, server: _Server, message: Message) -> Message:
        params = message.get("params") or {}
        match message["method"]:
            case "tools/list":
                return {"tools": list(server.tools.values())}
            case "tools/call":
                name, arguments = params["name"], params.get("arguments") or {}
                handler = server.handlers[name]
                with self._lock:
                    self.calls.append(ServedCall(alias, name, arguments))
                    self.params.append(params)
                    try:
                        told = handler(arguments)
                    except Exception as error:
                        return mcp_tools.text_result(str(error)) | {"isError": True}
                return mcp_tools.text_result(told) if isinstance(told, str) else told
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri} for uri in server.resources]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "resources/read":
                uri = params["uri"]
                return {"contents": [{"uri": uri, "text": server.resources[uri]}]}
            case "prompts/list":
                return {"prompts": [{"name": name} for name in server.prompts]}
            case "prompts/get":
                content = {"type": "text", "text": server.prompts[params["name"]]}
                return {"messages": [{"role": "user", "content": content}]}
        offered: Message = {"tools": {}}
        offered |= {"resources": {}} if server.resources else {}
        offered |= {"prompts": {}} if server.prompts else {}
        found = mcp_tools.result_of(message, "both")
        return found | ({"capabilities": offered} if "capabilities" in found else {})


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner: ToolServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no fault."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Listener

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = self.server.owner.reply(self.path.strip("/"), message)
        body = b"" if reply is None else json.dumps(reply).encode()
        self.send_response(202 if reply is None else 200)
        if body:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""
