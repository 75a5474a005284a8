"""The process at the other end of a TCP connection: those that the server started are refused."""

import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from listening_server import BEARER, WRITER

from aish.net.tcp_peer import is_refused_peer, local_end, owner_of

REPO = Path(__file__).parents[3]
SUPPORT = REPO / "tests" / "support"
SERVER = """
import sys
import anyio
sys.path.insert(0, sys.argv[1])
from listening_server import serving
from aish.net.listen.addresses import parse_address
from aish.system.process.ancestry import adopt_orphans, is_own_process

async def main():
    adopt_orphans()
    addresses = parse_address("127.0.0.1:0"), parse_address("[::1]:0")
    async with serving(*addresses, access={"is_refused": is_own_process}) as server:
        ports = [str(one.port) for one in server.server.addresses]
        print(ports[0], flush=True)
        command = [sys.executable, "-I", "-c", sys.argv[2], *ports, *sys.argv[3:]]
        async with await anyio.open_process(command, stderr=None) as child:
            print((await child.stdout.receive()).decode().strip(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        print(len(server.bodies), [call.status for call in server.calls], flush=True)

anyio.run(main)
"""
ASK = """
import socket, sys
family, host = getattr(socket, sys.argv[3]), sys.argv[4]
port = int(sys.argv[2] if host == "::1" else sys.argv[1])
client = socket.socket(family)
client.connect((host, port))
head = f"GET /things HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n"
client.sendall((head + sys.argv[5] + "\\r\\n").encode())
print(client.recv(65536).decode().splitlines()[0])
"""
FORKED = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
LEAVING = """
import os, socket, struct, sys
body = b'{"a": 1}'
request = (
    f"POST /things HTTP/1.1\\r\\nHost: 127.0.0.1:{sys.argv[1]}\\r\\n"
    f"Authorization: Bearer {sys.argv[3]}\\r\\nContent-Type: application/json\\r\\n"
    f"Content-Length: {len(body)}\\r\\n\\r\\n"
).encode() + body
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(request)
"""
ENDS = {
    "it has closed its socket": "client.close()",
    "it has reset the connection": (
        "client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
        "client.close()"
    ),
    "its socket is on its way to another process": (
        "near, far = socket.socketpair(socket.AF_UNIX)\n"
        "socket.send_fds(near, [b'x'], [client.fileno()])\n"
        "client.close()\nos.set_inheritable(far.fileno(), True)\n"
        "print('sent', flush=True); sys.stdin.read()"
    ),
}


def served(program: str, *arguments: str) -> tuple[str, str, str]:
    """What a child of a server sees, then what its parent sees, and what the server has done."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(SUPPORT), program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        child = server.stdout.readline().strip()
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"GET /things HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{BEARER}\r\n"
            client.sendall(head.encode())
            parent = client.recv(65536).decode().splitlines()[0]
        done, _ = server.communicate("\n")
    assert server.returncode == 0
    return child, parent, done.strip()


@pytest.mark.requirement("T37")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("before", ["", FORKED], ids=["a child", "an orphan"])
@pytest.mark.parametrize(
    ("family", "host"),
    [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1"), ("AF_INET6", "::ffff:127.0.0.1")],
)
def test_a_process_that_the_server_started_is_refused_on_a_port_even_with_a_token(
    family: str, host: str, before: str
) -> None:
    child, parent, done = served(before + ASK, family, host, BEARER)

    assert child == "HTTP/1.1 403 Forbidden"
    assert parent == "HTTP/1.1 200 OK"
    assert done == "0 [403, 200]"


@pytest.mark.parametrize("end", ENDS)
def test_a_request_whose_sender_cannot_be_found_is_not_read(end: str) -> None:
    leaving = f"{LEAVING}{ENDS[end]}\nprint('gone', flush=True)"
    _, parent, done = served(leaving, WRITER)

    assert parent == "HTTP/1.1 200 OK"
    assert done.startswith("0 ")


@pytest.mark.linux_forms  # by inode
def test_the_owner_of_a_connection_is_found_at_both_ends() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        end = local_end(accepted)
        assert end is not None
        own = Path(f"/proc/self/fd/{client.fileno()}").readlink()
        assert str(own) == f"socket:[{end.inode}]"
        assert owner_of(end.inode) is not None
        assert not is_refused_peer(accepted, lambda _: False, deque())
        assert is_refused_peer(accepted, lambda _: True, deque())
        client.close()
        assert is_refused_peer(accepted, lambda _: False, deque())


LISTENING = """
import encodings.ascii, os, socket  # the other user cannot import anything
from collections import deque
from aish.net.tcp_peer import is_refused_peer
with socket.create_server(("127.0.0.1", 0)) as listener:
    os.setuid(12345)
    listener.settimeout(60)
    print(listener.getsockname()[1], flush=True)
    for _ in range(3):
        with listener.accept()[0] as client:
            print(is_refused_peer(client, lambda pid: False, deque()), flush=True)
            client.sendall(b"x")
"""
HIDING = """
import os, socket, sys
os.setuid(int(sys.argv[2]))  # from here on its descriptors are closed to its user
with socket.socket() as client:
    client.connect(("127.0.0.1", int(sys.argv[1])))
    client.recv(1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_that_hides_is_refused_unless_programs_hide_by_nature(tmp_path: Path) -> None:
    for name in ("other", "aish"):
        (tmp_path / name).write_text(HIDING)
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING], stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        told = []
        for name, user in (("other", "12345"), ("aish", "12345"), ("other", "12346")):
            subprocess.run([sys.executable, tmp_path / name, port, user], check=True)
            told.append(server.stdout.readline().strip())

    assert told == ["True", "False", "False"]
