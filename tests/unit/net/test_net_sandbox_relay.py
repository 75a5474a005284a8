"""The network of a sandbox by real bubblewrap: listed destinations are reached, and no others."""

import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
from sandboxed_network import command_in_sandbox, result_in_sandbox, sandbox_of
from web_server import WebServer, answer

from aish.net import sandbox_relay
from aish.net.address_guard import Resolve
from aish.net.destinations import resolve_network
from aish.system.process.sandbox import sandbox_report

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(sandbox_report(os.environ).bubblewrap), reason="needs bubblewrap"),
]
PUBLIC, OTHER = "93.184.216.34", "93.184.216.35"
GET = """
import json, socket, sys
def get(host, port):
    try:
        with socket.create_connection((host, port), 30) as s:
            s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            data = b""
            while piece := s.recv(65536):
                data += piece
        return data.rpartition(b"\\r\\n\\r\\n")[2].decode()
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer({"/": answer("here it is")}) as started:
        yield started


def resolving(found: Mapping[str, Sequence[str] | Callable[[], Sequence[str]]]) -> Resolve:
    async def resolve(host: str, _: int) -> Sequence[str]:  # ruff: ignore[unused-async] - the system's is
        addresses = found[host]
        if callable(addresses):
            return addresses()
        return addresses

    return resolve


@contextmanager
def tcp_server(serve: Callable[[socket.socket], None]) -> Generator[int]:
    """The port of a server that gives each connection to `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.requirement("T4")
async def test_a_listed_destination_is_reached_and_nothing_else(
    server: WebServer, tmp_path: Path
) -> None:
    with WebServer({"/": answer("not listed")}) as other:
        code = f"""{GET}
listed, other = {server.port}, {other.port}
print(json.dumps([get("127.0.0.1", listed), get("localhost", listed), get("127.0.0.1", other),
    get("169.254.169.254", 80), get("{PUBLIC}", 443), get("::1", listed), get("a.example", 443)]))
"""
        result, refused = await result_in_sandbox(code, tmp_path, f"127.0.0.1:{server.port}")

    assert json.loads(result.stdout) == [
        *("here it is", "here it is", "ConnectionRefusedError"),
        *("OSError", "OSError", "ConnectionRefusedError", "gaierror"),
    ]
    assert (other.connections, server.connections) == (0, 2)
    assert refused == [("a.example", "unlisted")]


@pytest.mark.requirement("T5")
async def test_a_name_has_its_real_address_and_is_looked_up_again_for_each_connection(
    server: WebServer, tmp_path: Path
) -> None:
    """Its addresses are those of the start; what DNS says later is where it is connected to."""
    answers = [[OTHER, PUBLIC], ["127.0.0.1"]]
    found = {"api.example": lambda: answers.pop(0) if len(answers) > 1 else answers[0]}
    code = f"""{GET}
print(json.dumps([sorted({{place[0] for *_, place in socket.getaddrinfo("api.example", 80)}}),
    get("api.example", {server.port}), get("{OTHER}", {server.port}), get("{PUBLIC}", 443)]))
"""
    listed = f"api.example:{server.port}"

    result, _ = await result_in_sandbox(code, tmp_path, listed, resolve=resolving(found))

    assert json.loads(result.stdout) == [[OTHER], "here it is", "here it is", "OSError"]


async def test_a_name_that_becomes_private_is_refused_unless_its_port_is_listed(
    tmp_path: Path,
) -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]
    found = {"api.example": lambda: answers.pop(0) if len(answers) > 1 else answers[0]}
    code = f'{GET}\nprint(get("api.example", 443), get("api.example", 443))'

    result, refused = await result_in_sandbox(
        code, tmp_path, "api.example", resolve=resolving(found)
    )

    assert result.stdout == b"ConnectionResetError ConnectionResetError\n"
    assert refused == [("api.example", "not public")]


async def test_hosts_of_one_address_are_each_connected_to_at_that_address(
    server: WebServer, tmp_path: Path
) -> None:
    """Which of both was meant cannot be seen: what DNS says of either later could be wrong."""
    moved = {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
    first = dict.fromkeys(moved, True)

    async def resolve(host: str, _: int) -> Sequence[str]:  # ruff: ignore[unused-async] - the system's is
        if first.pop(host, False):
            return moved[host]
        return [OTHER]

    port = server.port
    code = f'{GET}\nprint([get("a.example", {port}), get("b.example", {port})])'

    result, _ = await result_in_sandbox(
        code, tmp_path, f"a.example:{port}", f"b.example:{port}", resolve=resolve
    )

    assert result.stdout == b"['here it is', 'here it is']\n"


@pytest.mark.requirement("T6")
async def test_its_name_server_knows_the_listed_names_alone_and_tells_each_other_once(
    tmp_path: Path,
) -> None:
    """Over UDP and TCP, as programs ask that read no `/etc/hosts`; nonsense does not stop it."""
    code = """
import json, os, socket, struct
def query(name):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 256, 1, 0, 0, 0) + labels + b"\\0\\0\\1\\0\\1"
def outcome(data):
    return data[3] & 15, ".".join(map(str, data[-4:])) if data[7] else None
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(60)
udp.connect(("127.53.53.53", 53))
def by_udp(name):
    udp.send(query(name))
    return outcome(udp.recv(4096))
def by_tcp(name):
    data = query(name)
    tcp.sendall(struct.pack("!H", len(data)) + data)
    size, = struct.unpack("!H", tcp.recv(2, socket.MSG_WAITALL))
    return outcome(tcp.recv(size, socket.MSG_WAITALL))
for size in range(300):
    udp.send(os.urandom(size % 60))
    udp.send(query("nonsense"))
    while udp.recv(4096)[:2] != b"\\0\\7":
        pass
with socket.create_connection(("127.53.53.53", 53), 60) as broken:
    broken.sendall(b"\\xff\\xff" + b"x" * 100)
for number in range(1_000):
    assert by_udp(f"n{number}.example")[0] == 3
tcp = socket.create_connection(("127.53.53.53", 53), 60)
print(json.dumps([by_udp("api.example"), by_tcp("API.example"), by_tcp("evil.example"),
    by_udp("evil.example"), by_udp("localhost"), open("/etc/resolv.conf").read().split()[1]]))
"""
    result, refused = await result_in_sandbox(
        code, tmp_path, "api.example:80", resolve=resolving({"api.example": [PUBLIC]})
    )

    assert result.stderr == b""
    assert json.loads(result.stdout) == [
        *([0, PUBLIC], [0, PUBLIC], [3, None], [3, None], [0, "127.0.0.1"], "127.53.53.53"),
    ]
    told = [name for name, _ in refused if name.endswith(".example")]
    assert len(refused) == len(set(refused)) == sandbox_relay.MOST_REFUSED
    assert told[:50] == [f"n{number}.example" for number in range(50)]


async def test_a_destination_that_refuses_resets_and_one_that_hangs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_relay, "CONNECT_SECONDS", 0.2)
    with (
        closing(socket.socket()) as closed,
        closing(socket.create_server(("127.0.0.1", 0))) as full,
    ):
        closed.bind(("127.0.0.1", 0))
        full.listen(0)
        down, hangs = closed.getsockname()[1], full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", hangs))
        code = f'{GET}\nprint(get("127.0.0.1", {down}), get("127.0.0.1", {hangs}))'
        result, _ = await result_in_sandbox(
            code, tmp_path, f"127.0.0.1:{down}", f"127.0.0.1:{hangs}"
        )
        for one in waiting:
            one.close()

    assert result.stdout == b"ConnectionResetError ConnectionResetError\n"


async def test_each_side_may_end_alone_and_a_reset_arrives_as_one(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        data = b""
        while piece := connection.recv(65536):
            data += piece
        if data == b"reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.sendall(b"%d" % len(data))

    with tcp_server(serve) as port:
        code = f"""
import socket
def ask(data):
    with socket.create_connection(("127.0.0.1", {port}), 30) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        try:
            return s.recv(100)
        except ConnectionResetError:
            return b"was reset"
print(ask(b"x" * 3_000_000).decode(), ask(b"reset").decode())
"""
        result, _ = await result_in_sandbox(code, tmp_path, f"127.0.0.1:{port}")

    assert result.stdout == b"3000000 was reset\n"


async def test_a_thousand_connections_at_once_all_get_their_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are served at a time: the others wait for their turn."""
    monkeypatch.setattr(sandbox_relay, "MOST_CONNECTIONS", 64)
    code = """
import asyncio, sys
async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
    data = await reader.read()
    writer.close()
    return data.endswith(b"here it is")
async def main(port):
    results = await asyncio.gather(*(ask(port) for _ in range(1_000)))
    print(results.count(True))
asyncio.run(main(int(sys.argv[1])))
"""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer("here it is"))

    with tcp_server(serve) as port:
        argv = [sys.executable, "-I", "-S", "-c", code, str(port)]
        result, _ = await command_in_sandbox(argv, tmp_path, f"127.0.0.1:{port}")

    assert (result.stdout, result.stderr) == (b"1000\n", b"")


STATIC = r"""
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
  if (getaddrinfo(words[1], words[2], &hints, &found)) return 1;
  int peer = socket(found->ai_family, SOCK_STREAM, 0);
  if (connect(peer, found->ai_addr, found->ai_addrlen)) return 2;
  dprintf(peer, "GET / HTTP/1.0\r\n\r\n");
  char data[4096];
  for (int size; (size = read(peer, data, sizeof data)) > 0;) write(1, data, size);
  return 0;
}
"""


def client(name: str, folder: Path) -> list[str]:
    """The words of a program that asks for a page; a host and a port follow."""
    if name == "static":
        (folder / "client.c").write_text(STATIC, "utf-8")
        words = ["cc", "-static", "-w", "-o", str(folder / "client"), str(folder / "client.c")]
        built = subprocess.run(words, capture_output=True, check=False)
        if built.returncode:
            pytest.skip("it cannot be linked statically here")
        return [str(folder / "client")]
    if name == "curl":
        return ["/bin/sh", "-c", 'exec curl -sS "http://$1:$2/"', "-"]
    script = "const [host, port] = process.argv.slice(1);"
    script += "fetch(`http://${host}:${port}/`).then(a => a.text()).then(console.log)"
    script += ".catch(e => { console.error(e.cause.code); process.exit(1) })"
    return ["node", "-e", script, "--"]


