"""MCP clients over HTTP with nothing in between: their own share of a figure has to be small.

Handshake era, since every peer speaks it. An answer may be JSON or a stream with one message.
"""

import asyncio
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
ACCEPT = "application/json, text/event-stream"


def message(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request as JSON."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def result_of(kind: str, body: bytes, number: int) -> Any:
    """The result in the answer to a request; one of a failed call is none."""
    if kind.startswith("text/event-stream"):
        for line in body.splitlines():
            if line.startswith(b"data:") and b'"id"' in line:
                body = line[5:]
    found = json.loads(body)
    if found.get("id") != number or "result" not in found or found["result"].get("isError"):
        raise RuntimeError(f"not the answer to a call: {body[:300]!r}")
    return found["result"]


class Client:
    """One client that waits for each answer, on one connection."""

    def __init__(self, url: str, token: str | None) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        self._path = place.path
        self._connection = http.client.HTTPConnection(place.hostname, place.port)
        self._headers = {"content-type": "application/json", "accept": ACCEPT}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._number = 0
        self.ask("initialize", HELLO)
        self._send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        self._connection.getresponse().read()

    def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        self._number += 1
        self._send(message(self._number, method, params))
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {body[:300]!r}")
        if session := answer.headers.get("mcp-session-id"):
            self._headers["mcp-session-id"] = session
        return result_of(answer.headers.get("content-type", ""), body, self._number)

    def seconds(self, name: str, arguments: Mapping[str, Any]) -> float:
        """How long a call takes."""
        begun = time.perf_counter()
        self.ask("tools/call", {"name": name, "arguments": arguments})
        return time.perf_counter() - begun

    def close(self) -> None:
        self._connection.close()

    def _send(self, body: bytes) -> None:
        self._connection.request("POST", self._path, body, self._headers)


class Connection(asyncio.Protocol):
    """One connection of a client among many; it reads just as much HTTP as it has to."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.headers: dict[str, str] = {}
        self.events = asyncio.Queue[bytes]()
        self.is_stream = False
        self._held = b""
        self._waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(RuntimeError(f"the connection is lost: {exc}"))

    async def exchange(self, request: bytes) -> bytes:
        """The body of the answer; `headers` are those of it."""
        assert self.transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiting

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self.is_stream:
            if b"data:" in self._held and self._held.endswith(b"\n\r\n"):
                self.events.put_nowait(self._held)
                self._held = b""
            return
        end = self._held.find(b"\r\n\r\n")
        if end < 0 or self._waiting is None or self._waiting.done():
            return
        lines = self._held[:end].decode("latin-1").split("\r\n")
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self.headers[""] = lines[0].split(" ")[1]
        kind = self.headers.get("content-type", "")
        if lines[0].startswith("HTTP/1.1 200") and b"GET" in self._asked:
            self.is_stream, self._held = True, self._held[end + 4 :]
            self._waiting.set_result(b"")
            return
        body = self._body(end + 4)
        if body is not None:
            self.headers["content-type"] = kind
            self._waiting.set_result(body)

    _asked = b""

    def get(self, request: bytes) -> "asyncio.Future[bytes]":
        """Open a stream of events."""
        assert self.transport is not None
        self._asked = b"GET"
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._waiting

    def _body(self, start: int) -> bytes | None:
        if "transfer-encoding" not in self.headers:
            length = int(self.headers.get("content-length", "0"))
            if len(self._held) < start + length:
                return None
            body = self._held[start : start + length]
            self._held = self._held[start + length :]
            return body
        if not self._held.endswith(b"0\r\n\r\n"):
            return None
        pieces, rest = [], self._held[start:]
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        self._held = b""
        return b"".join(pieces)


class AsyncClient:
    """One of many clients, each on a connection of its own."""

    def __init__(self, url: str, token: str | None) -> None:
        self._place = urlsplit(url)
        self._token = token
        self._session = ""
        self._number = 0
        self._head = b""
        self.connection = Connection()
        self.stream: Connection | None = None

    async def open(self) -> "AsyncClient":
        self.connection = await self._connected()
        self._make_head()
        await self.ask("initialize", HELLO)
        self._session = self.connection.headers.get("mcp-session-id", "")
        self._make_head()
        hello = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        await self.connection.exchange(b"POST %b%d\r\n\r\n%b" % (self._head, len(hello), hello))
        return self

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        assert self.connection.transport is not None
        if self.connection.transport.is_closing():  # it was idle for a minute
            self.connection = await self._connected()
        self._number += 1
        body = message(self._number, method, params)
        answer = await self.connection.exchange(
            b"POST %b%d\r\n\r\n%b" % (self._head, len(body), body)
        )
        headers = self.connection.headers
        if headers[""] != "200":
            raise RuntimeError(f"{headers['']}: {answer[:300]!r}")
        return result_of(headers.get("content-type", ""), answer, self._number)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self.ask("tools/call", {"name": name, "arguments": arguments})

    async def listen(self) -> None:
        """Open the stream of what belongs to no request."""
        self.stream = await self._connected()
        head = self._head.removesuffix(b"content-length: ").removesuffix(b"\r\n")
        head = head.replace(b"application/json, ", b"")
        await self.stream.get(b"GET %b\r\n\r\n" % head)

    async def end(self) -> None:
        """End the session."""
        head = self._head.removesuffix(b"content-length: ").removesuffix(b"\r\n")
        await self.connection.exchange(b"DELETE %b\r\n\r\n" % head)
        self.close()

    def close(self) -> None:
        for one in (self.connection, self.stream):
            if one is not None and one.transport is not None:
                one.transport.close()

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        place = self._place
        assert place.hostname is not None
        assert place.port is not None
        _, protocol = await loop.create_connection(Connection, place.hostname, place.port)
        return protocol

    def _make_head(self) -> None:
        lines = [
            f"{self._place.path} HTTP/1.1",
            f"host: {self._place.netloc}",
            "content-type: application/json",
            f"accept: {ACCEPT}",
        ]
        if self._token is not None:
            lines.append(f"authorization: Bearer {self._token}")
        if self._session:
            lines += [f"mcp-session-id: {self._session}", "mcp-protocol-version: 2025-06-18"]
        self._head = "\r\n".join([*lines, "content-length: "]).encode()


async def calls_per_second(
    url: str, token: str | None, name: str, arguments: Mapping[str, Any], calls: int, clients: int
) -> float:
    """How many calls are answered, of so many clients that each wait for their answer."""
    opened = [await AsyncClient(url, token).open() for _ in range(clients)]

    async def some(client: AsyncClient, number: int) -> None:
        for _ in range(number):
            await client.call(name, arguments)

    await asyncio.gather(*(some(client, 5) for client in opened))
    begun = time.perf_counter()
    await asyncio.gather(*(some(client, calls // clients) for client in opened))
    seconds = time.perf_counter() - begun
    for client in opened:
        client.close()
    return calls / seconds
