"""`aish serve` as a process, and a client at its standard streams that speaks raw JSON lines.

with ServedHub(project, "p.yaml") as hub:
    hub.begin()
    hub.call("s__echo", {"text": "hello"})
"""

import json
import os
import queue
import select
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Self

from cli_process import start_process
from e2e_project import Project
from patience import is_ready

PATIENCE = 60.0
META = "io.modelcontextprotocol/"
MODERN_META: Mapping[str, Any] = {
    f"{META}protocolVersion": "2026-07-28",
    f"{META}clientInfo": {"name": "test", "version": "1"},
    f"{META}clientCapabilities": {},
}
Message = dict[str, Any]


class LineClient:
    """A client that speaks raw JSON lines; what it reads are messages, or nothing."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.lines: list[bytes] = []
        self._number = 0
        self._passed: list[Message] = []
        self._lines: queue.Queue[bytes | None] = queue.Queue()

    @property
    def stderr(self) -> str:
        """What the server says beside its messages, as far as this client sees it."""
        return ""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def send(self, *messages: Any) -> None:
        """Messages, all in one write."""
        self.write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))

    def request(self, method: str, params: Message | None = None, *, modern: bool = False) -> int:
        """Send a request; its id."""
        self._number += 1
        message: Message = {"jsonrpc": "2.0", "id": self._number, "method": method}
        if params is not None or modern:
            message["params"] = dict(params or {})
        if modern:
            meta = {**MODERN_META, **message["params"].get("_meta", {})}
            message["params"]["_meta"] = meta
        self.send(message)
        return self._number

    def until(self, is_it: Callable[[Message], bool]) -> Message:
        """The next message that is the one that is waited for; others are in `seen`."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"nothing came\n{self.seen}\n{self.stderr}") from None
            assert line is not None, f"the output ended\n{self.seen}\n{self.stderr}"
            found = json.loads(line)
            self.lines.append(line)
            self.seen.append(found)
            if is_it(found):
                return found  # type: ignore[no-any-return]  # JSON
            if isinstance(found, dict):
                self._passed.append(found)

    def answer(self, number: Any) -> Message:
        """The answer to a request, result or error; it may have come while another was awaited."""

        def is_it(one: Message) -> bool:
            return one.get("id") == number and "method" not in one

        for at, one in enumerate(self._passed):
            if is_it(one):
                return self._passed.pop(at)
        return self.until(is_it)

    def answers(self, *numbers: Any) -> list[Message]:
        """The answers to several requests, in whatever order they come."""
        return [self.answer(number) for number in numbers]

    def notification(self, method: str) -> Message:
        """The next notification of a method."""
        return self.until(lambda one: one.get("method") == method)

    def ask(self, method: str, params: Message | None = None, *, modern: bool = False) -> Message:
        return self.answer(self.request(method, params, modern=modern))

    def begin(self, version: str = "2025-11-25", capabilities: Message | None = None) -> Message:
        """The handshake; what the server says of itself."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        found = self.ask("initialize", params)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found["result"]  # type: ignore[no-any-return]  # JSON

    def tools(self, *, modern: bool = False) -> list[Message]:
        found = self.ask("tools/list", modern=modern)
        assert "result" in found, found
        return found["result"]["tools"]  # type: ignore[no-any-return]  # JSON

    def call(self, name: str, arguments: Message | None = None, *, modern: bool = False) -> Message:
        params = {"name": name, "arguments": arguments or {}}
        found = self.ask("tools/call", params, modern=modern)
        assert "result" in found, found
        return found["result"]  # type: ignore[no-any-return]  # JSON


class ServedHub(LineClient):
    """A running `aish serve`; every line of its output has to be a message.

    A client that does not `read` leaves all of it in the pipe. The clock of the process is so many
    seconds `ahead`.
    """

    def __init__(
        self, project: Project, *arguments: str | Path, read: bool = True, ahead: int = 0
    ) -> None:
        aish = project.aish
        self.state = project.served_state()
        driver = Path(__file__).with_name("clock_driver.py")
        program = [*aish.python, str(driver), str(ahead)] if ahead else [*aish.python, "-m", "aish"]
        self.process = start_process(
            [*program, "serve", *map(str, arguments)],
            cwd=project.folder,
            env=aish.env,
            piped=True,
            warm=aish.warm,
        )
        super().__init__()
        self._stderr = b""
        self._is_told = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads if read else self._threads[1:]:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    @property
    def stderr(self) -> str:
        return self._stderr.decode("utf-8", "replace")

    @property
    def audit(self) -> list[Message]:
        """The records of its audit log, but for one that is being written."""
        log = self.state / "audit" / f"audit-{self.process.pid}.jsonl"
        whole = log.read_text("ascii").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def write(self, data: bytes) -> None:
        stream = self.process.stdin
        assert stream is not None
        stream.write(data)
        stream.flush()

    def stderr_with(self, text: str, count: int = 1) -> str:
        """What it says on stderr, once `text` is in it so many times."""
        with self._is_told:
            found = self._is_told.wait_for(lambda: self.stderr.count(text) >= count, PATIENCE)
        assert found, f"`{text}` was not told {count} times\n{self.stderr}"
        return self.stderr

    def addresses(self) -> list[str]:
        """Where it listens, in the order of its options, once it does."""
        self.stderr_with("listening on ")
        named = json.loads((self.state / "listeners.json").read_text("ascii"))
        (own,) = (one for one in named["processes"] if one["pid"] == self.process.pid)
        return [one["listen"] for one in own["listeners"]]

    def end_input(self) -> None:
        stream = self.process.stdin
        assert stream is not None
        stream.close()

    def signal(self, kind: signal.Signals) -> None:
        self.process.send_signal(kind)

    def finish(self) -> int:
        """The exit code, once it has ended; what was not read yet is in `seen`."""
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self.seen.append(json.loads(line))
        return int(code)

    def _read(self, stream: IO[bytes]) -> None:
        held = b""
        while piece := os.read(stream.fileno(), 65536):
            held += piece
            *whole, held = held.split(b"\n")
            for line in whole:
                self._lines.put(line)
        if held:
            self._lines.put(held)
        self._lines.put(None)

    def _drain(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 65536):
            with self._is_told:
                self._stderr += piece
                self._is_told.notify_all()


class SocketClient(LineClient):
    """A client at a socket file, or at a TCP port with its token in its first message."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        read: bool = True,
    ) -> None:
        super().__init__()
        kind, _, rest = address.partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self.socket.connect(rest)
            except OSError:
                self.socket.close()
                raise
        else:
            host, _, port = rest.removeprefix("//").rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)), PATIENCE)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        # One TLS connection must not be used by two threads at once: neither waits inside of it.
        self._encrypted = threading.Lock() if tls is not None else None
        self.socket.settimeout(PATIENCE if tls is None else 0)
        self._token = token
        self._thread = threading.Thread(target=self._receive, daemon=True)
        if read:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        with suppress(OSError), self._encrypted or nullcontext():
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self.socket.close()

    def write(self, data: bytes) -> None:
        if self._encrypted is None:
            self.socket.sendall(data)
            return
        left = memoryview(data)
        while left:
            with self._encrypted, suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left = left[self.socket.send(left) :]
                continue
            assert is_ready(self.socket.fileno(), PATIENCE, select.POLLOUT)

    def send(self, *messages: Any) -> None:
        """Messages, all in one write; the first one of all has the token."""
        if self._token is not None:
            first = dict(messages[0])
            meta = {**first.get("params", {}).get("_meta", {}), "aish/token": self._token}
            first["params"] = {**first.get("params", {}), "_meta": meta}
            messages, self._token = (first, *messages[1:]), None
        super().send(*messages)

    def rest(self) -> list[Message]:
        """What comes until the server closes the connection."""
        found = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            found.append(json.loads(line))
        return found

    def raw_rest(self) -> bytes:
        """The same as bytes, for a client that does not `read`."""
        found = b""
        with suppress(ConnectionResetError):
            while piece := self.socket.recv(65536):
                found += piece
        return found

    def _read(self) -> bytes:
        if self._encrypted is None:
            return self.socket.recv(65536)
        while True:
            with self._encrypted, suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return self.socket.recv(65536)
            if not is_ready(self.socket.fileno(), PATIENCE):
                raise TimeoutError

    def _receive(self) -> None:
        held = b""
        with suppress(OSError):
            while piece := self._read():
                *whole, held = (held + piece).split(b"\n")
                for line in whole:
                    self._lines.put(line)
        self._lines.put(None)


def flood(count: int, size: int) -> list[Message]:
    """The handshake, and calls of `s__big` with answers of so many bytes.

    They are for one write: who does not read their answers may be gone before a second one.
    """
    params: Message = {"protocolVersion": "2025-11-25", "capabilities": {}}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    big = {"name": "s__big", "arguments": {"n": size}}
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": big}
    return [begin, *({**call, "id": number} for number in range(1, count + 1))]


def text_of(result: Message) -> str:
    """The text of a tool's result."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")
