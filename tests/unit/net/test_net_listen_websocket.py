"""A server of WebSockets: clients that are too slow, and what ends with it (K75, X6, X11)."""

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from anyio.from_thread import start_blocking_portal
from waits import MovedClock

from aish.net.listen.access import Access
from aish.net.listen.addresses import Address
from aish.net.listen.sockets import listen_on
from aish.net.listen.tokens import ClientToken, Tokens
from aish.net.listen.websocket import (
    SocketClient,
    SocketLimits,
    SocketServer,
    WebSocketService,
)
from aish.system.clock import SystemClock

TOKEN = "t" * 40
HEAD = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    f"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer {TOKEN}\r\n"
)


def echo(client: SocketClient, text: str) -> None:
    if text == "fail":
        raise ValueError("a fault of the service")
    client.send(text.encode())


@asynccontextmanager
async def served(
    limits: SocketLimits, faults: list[Exception]
) -> AsyncGenerator[tuple[SocketServer, int]]:
    conversation = WebSocketService(lambda _: None, echo, lambda _: None, lambda _: b"")
    tokens = Tokens([ClientToken("me", frozenset(), TOKEN)], SystemClock())
    access = Access(tokens, frozenset(), lambda _: True)
    with listen_on([Address(host="127.0.0.1")]) as (listener,):
        server = SocketServer("/ws", "test", listener, access, conversation, faults.append, limits)
        async with server.serve_clients():
            yield server, listener.address.port


@contextmanager
def server_of(
    limits: SocketLimits, faults: list[Exception], clock: MovedClock | None = None
) -> Generator[tuple[SocketServer, int]]:
    options = None if clock is None else {"loop_factory": clock.loop}
    with (
        start_blocking_portal(backend_options=options) as portal,
        portal.wrap_async_context_manager(served(limits, faults)) as found,
    ):
        yield found


def to_the_end(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while more := connection.recv(65536):
            data += more
    return data


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def shaken(port: int) -> socket.socket:
    connection = opened(port)
    connection.sendall((HEAD.format(port=port) + "\r\n").encode())
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += connection.recv(1)
    assert data.startswith(b"HTTP/1.1 101")
    return connection


def test_who_is_too_slow_is_cut_off() -> None:
    # A handshake has as much time as a message: only what is not to come in time is out of time.
    clock, limits = MovedClock(), SocketLimits(receive=60)
    with server_of(limits, [], clock) as (server, port):
        with opened(port) as silent:
            clock.run_out(60)
            assert to_the_end(silent) == b""
        with opened(port) as slow:
            slow.sendall(HEAD.format(port=port).encode())
            clock.run_out(60)
            assert to_the_end(slow).startswith(b"HTTP/1.1 408 ")
        for begun in (
            b"\x01\x82\0\0\0\0hi",  # a first part, and no other
            b"\x81\xfe\xff\xff\0\0\0\0hi",  # a frame that does not end
            b"\x81",
        ):
            with shaken(port) as client:
                client.sendall(begun)
                clock.run_out(60)
                assert b"did not arrive within 60 seconds" in to_the_end(client), begun
        with shaken(port) as client:
            client.sendall(b"\x81\x82\0\0\0\0hi")
            assert client.recv(4) == b"\x81\x02hi"
            assert len(server.clients) == 1, "whoever is only silent stays"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\x81\x82\0\0\0\0hi", b"\x81\x02hi"),
        (b"\x89\x82\0\0\0\0hi", b"\x8a\x02hi"),
        (b"\x01\x81\0\0\0\0h\x80\x81\0\0\0\0i", b"\x81\x02hi"),
    ],
    ids=["message", "ping", "parts"],
)
def test_the_time_for_a_message_begins_with_each_of_them(sent: bytes, answer: bytes) -> None:
    """A client that sends without pause always ends within a frame (issue 27, C)."""
    clock, limits = MovedClock(), SocketLimits(receive=60, ping=3600)
    with server_of(limits, [], clock) as (server, port), shaken(port) as client:
        client.sendall(sent[:3])
        for _ in range(4):
            clock.put_forward(40)
            client.sendall(sent[3:] + sent[:3])
            assert client.recv(4, socket.MSG_WAITALL) == answer
        assert len(server.clients) == 1


