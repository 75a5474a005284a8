"""A control API of which a test says each answer: what a real run does too rarely to wait for."""

import json
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

STATUS: dict[str, Any] = {
    "v": 1,
    "run": "20261121T190138Z-release-32be",
    "pipeline": "release",
    "state": "running",
    "exit": None,
    "seconds": 1.5,
    "tokens": None,
    "cost_usd": None,
    "steps": [{"id": "main", "status": "running", "done": 0, "total": 1}],
    "pending": [],
}
QUESTION: dict[str, Any] = {
    "id": "0" * 32,
    "run": STATUS["run"],
    "step": "main",
    "item": None,
    "server": "box",
    "tool": "box__write",
    "arguments": {"text": "one"},
    "digest": "d" * 64,
    "reason": "no rule approves box__write",
    "always": None,
    "asked": "2026-11-21T19:01:38.000Z",
    "expires": None,
    "state": "open",
    "caller_waiting": True,
    "answer": None,
}
EXIT = {"code": 3, "name": "denied", "retryable": False, "reason": "denied", "hint": None}


@dataclass
class Asked:
    """A request, and what answers it."""

    handler: BaseHTTPRequestHandler
    method: str
    path: str
    headers: dict[str, str]
    body: Any

    def say(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.say_bytes(json.dumps(value).encode(), status)

    def say_bytes(self, body: bytes, status: int = 200) -> None:
        """Answer with anything."""
        self.handler.send_response(status)
        self.handler.send_header("Content-Length", str(len(body)))
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def refuse(self, status: int, code: str, message: str = "no", hint: Any = None) -> None:
        """Answer with an error."""
        self.say({"error": {"code": code, "message": message, "hint": hint}}, status)

    def begin_stream(self) -> None:
        """Answer with a stream of events, which ends with its connection."""
        self.handler.close_connection = True
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()

    def tell(self, *events: Any) -> None:
        """Write events to the stream."""
        for one in events:
            self.write(f"id: {one['seq']}\ndata: {json.dumps(one)}\n\n")

    def write(self, text: str) -> None:
        """Write a part of the stream."""
        self.handler.wfile.write(text.encode())
        self.handler.wfile.flush()

    def hang_up(self) -> None:
        """Close the connection without a word."""
        self.handler.close_connection = True


@dataclass
class Peer:
    """A server whose answers are given by a function of the request."""

    answer: Callable[[Asked], None]
    asked: list[Asked] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    def paths(self, method: str | None = None) -> list[str]:
        """What it was asked for."""
        return [one.path for one in self.asked if method in {None, one.method}]

    def __enter__(self) -> Self:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                one = Asked(self, self.command, self.path, headers, body)
                peer.asked.append(one)
                peer.answer(one)

            do_GET = do_POST = do_PUT = handle_any  # ruff: ignore[mixed-case-variable-in-class-scope] - of the library

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                # Clients that hang up are no fault, and the next test may look at stderr.
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)

        self.server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.released.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@contextmanager
def peer_of(answers: Callable[[Asked], None]) -> Generator[Peer]:
    """A server with these answers."""
    with Peer(answers) as peer:
        yield peer


def event(seq: int, kind: str = "notice", **more: Any) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "time": "2026-11-21T19:01:38.000Z", "type": kind, **more}


def finished(seq: int) -> dict[str, Any]:
    return event(seq, "run.finished", status="denied", exit=EXIT)
