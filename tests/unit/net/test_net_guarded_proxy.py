"""The proxy that a browser is given (K71): nothing gets past the address guard."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream
from web_server import WebServer, answer, numbers

from aish.net import guarded_proxy as limits
from aish.net.address_guard import Destination, Resolve
from aish.net.guarded_client import destination_of
from aish.net.guarded_proxy import GuardedProxy, RefusedRequest, open_guarded_proxy

pytestmark = pytest.mark.anyio

PUBLIC = "93.184.216.34"


@asynccontextmanager
async def opened(
    *allow: str, resolve: Resolve = numbers, idle_seconds: float = 30
) -> AsyncGenerator[GuardedProxy]:
    """A proxy that serves this process."""
    found = [destination_of(text) for text in allow]
    async with open_guarded_proxy(allow=found, resolve=resolve, idle_seconds=idle_seconds) as proxy:
        proxy.admit(os.getsid(0))
        yield proxy


async def connected(proxy: GuardedProxy) -> SocketStream:
    host, _, port = proxy.address.partition(":")
    return await anyio.connect_tcp(host, int(port))


async def all_of(stream: SocketStream) -> bytes:
    data = b""
    with anyio.fail_after(60):
        async for piece in stream:
            data += piece
    return data


async def asked(proxy: GuardedProxy, request: bytes) -> bytes:
    async with await connected(proxy) as stream:
        await stream.send(request)
        return await all_of(stream)


def get(url: str, *lines: str) -> bytes:
    host = url.split("/")[2]
    return "\r\n".join([f"GET {url} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


def resolving(*answers: Sequence[str]) -> tuple[Resolve, list[tuple[str, int]]]:
    """A look-up that gives these answers one after the other, the last one for ever."""
    asked_for: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> Sequence[str]:  # ruff: ignore[unused-async] - a `Resolve`
        asked_for.append((host, port))
        return answers[min(len(asked_for), len(answers)) - 1]

    return resolve, asked_for


def only(proxy: GuardedProxy) -> RefusedRequest:
    (refusal,) = proxy.refusals()
    return refusal


async def test_an_allowed_server_is_asked_in_the_form_of_a_server() -> None:
    with WebServer({"/a": answer(b"hello")}) as server:
        async with opened(server.destination) as proxy:
            got = await asked(
                proxy,
                get(
                    f"{server.url}/a",
                    "Proxy-Connection: keep-alive",
                    "Proxy-Authorization: Basic eDp5",
                    "Upgrade: websocket",
                    "Cookie: c=1",
                ),
            )
    head = server.heads[0]
    assert head.startswith(b"GET /a HTTP/1.1\r\nHost: " + server.destination.encode())
    assert b"Connection: close" in head
    assert b"Cookie: c=1" in head
    assert b"Proxy" not in head
    assert b"Upgrade" not in head
    assert got.endswith(b"hello")
    assert got.count(b"Connection: close") == 1
    assert proxy.refused == 0


async def test_a_body_is_sent_on_and_nothing_behind_it() -> None:
    bodies = []

    def page(visit: object) -> None:
        bodies.append(visit.body())  # type: ignore[attr-defined]  # a `Visit`
        visit.send(answer(b"ok"))  # type: ignore[attr-defined]  # the same

    with WebServer({"/form": page}) as server:
        async with opened(server.destination) as proxy:
            post = get(f"{server.url}/form", "Content-Length: 5").replace(b"GET", b"POST", 1)
            assert (await asked(proxy, post + b"hello")).endswith(b"ok")
            smuggled = await asked(proxy, post + b"helloGET / HTTP/1.1\r\n\r\n")
    assert bodies == [b"hello"]
    assert b"400" in smuggled.split(b"\r\n")[0]


async def test_a_tunnel_carries_both_directions_until_both_have_ended() -> None:
    with WebServer({"/": answer(b"inside")}) as server:
        async with opened(server.destination) as proxy, await connected(proxy) as stream:
            await stream.send(f"CONNECT {server.destination} HTTP/1.1\r\n\r\n".encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
            await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await stream.send_eof()
            assert (await all_of(stream)).endswith(b"inside")


SPELLINGS = (
    *("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f.1", "127.1"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "169.254.169.254", "10.0.0.1", "LOCALHOST."),
    *("[64:ff9b::7f00:1]", "192.168.1.1", "[fe80::1]", "[::]"),
)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("host", SPELLINGS)
@pytest.mark.parametrize("form", ["CONNECT", "GET"])
async def test_no_spelling_of_this_machine_is_dialled(host: str, form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for wanted, word in ((f"{host}:80", b"public"), (f"{host}:{port}", b"is blocked")):
            request = (
                f"CONNECT {wanted} HTTP/1.1\r\n\r\n".encode()
                if form == "CONNECT"
                else get(f"http://{wanted}/")
            )
            async with opened() as proxy:
                got = await asked(proxy, request)
            assert got.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 ", b"HTTP/1.1 400 ")), got
            if got.startswith(b"HTTP/1.1 403 "):
                assert word in got
            assert proxy.refused == 1
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_one_address_that_is_not_public_is_enough() -> None:
    resolve, _ = resolving([PUBLIC, "127.0.0.1"])
    async with opened(resolve=resolve) as proxy:
        got = await asked(proxy, get("http://two.example/"))
    assert got.startswith(b"HTTP/1.1 403 Forbidden")
    assert only(proxy).code == "blocked"
    assert only(proxy).destination == Destination("two.example", 80)
    assert "`two.example` has an address that is not public" in only(proxy).message


async def test_each_request_is_looked_up_again_and_dialled_where_it_was_checked() -> None:
    with WebServer({"/": answer(b"ok")}) as server:
        name = f"name.example:{server.port}"
        resolve, asked_for = resolving(["127.0.0.1"])
        async with opened(name, resolve=resolve) as proxy:
            for _ in range(2):
                assert (await asked(proxy, get(f"http://{name}/"))).endswith(b"ok")
            got = await asked(proxy, get("http://name.example/"))
    assert asked_for == [("name.example", server.port)] * 2 + [("name.example", 80)]
    assert got.startswith(b"HTTP/1.1 403 ")
    assert server.connections == 2


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        b"GET http://u:p@a.example/ HTTP/1.1\r\n\r\n",
        b"GET http://a.example\\@b/ HTTP/1.1\r\n\r\n",
        b"GET http://a.example:99999/ HTTP/1.1\r\n\r\n",
        b"GET http://a.example:/ HTTP/1.1\r\n\r\n",
        b"GET http://a.example/ HTTP/2\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\n bad: 1\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nA: 1\nHost: b\r\n\r\n",
        b"POST http://a.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"CONNECT a.example HTTP/1.1\r\n\r\n",
        b"CONNECT a.example:0 HTTP/1.1\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\n\r\nearly",
        b"\0\r\n\r\n",
    ],
)
async def test_what_is_not_plainly_for_a_proxy_is_refused(request_: bytes) -> None:
    resolve, asked_for = resolving([PUBLIC])
    async with opened(resolve=resolve) as proxy:
        got = await asked(proxy, request_)
    assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert only(proxy).code == "not_valid"
    assert asked_for == []


async def test_a_head_without_an_end_is_not_kept() -> None:
    async with opened() as proxy:
        got = await asked(proxy, b"GET http://a/ HTTP/1.1\r\nA: " + b"a" * (limits.MAX_HEAD + 1))
    assert got.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"hello",
        b"HTTP/0.9 200\r\n\r\n",
        b"",
    ],
)
async def test_an_answer_that_no_server_gives_is_not_passed_on(said: bytes) -> None:
    with WebServer({"/": said}) as server:
        async with opened(server.destination) as proxy:
            got = await asked(proxy, get(f"{server.url}/"))
    assert got.startswith(b"HTTP/1.1 502 Bad Gateway")
    assert only(proxy).code == "unavailable"


async def test_interim_answers_are_passed_on() -> None:
    both = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answer(b"late")
    with WebServer({"/": both}) as server:
        async with opened(server.destination) as proxy:
            got = await asked(proxy, get(f"{server.url}/"))
    assert got.startswith(b"HTTP/1.1 103 ")
    assert got.endswith(b"late")


@pytest.mark.requirement("K71")
async def test_nobody_is_served_before_the_browser_is_known() -> None:
    with WebServer({"/": answer(b"ok")}) as server:
        async with open_guarded_proxy(allow=[destination_of(server.destination)]) as proxy:
            got = await asked(proxy, get(f"{server.url}/"))
    assert b"one browser only" in got
    assert server.connections == 0


async def test_another_program_of_the_same_user_is_not_served() -> None:
    with WebServer({"/": answer(b"ok")}) as server:
        async with opened(server.destination) as proxy:
            host, _, port = proxy.address.partition(":")
            program = (
                "import socket,sys\n"
                f"s=socket.create_connection(({host!r},{port}))\n"
                f"s.sendall(b'CONNECT {server.destination} HTTP/1.1\\r\\n\\r\\n')\n"
                "sys.stdout.buffer.write(s.makefile('rb').read())"
            )
            done = await anyio.run_process([sys.executable, "-c", program], start_new_session=True)
            own = await anyio.run_process(
                [sys.executable, "-c", program.replace(".read()", ".readline()")],
                stderr=subprocess.STDOUT,
            )
    assert b"this proxy serves one browser only" in done.stdout
    assert own.stdout.startswith(b"HTTP/1.1 200 ")
    assert proxy.refused == 0


async def test_a_tunnel_that_carries_nothing_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        destination = f"127.0.0.1:{listener.getsockname()[1]}"
        async with opened(destination, idle_seconds=0.05) as proxy:
            got = await asked(proxy, f"CONNECT {destination} HTTP/1.1\r\n\r\n".encode())
    assert got == b"HTTP/1.1 200 Connection established\r\n\r\n"


async def test_a_connection_carries_no_more_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 200_000)
    with WebServer({"/": lambda visit: visit.send_for_ever(b"x" * 65536)}) as server:
        async with opened(server.destination) as proxy, await connected(proxy) as stream:
            await stream.send(f"CONNECT {server.destination} HTTP/1.1\r\n\r\n".encode())
            await stream.receive()
            await stream.send(b"GET / HTTP/1.1\r\n\r\n")
            got = await all_of(stream)
    assert len(got) <= 200_000
    assert only(proxy).code == "limit"


async def test_more_connections_than_a_browser_opens_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        destination = f"127.0.0.1:{listener.getsockname()[1]}"
        request = f"CONNECT {destination} HTTP/1.1\r\n\r\n".encode()
        async with opened(destination) as proxy:
            streams = [await connected(proxy) for _ in range(2)]
            for stream in streams:
                await stream.send(request)
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            got = await asked(proxy, request)
            for stream in streams:
                await stream.aclose()
    assert got.startswith(b"HTTP/1.1 503 ")
    assert only(proxy).code == "limit"


async def test_an_end_in_the_middle_ends_the_other_side_and_nothing_else() -> None:
    with WebServer({"/": lambda visit: visit.send_for_ever(b"x" * 65536)}) as server:
        async with opened(server.destination) as proxy:
            for request in (
                get(f"{server.url}/"),
                f"CONNECT {server.destination} HTTP/1.1\r\n\r\n".encode(),
            ):
                async with await connected(proxy) as stream:
                    await stream.send(request)
                    await stream.receive()
            closed = await asked(proxy, get("http://127.0.0.1/"))
    assert closed.startswith(b"HTTP/1.1 403")