def test_pings_between_the_parts_of_a_message_give_it_no_more_time() -> None:
    clock, limits = MovedClock(), SocketLimits(receive=60, ping=3600)
    with server_of(limits, [], clock) as (_, port), shaken(port) as client:
        client.sendall(b"\x01\x81\0\0\0\0h\x89\x80\0\0\0\0")
        assert client.recv(2) == b"\x8a\0"
        clock.put_forward(40)
        client.sendall(b"\x89\x80\0\0\0\0")
        assert client.recv(2) == b"\x8a\0"
        clock.put_forward(40)
        assert b"did not arrive within 60 seconds" in to_the_end(client)


MESSAGE, PING, CLOSE = (
    b"\x81\x82\0\0\0\0hi",
    b"\x89\x80\0\0\0\0",
    b"\x88\x82\0\0\0\0\x03\xe8",
)


@pytest.mark.parametrize(
    ("frames", "answers"),
    [
        ([MESSAGE, MESSAGE, CLOSE], b"\x81\x02hi\x81\x02hi\x88\x02\x03\xe8"),
        ([MESSAGE, PING, CLOSE, MESSAGE], b"\x81\x02hi\x8a\0\x88\x02\x03\xe8"),
        ([MESSAGE, b"\x82\x80\0\0\0\0", MESSAGE], b"\x81\x02hi\x88\x13\x03\xebmessages are text"),
        ([MESSAGE, b"\xc1\x80\0\0\0\0"], b"\x81\x02hi\x88\x19\x03\xeareserved bits must be 0"),
    ],
    ids=["close", "after", "binary", "broken"],
)
def test_what_comes_before_the_last_frame_is_answered_before_it(
    frames: list[bytes], answers: bytes
) -> None:
    """However the frames come, in one read or in several (issue 27, C)."""
    with server_of(SocketLimits(), []) as (_, port):
        with shaken(port) as client:
            client.sendall(b"".join(frames))
            assert to_the_end(client) == answers
        head = (HEAD.format(port=port) + "\r\n").encode()
        with opened(port) as client:
            client.sendall(head + b"".join(frames))
            begun, _, rest = to_the_end(client).partition(b"\r\n\r\n")
            assert begun.startswith(b"HTTP/1.1 101 ")
            assert rest == answers
        with opened(port) as client:
            client.sendall(head.replace(b"Bearer t", b"Bearer u") + b"".join(frames))
            assert to_the_end(client).startswith(b"HTTP/1.1 401 ")


def test_who_does_not_answer_or_read_is_cut_off() -> None:
    with server_of(SocketLimits(ping=0.1), []) as (_, port), shaken(port) as silent:
        assert to_the_end(silent) == b"\x89\x00"
    text = b"\x81\xff" + (1 << 20).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * (1 << 20)
    with server_of(SocketLimits(write=0.2), []) as (server, port), shaken(port) as deaf:
        with suppress(ConnectionError):
            while True:
                deaf.sendall(text)
        assert list(server.clients) == []


def test_a_head_is_bounded_and_what_is_no_request_is_refused() -> None:
    with server_of(SocketLimits(), []) as (_, port):
        for sent, answer in (
            (HEAD.format(port=port) + "X: " + "x" * 20_000, b"HTTP/1.1 431 "),
            (HEAD.format(port=port).replace("GET", "POST") + "\r\n", b"HTTP/1.1 405 "),
            (
                HEAD.format(port=port).replace("Upgrade: websocket\r\n", "") + "\r\n",
                b"HTTP/1.1 426",
            ),
            (
                HEAD.format(port=port).replace("Version: 13", "Version: 12") + "\r\n",
                b"HTTP/1.1 400 ",
            ),
            ("\x16\x03\x01 hello\r\n\r\n", b""),
        ):
            with opened(port) as connection:
                connection.sendall(sent.encode())
                assert to_the_end(connection).startswith(answer), sent[:40]


def test_a_fault_of_the_service_ends_one_connection() -> None:
    faults: list[Exception] = []
    with (
        server_of(SocketLimits(), faults) as (_, port),
        shaken(port) as other,
        shaken(port) as client,
    ):
        client.sendall(b"\x81\x84\0\0\0\0fail")
        assert to_the_end(client) == b""
        other.sendall(b"\x81\x82\0\0\0\0hi")
        assert other.recv(4) == b"\x81\x02hi"
    assert [str(fault) for fault in faults] == ["a fault of the service"]
