"""A real HTTP server on 127.0.0.1 whose pages are bytes or programs, and what it was asked.

In threads, so that a test may ask it from an event loop of its own, or from another process.
"""

import _socket
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from aish.net.address_guard import system_addresses

Page = bytes | Callable[["Visit"], None]


class Visit:
    """One request: its head, and the way back."""

    def __init__(self, head: bytes, socket: socket.socket, gone: threading.Event) -> None:
        self.head = head
        self.target = head.split(b" ", 2)[1].decode()
        self.gone = gone
        """The server is being closed."""
        self._socket = socket

    def body(self) -> bytes:
        """What follows the head, by its `Content-Length`; it may have come with the head."""
        head, _, body = self.head.partition(b"\r\n\r\n")
        lengths = [
            line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"content-length" in line
        ]
        while len(body) < int(lengths[0]):
            body += self._socket.recv(65536)
        return body

    def send(self, data: bytes) -> None:
        """Write; `ConnectionError` where nobody reads any more."""
        self._socket.sendall(data)

    def send_for_ever(self, data: bytes, pause: float = 0) -> None:
        """Write again and again until the reader or the test has had enough."""
        while not self.gone.wait(pause):
            self.send(data)


class WebServer:
    """Answers each request by its path; `connections` counts also those that asked nothing."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.pages = dict(pages)
        self.connections = 0
        self.heads: list[bytes] = []
        self._gone = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                outer._talk(self.request, tls)

        class Server(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Readers hang up, as some tests have them do."""

        self._server = Server((host, 0), Handler)
        self.port: int = self._server.server_address[1]
        self.destination = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"{'http' if tls is None else 'https'}://{self.destination}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def targets(self) -> list[str]:
        """What was asked for, in order."""
        return [head.split(b" ", 2)[1].decode() for head in self.heads]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _talk(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        if tls is not None:
            # Python 3.11 loses an encrypted socket that is reset before its handshake.
            if not connection.recv(1, socket.MSG_PEEK):
                return
            connection = tls.wrap_socket(connection, server_side=True)
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                piece = connection.recv(65536)
                if not piece:
                    return
                data += piece
            self.heads.append(data)
            visit = Visit(data, connection, self._gone)
            path = visit.target.partition("?")[0]
            page = self.pages.get(path, answer(b"nothing here", status="404 Not Found"))
            page(visit) if callable(page) else visit.send(page)
            if tls is None:
                connection.shutdown(socket.SHUT_WR)


def answer(
    body: bytes | str = b"",
    kind: str = "text/html; charset=utf-8",
    *,
    status: str = "200 OK",
    **headers: str,
) -> bytes:
    """The bytes of an answer; `_` in the names of headers is `-`."""
    data = body.encode() if isinstance(body, str) else body
    fields = {"content-type": kind, "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + data


def redirect(location: str, status: str = "302 Found") -> bytes:
    """The bytes of a redirect."""
    return answer(b"", status=status, location=location)


async def numbers(host: str, port: int) -> Sequence[str]:
    """The system's look-up; of numbers also where they are not loopback's: that asks nobody."""
    try:
        found = _socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return await system_addresses(host, port)
    return [str(place[0]) for *_, place in found]
