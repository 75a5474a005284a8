"""Sockets in the network namespace of real bubblewrap, opened while it waits."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager

import anyio
import pytest

from aish.system.process.sandbox import sandbox_report
from aish.system.process.supervisor import (
    SCRIPT,
    Command,
    NetworkNamespaceError,
    Supervised,
    Supervisor,
    WantedSocket,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(sandbox_report(os.environ).bubblewrap), reason="needs bubblewrap"),
]
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
SHARED = ["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--die-with-parent"]
WORDS = [*SHARED, "--unshare-net"]
WANTED: tuple[WantedSocket, ...] = (
    ("tcp", "93.184.216.34", 443),
    ("tcp", "2606:2800:220:1::1", 443),
    ("tcp", "127.0.0.1", 80),
    ("udp", "127.53.53.53", 53),
)
AS_ANOTHER_USER = """
import json, os, socket, struct, subprocess, sys
script, words, wanted = sys.argv[1], *map(json.loads, sys.argv[2:])
requests, theirs = socket.socketpair()
first = subprocess.Popen([sys.executable, "-I", "-S", script], stdin=theirs)
control, guard = socket.socketpair()
null, folder = os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY)
socket.send_fds(requests, [b"+"], [guard.fileno(), null, 1, 2, folder])
guard.close()
body = json.dumps({"argv": words, "env": {"PATH": os.environ["PATH"]}, "wrapped": True,
    "sockets": wanted}).encode()
control.sendall(struct.pack("!I", len(body)) + body)
opened = []
while True:
    data, descriptors, _, _ = socket.recv_fds(control, 4096, 253)
    opened += [socket.socket(fileno=descriptor).getsockname()[:2] for descriptor in descriptors]
    if not data:
        break
    print(data.decode(), end="", flush=True)
requests.close()
first.wait()
print(json.dumps(opened))
"""


@asynccontextmanager
async def started(
    words: Sequence[str], *sockets: WantedSocket, stdout: int | None = None
) -> AsyncGenerator[Supervised]:
    with ExitStack() as stack:
        supervisor = Supervisor()
        stack.callback(supervisor.close)
        null, folder = os.open(os.devnull, os.O_RDWR), os.open("/", os.O_RDONLY)
        stack.callback(os.close, null)
        stack.callback(os.close, folder)
        command = Command(words, {"PATH": os.environ["PATH"]}, wrapped=True, sockets=sockets)
        with anyio.fail_after(60):
            process = await supervisor.start(
                command, folder=folder, streams=(null, null if stdout is None else stdout, null)
            )
        for opened in process.sockets:
            stack.enter_context(opened)
        try:
            yield process
        finally:
            await process.stop(0)


async def test_they_listen_there_before_the_command_runs_and_it_gets_no_descriptor() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as output:
        async with started(
            [*WORDS, "--", "/bin/ls", "/proc/self/fd"], *WANTED, stdout=writing
        ) as one:
            os.close(writing)
            with anyio.fail_after(60):
                assert await one.wait() == 0
            assert [opened.getsockname()[:2] for opened in one.sockets] == [
                (address, port) for _, address, port in WANTED
            ]
            assert not any(opened.get_inheritable() for opened in one.sockets)
        assert output.read().split() == [b"0", b"1", b"2", b"3"]  # the last is the listing itself
    # The machine has no such address: they are the namespace's alone.
    with socket.socket() as here, pytest.raises(OSError, match="assign requested address"):
        here.bind(("93.184.216.34", 443))


@pytest.mark.parametrize(
    ("words", "sockets", "why"),
    [
        (["/bin/sh", "-c", ":"], WANTED, "bubblewrap ended before its network was prepared"),
        # Never without a namespace of its own: it would be the machine that gets an address.
        ([*SHARED, "--", "true"], [("tcp", "127.0.0.1", 0)], "no network namespace of its own"),
        ([*WORDS, "--", "touch", "ran"], [("tcp", "1.1.1.1", 1)] * 2, "Address already in use"),
        ([*WORDS, "--", "true"], [("tcp", "fe80::1", 1)], "Invalid argument"),
    ],
)
async def test_where_they_cannot_be_opened_nothing_is_started(
    words: Sequence[str], sockets: Sequence[WantedSocket], why: str
) -> None:
    with pytest.raises(NetworkNamespaceError) as failure:
        async with started(words, *sockets):
            pass
    assert why in str(failure.value)


async def test_a_sandbox_that_fails_later_ends_as_it_would_without_them() -> None:
    async with started([*WORDS, "--", "/nowhere"], *WANTED) as one:
        with anyio.fail_after(60):
            assert await one.wait() == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_than_root_enters_the_namespace_that_he_owns() -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    if run(SYSTEM_PYTHON, "-c", f"open({str(SCRIPT)!r})").returncode or not shutil.which("bwrap"):
        pytest.skip("another user has no Python, or cannot read these files")
    for nested in ([], ["--unshare-user", "--disable-userns"]):
        words = [*WORDS, "--cap-drop", "ALL", *nested, "--", "/bin/sh", "-c", "exit 7"]
        done = run(
            SYSTEM_PYTHON, "-c", AS_ANOTHER_USER, str(SCRIPT), json.dumps(words), json.dumps(WANTED)
        )
        *said, opened = done.stdout.splitlines()
        assert [line.split()[0] for line in said] == ["sockets", "pid", "exit"], done.stderr
        assert said[-1] == "exit 7"
        assert json.loads(opened) == [[address, port] for _, address, port in WANTED]
