"""A small well-behaved MCP server over streamable HTTP, as a process of its own.

    python tests/support/mcp_http_server.py --port-file F [--era both|legacy|modern] [--token T]

Writes its port into F (complete or not at all) once it listens; the path is `/mcp`. Standard
library only. Ends when its standard input closes, if `--watch-stdin` is given.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
from pathlib import Path

import mcp_offered_resources
import mcp_tools

REASONS = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
STATUS_OF_CODE = {-32022: 400, -32601: 404}


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it are answered one after the other."""

    def __init__(self, era: str, token: str | None, session: str | None) -> None:
        self.era = era
        self.token = token
        self.session = session
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            lines = self.buffer[:end].decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:])
            }
            length = int(headers.get("content-length", "0"))
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.request(lines[0].split(" ")[0], headers, body)

    def request(self, method: str, headers: dict[str, str], body: bytes) -> None:
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            self.send(401, b'{"error":"unauthorized"}')
        elif method != "POST":
            self.send(405, b"")
        else:
            message = json.loads(body)
            begins = message.get("method") == "initialize"
            if self.session and not begins and headers.get("mcp-session-id") != self.session:
                self.send(404, b"")
            else:
                self.message(message)

    def message(self, message: mcp_tools.Message) -> None:
        if mcp_tools.is_crash(message):
            os._exit(3)
        reply = mcp_tools.answer(message, self.era)
        if reply is None:
            self.send(202, b"")
            return
        modern = mcp_tools.version_of(message) is not None and self.era != "legacy"
        code = reply.get("error", {}).get("code")
        status = STATUS_OF_CODE.get(code, 200) if modern else 200
        body = json.dumps(reply, separators=(",", ":")).encode()
        if delay := mcp_tools.delay_of(message):
            asyncio.get_running_loop().call_later(delay, self.send, status, body)
        else:
            self.send(status, body)

    def send(self, status: int, body: bytes) -> None:
        kind = b"content-type: application/json\r\n" if body else b""
        reason = REASONS.get(status, "Error").encode()
        if self.session:
            kind += b"mcp-session-id: %s\r\n" % self.session.encode()
        head = b"HTTP/1.1 %d %s\r\n%scontent-length: %d\r\n\r\n" % (status, reason, kind, len(body))
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(head + body)


async def serve(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    session = secrets.token_hex(8) if arguments.sessions else None
    server = await loop.create_server(
        lambda: Connection(arguments.era, arguments.token, session), "127.0.0.1", arguments.port
    )
    port = server.sockets[0].getsockname()[1]
    if arguments.port_file:
        unfinished = arguments.port_file.with_suffix(".part")
        unfinished.write_text(f"{port}\n")
        unfinished.rename(arguments.port_file)
    else:
        print(port, flush=True)
    if arguments.watch_stdin:
        await loop.run_in_executor(None, sys.stdin.buffer.read)
    else:
        await loop.create_future()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port-file", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--era", choices=("both", "legacy", "modern"), default="both")
    parser.add_argument("--token")
    parser.add_argument("--offers", action="store_true", help="resources and prompts too")
    parser.add_argument("--sessions", action="store_true", help="one, of the handshake era")
    parser.add_argument("--watch-stdin", action="store_true")
    arguments = parser.parse_args()
    if arguments.offers:
        mcp_tools.CAPABILITIES.update(mcp_offered_resources.CAPABILITIES)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
