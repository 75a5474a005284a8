"""`aish serve --http` as a process, and clients of it: requests by httpx, or bytes as they are.

with HttpHub(project, "p.yaml") as hub:
    hub.call("s__echo", {"text": "hello"})
"""

import json
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from e2e_project import Project
from plain_http import PLAIN
from served_hub import META, MODERN_META, PATIENCE, Message, ServedHub

from aish.mcp.protocol.mirrored_headers import standard_headers

_TRIES = 20_000
"""Requests in which what is waited for has to happen."""
JSON = {"Content-Type": "application/json"}
BOTH = {**JSON, "Accept": "application/json, text/event-stream"}


class HttpHub(ServedHub):
    """A running `aish serve` that listens for HTTP on a port of 127.0.0.1, or where it is told."""

    def __init__(
        self,
        project: Project,
        *arguments: str | Path,
        listen: str = "127.0.0.1:0",
        token: str | None = None,
        ahead: int = 0,
    ) -> None:
        super().__init__(project, *arguments, "--http", listen, ahead=ahead)
        self.clients: list[httpx.Client] = []
        self._token = token
        self._project = project

    def __enter__(self) -> Self:
        super().__enter__()
        self.url = self.addresses()[0]
        return self

    def __exit__(self, *details: object) -> None:
        for client in self.clients:
            client.close()
        super().__exit__(*details)

    @property
    def token(self) -> str:
        """The token of its usual client: the one that was made, if it was not told which."""
        return (
            self._token
            or (self._project.served_state() / ".aish" / "token").read_text("ascii").strip()
        )

    @property
    def base(self) -> str:
        """`http://HOST:PORT`."""
        return self.url.rpartition("/")[0]

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    def client(self, token: str | None = None, **options: Any) -> "HttpClient":
        """A client with a token: the one that was made, if it is not told which."""
        bearer = {"Authorization": f"Bearer {token or self.token}"}
        options = {"verify": PLAIN, **options}
        client = httpx.Client(headers={**BOTH, **bearer}, timeout=PATIENCE, **options)
        self.clients.append(client)
        return HttpClient(client, self.url)

    def until_counted(self, text: str) -> None:
        """Wait until a line of the metrics begins with this."""
        client = self.client().http
        found = ""
        for _ in range(_TRIES):
            found = client.get(f"{self.base}/metrics").text
            if any(line.startswith(text) for line in found.splitlines()):
                return
        raise AssertionError(f"`{text}` was not counted\n{found}")

    def until_ready(self, status: int) -> None:
        """Wait until `/readyz` has this status."""
        with httpx.Client(timeout=PATIENCE, verify=PLAIN) as client:
            found = (client.get(f"{self.base}/readyz").status_code for _ in range(_TRIES))
            assert status in found, f"`/readyz` is not {status}"

    def until_listening(self, port: int) -> None:
        """Wait until somebody listens on a port of 127.0.0.1."""
        for _ in range(_TRIES):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.until_ready(200)
        raise AssertionError(f"nobody listens on {port}")

    def connect(self) -> socket.socket:
        """A connection that nothing was sent on."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    @contextmanager
    def leaving(self, message: Message, headers: Mapping[str, str]) -> Generator[None]:
        """A request whose client leaves at the end of the block, without its answer."""
        body = json.dumps(message).encode()
        lines = [f"{name}: {value}" for name, value in headers.items()]
        with self.connect() as connection:
            connection.sendall(self.head(*lines, f"Content-Length: {len(body)}") + body)
            yield

    def raw(self, data: bytes) -> bytes:
        """All that it answers to these bytes until it closes the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def head(self, *lines: str, path: str = "/mcp", method: str = "POST") -> bytes:
        """The head of a request with a token and `lines`."""
        first = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        bearer = f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
        return (first + bearer + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


class HttpClient:
    """A client with a token, and at most one session."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self.http = client
        self.url = url
        self.session: dict[str, str] = {}
        self.version = ""
        self._number = 0

    def post(self, message: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """The answer to a message, as it is."""
        return self.http.post(self.url, json=message, headers={**self.session, **(headers or {})})

    def modern(
        self, method: str, params: Message | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """The answer to a request of the stateless era, with the headers that it has to have."""
        self._number += 1
        message = modern_request(self._number, method, params)
        wanted = {**modern_headers(message), **(headers or {})}
        return self.http.post(self.url, json=message, headers=wanted)

    def begin(self, version: str = "2025-11-25", capabilities: Message | None = None) -> Message:
        """The handshake; what the server says of itself."""
        self.session = {}
        found = self.post(initialize(version, capabilities))
        assert found.status_code == 200, found.text
        self.session = {"Mcp-Session-Id": found.headers["mcp-session-id"]}
        result: Message = found.json()["result"]
        self.version = result["protocolVersion"]
        if self.version >= "2025-06-18":
            self.session["MCP-Protocol-Version"] = self.version
        told = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (told.status_code, told.content) == (202, b"")
        return result

    def ask(self, method: str, params: Message | None = None) -> Message:
        """The answer to a request in the session, or of the stateless era without one."""
        if not self.session:
            return last_message(self.modern(method, params))
        self._number += 1
        message: Message = {"jsonrpc": "2.0", "id": self._number, "method": method}
        return last_message(self.post(message if params is None else {**message, "params": params}))

    def tools(self) -> list[Message]:
        found: list[Message] = self.ask("tools/list")["result"]["tools"]
        return found

    def call(self, name: str, arguments: Message | None = None, **params: Any) -> Message:
        found = self.ask("tools/call", {"name": name, "arguments": arguments or {}, **params})
        assert "result" in found, found
        result: Message = found["result"]
        return result

    @contextmanager
    def stream(self, last: str | None = None) -> "Generator[Iterator[Event]]":
        """The events of the session's stream, or what follows the event `last`."""
        headers = {**self.session, "Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        with self.http.stream("GET", self.url, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response)

    @contextmanager
    def opened(self, method: str, params: Message | None = None) -> "Generator[Iterator[Event]]":
        """The events of the answer to a request, as they come."""
        self._number += 1
        message: Message = modern_request(self._number, method, params)
        headers = modern_headers(message)
        if self.session:
            message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
            headers = self.session
        with self.http.stream("POST", self.url, json=message, headers=headers) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            yield events_of(response)


@dataclass
class Event:
    """An event of a stream: its id, and its message; one without data has an empty one."""

    id: str
    message: Message


def events_of(response: httpx.Response) -> "Iterator[Event]":
    """The events of a stream, as they come."""
    id, data = "", None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            id = value
        elif name in {"data", "data:"}:
            data = value
        elif not line and data is not None:
            yield Event(id, json.loads(data) if data else {})
            id, data = "", None


def last_message(response: httpx.Response) -> Message:
    """The answer, whether it came as JSON or at the end of a stream."""
    if response.headers["content-type"].startswith("text/event-stream"):
        *_, last = events_of(response)
        return last.message
    found: Message = response.json()
    return found


def initialize(version: str = "2025-11-25", capabilities: Message | None = None) -> Message:
    """The first request of a session."""
    params = {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def modern_request(id: Any, method: str, params: Message | None = None) -> Message:
    """A request of the stateless era."""
    params = dict(params or {})
    params["_meta"] = {**MODERN_META, **params.get("_meta", {})}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def modern_headers(message: Message) -> dict[str, str]:
    """The headers that it has to have."""
    version = str(message["params"]["_meta"][f"{META}protocolVersion"])
    standard = dict(standard_headers(message["method"], message["params"]))
    return {"MCP-Protocol-Version": version, **standard}


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the other side closes the connection."""
    held = b""
    connection.settimeout(PATIENCE)
    try:
        while piece := connection.recv(65536):
            held += piece
    except ConnectionResetError:
        pass
    return held