@pytest.mark.parametrize(
    ("name", "program"), [("curl", "curl"), ("node", "node"), ("static", "cc")]
)
async def test_programs_that_know_of_no_proxy_reach_a_listed_name_alone(
    name: str, program: str, server: WebServer, tmp_path: Path
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs `{program}`")
    words = client(name, tmp_path)
    listed = f"api.example:{server.port}"

    async def ask(host: str) -> tuple[int, bytes, list[str]]:
        answers = [[PUBLIC], ["127.0.0.1"]]
        found = {"api.example": lambda: answers.pop(0) if len(answers) > 1 else answers[0]}
        argv = [*words, host, str(server.port)]
        result, refused = await command_in_sandbox(argv, tmp_path, listed, resolve=resolving(found))
        return result.exit_code, result.stdout, [name for name, _ in refused]

    code, shown, refused = await ask("api.example")
    other, _, names = await ask("other.example")

    assert (code, shown.strip()[-10:], refused) == (0, b"here it is", [])
    assert other != 0
    assert names == ["other.example"]


async def test_what_was_never_served_is_closed_too(tmp_path: Path) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    network = await resolve_network([])
    relay = sandbox_relay.SandboxRelay(network, sockets, lambda *_: None)

    relay.close()
    await relay.serve()

    assert [opened.fileno() for opened in sockets] == [-1, -1]


async def test_connections_wait_where_no_more_files_may_be_open(
    server: WebServer, tmp_path: Path
) -> None:
    """It is told once; whoever waits is served as soon as there are descriptors again."""
    listed = f"127.0.0.1:{server.port}"
    command = [sys.executable, "-I", "-S", "-c", f'{GET}\nprint(get("127.0.0.1", {server.port}))']
    reading, writing = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = (os.open(os.devnull, os.O_RDWR), writing, 2)
    with os.fdopen(reading, "rb") as output:
        async with sandbox_of(command, tmp_path, listed, streams=streams) as sandbox:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                with anyio.fail_after(60):
                    await sandbox.told.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            with anyio.fail_after(60):
                assert await sandbox.process.wait() == 0
        os.close(streams[0])
        os.close(writing)
        assert output.read() == b"here it is\n"
    assert sandbox.refused == [(listed, "no descriptors")]
