"""An MCP server over HTTP whose answers to calls are bytes that a test makes up.

with SmugglingServer({"case": lambda on: http(answer(on.other, "stolen"))}) as server:
    url: server.url

The tool `hold` is answered once `release` was called, `echo` at once, and `attack` with the bytes
of its argument `case`; these get the id of the call, and that of the call that is held. Connections
are kept open.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Ids:
    """The id of a call, and that of another call that is held."""

    id: int
    other: int


Attack = Callable[[Ids], bytes] | bytes
"""A whole HTTP response to a call."""
PATIENCE = 300.0
"""Seconds that a call may be held."""


def answer(id: Any, said: str, **more: Any) -> str:
    """The JSON of an answer to a call."""
    result = {"content": [{"type": "text", "text": said}]}
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result, **more})


def http(body: str | bytes, kind: str = "application/json", *head: str) -> bytes:
    """A response with this body."""
    data = body.encode() if isinstance(body, str) else body
    lines = ["HTTP/1.1 200 OK", f"content-type: {kind}", *head]
    if not head:
        lines.append(f"content-length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def sse(*pieces: str | bytes) -> bytes:
    """A stream of events with these bytes."""
    data = b"".join(one.encode() if isinstance(one, str) else one for one in pieces)
    return http(data, "text/event-stream")


class SmugglingServer:
    """Listens on a port of 127.0.0.1; a thread for each connection."""

    def __init__(self, attacks: Mapping[str, Attack]) -> None:
        self._attacks = attacks
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._held: list[int] = []
        self.holding = threading.Event()
        self._released = threading.Event()
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/mcp"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *details: object) -> None:
        self.release()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            connection.close()

    def release(self) -> None:
        """Answer what is held."""
        self._released.set()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        with suppress(OSError, ValueError):  # it was closed
            while first := file.readline():
                lines = iter(file.readline, b"\r\n")
                head = dict(line.decode().lower().rstrip().split(": ", 1) for line in lines)
                body = file.read(int(head.get("content-length", "0")))
                if first.startswith(b"POST"):
                    connection.sendall(self._reply(json.loads(body)))
                else:
                    connection.sendall(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")

    def _reply(self, message: dict[str, Any]) -> bytes:
        id, method = message.get("id"), message.get("method")
        if id is None:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        if method == "initialize":
            info = {"name": "smuggling", "version": "1"}
            told = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            result: Any = {**told, "serverInfo": info}
        elif method == "tools/list":
            schema = {"type": "object"}
            names = ("hold", "echo", "attack")
            result = {"tools": [{"name": name, "inputSchema": schema} for name in names]}
        elif method == "tools/call":
            return self._called(id, message["params"]["name"], message["params"]["arguments"])
        else:
            error = {"code": -32601, "message": "no such method"}
            return http(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}))
        return http(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))

    def _called(self, id: int, name: str, arguments: dict[str, Any]) -> bytes:
        if name == "hold":
            self._held.append(id)
            self.holding.set()
            assert self._released.wait(PATIENCE)
            return http(answer(id, "held"))
        if name == "echo":
            return http(answer(id, f"echo {arguments['text']}"))
        attack = self._attacks[arguments["case"]]
        return attack if isinstance(attack, bytes) else attack(Ids(id, self._held[0]))
