"""The tools of our small MCP servers, and how they answer each JSON-RPC message.

Shared by `mcp_http_server.py` and `mcp_stdio_server.py`, standard library only. Both eras are
spoken: `initialize` and the stateless 2026-07-28.
"""

from __future__ import annotations

import binascii

import mcp_offered_resources

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
CAPABILITIES: Message = {"tools": {"listChanged": False}}
"""What a server declares; with those of `mcp_offered_resources`, resources and prompts too."""
SERVER_INFO = {"name": "aish-test-server", "version": "1.0.0"}
PNG = binascii.a2b_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _tool(
    name: str, description: str, properties: Message, *, read_only: bool = True, **more: Any
) -> Message:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": read_only, "destructiveHint": not read_only},
        **more,
    }


TOOLS: list[Message] = [
    _tool("echo", "Say the text back", {"text": {"type": "string"}}),
    _tool(
        "add",
        "Add two numbers",
        {"a": {"type": "number"}, "b": {"type": "number"}},
        outputSchema={"type": "object", "properties": {"sum": {"type": "number"}}},
    ),
    _tool("sleep", "Wait, then say so", {"ms": {"type": "integer"}}),
    _tool("fail", "Fail with isError", {}),
    _tool("rpc_error", "Fail with a JSON-RPC error", {}),
    _tool("big", "Say n letters", {"n": {"type": "integer"}}),
    _tool("image", "A picture of one pixel", {}),
    _tool("crash", "End the server process", {}, read_only=False),
]


class RpcFaultError(Exception):
    """A JSON-RPC error to be sent."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Message = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


def text_result(text: str, **more: Any) -> Message:
    return {"content": [{"type": "text", "text": text}], "isError": False, **more}


def call(name: str, arguments: Message) -> Message:
    match name:
        case "echo":
            return text_result(str(arguments.get("text", "")))
        case "add":
            total = arguments.get("a", 0) + arguments.get("b", 0)
            return text_result(str(total), structuredContent={"sum": total})
        case "sleep":
            return text_result(f"slept {arguments.get('ms', 0)} ms")
        case "fail":
            return text_result("the handler failed on purpose", isError=True)
        case "rpc_error":
            raise RpcFaultError(-32000, "refused on purpose")
        case "big":
            text = "x" * int(arguments.get("n", 0))
            more = {"structuredContent": {"said": text}} if arguments.get("structured") else {}
            return text_result(text, **more)
        case "image":
            data = binascii.b2a_base64(PNG, newline=False).decode()
            return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    raise RpcFaultError(-32602, f"Unknown tool: {name}")


def delay_of(message: Message) -> float:
    """How long to wait before the answer, in seconds."""
    if message.get("method") != "tools/call":
        return 0.0
    params = message.get("params") or {}
    if params.get("name") != "sleep":
        return 0.0
    return float((params.get("arguments") or {}).get("ms", 0)) / 1000


def is_crash(message: Message) -> bool:
    params = message.get("params") or {}
    return message.get("method") == "tools/call" and params.get("name") == "crash"


def version_of(message: Message) -> str | None:
    """The revision in `_meta` of the stateless era."""
    meta = (message.get("params") or {}).get("_meta") or {}
    version = meta.get("io.modelcontextprotocol/protocolVersion")
    return version if isinstance(version, str) else None


def result_of(message: Message, era: str) -> Message:
    params = message.get("params") or {}
    method = message.get("method")
    version = version_of(message)
    if version is not None and era in {"both", "modern"} and version != MODERN:
        data = {"supported": [MODERN], "requested": version}
        raise RpcFaultError(-32022, "Unsupported protocol version", data)
    if method == "initialize" and era != "modern":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in LEGACY else LEGACY[0],
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
        }
    if method == "server/discover" and era != "legacy":
        return {
            "resultType": "complete",
            "supportedVersions": [MODERN],
            "capabilities": CAPABILITIES,
            "_meta": {"io.modelcontextprotocol/serverInfo": SERVER_INFO},
            "ttlMs": 0,
            "cacheScope": "private",
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        extra = {"resultType": "complete"} if version else {}
        return {**extra, "tools": TOOLS}
    if method == "tools/call":
        extra = {"resultType": "complete"} if version else {}
        return {**extra, **call(str(params.get("name")), params.get("arguments") or {})}
    if CAPABILITIES.keys() >= mcp_offered_resources.CAPABILITIES.keys():
        try:
            found = mcp_offered_resources.result_of(str(method), params)
        except LookupError as error:
            raise RpcFaultError(-32602, str(error.args[0])) from error
        if found is not None:
            return {**({"resultType": "complete"} if version else {}), **found}
    raise RpcFaultError(-32601, f"Method not found: {method}")


def answer(message: Message, era: str = "both") -> Message | None:
    """The reply to one message; `None` for a notification or a response."""
    if "id" not in message or "method" not in message:
        return None
    reply: Message = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        return reply | {"result": result_of(message, era)}
    except RpcFaultError as fault:
        return reply | {"error": fault.error}
