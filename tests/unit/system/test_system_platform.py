"""The portable forms of what only Linux has, on Linux."""

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from aish.system.durable import Disk
from aish.system.platform.forms import is_portable
from aish.system.platform.locks import lock_holder
from aish.system.platform.peers import bind_private, find_tcp_owner, read_mac_credentials
from aish.system.platform.process_table import marked_processes, read_processes
from aish.system.platform.processes import exit_code_of, kinship, signal_group, wait_for_end
from aish.system.platform.syncs import data_sync

CAT = ["cat"]


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "aish_portable", True, raising=False)


def start(argv: list[str], **options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, **options)  # type: ignore[call-overload, no-any-return]  # options are passed on


def test_no_variable_and_no_argument_switches_the_forms_of_linux_off() -> None:
    script = """
from aish.system.platform.forms import is_portable
from aish.system.process import reaper_process, supervisor_process

print(is_portable(), reaper_process._is_portable(), supervisor_process._is_portable())
"""
    env = {**os.environ, "AISH_TEST_PORTABLE": "1", "PYTHONPATH": ""}
    # The words of a command, which `aish` has among its own arguments.
    words = [sys.executable, "-c", script, "--", "program", "--portable"]

    done = subprocess.run(words, env=env, capture_output=True, check=True)

    assert done.stdout == b"False False False\n"


@pytest.mark.usefixtures("portable")
def test_processes_are_known_by_their_parents_and_their_marks() -> None:
    child = start(CAT, env={"PATH": os.defpath, "AISH_PROCESS_MARK": "abc-1"})
    try:
        parent_of, environment_of = kinship()
        marked = [
            marked_processes([f"AISH_PROCESS_MARK={mark}".encode()], spared)
            for mark, spared in (("abc-1\0", set[int]()), ("abc\0", set()), ("abc-1", {child.pid}))
        ]

        assert is_portable()
        assert parent_of(child.pid) == os.getpid() == read_processes()[child.pid][0]
        assert b"AISH_PROCESS_MARK=abc-1" in environment_of(child.pid).split(b"\0")
        assert marked == [{child.pid}, set(), set()]
        with pytest.raises(ProcessLookupError):
            parent_of(2**22 + 1)
    finally:
        child.communicate()


@pytest.mark.usefixtures("portable")
def test_the_group_of_a_reaped_leader_is_signalled_and_a_strangers_is_not() -> None:
    script = "import os, sys; os.fork() and os._exit(7); sys.stdin.read()"
    with start([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        while (code := exit_code_of(child.pid)) is None:
            pass
        stranger = start(CAT)

        signal_group(stranger.pid, signal.SIGKILL, is_reaped=True)  # a number that is in use
        signal_group(child.pid, signal.SIGKILL, is_reaped=True)

        assert code == 7
        assert child.stdout is not None
        assert child.stdout.read() == b""  # what was left of the group has ended
        child.returncode = code
        assert stranger.poll() is None
        stranger.communicate()
        assert stranger.returncode == 0
    ended = os.posix_spawn("/bin/true", ["true"], {})
    wait_for_end(ended, 30)
    with pytest.raises(ChildProcessError):
        os.waitpid(ended, 0)


@pytest.mark.usefixtures("portable")
def test_both_ends_of_sockets_are_known(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            bind_private(listening, tmp_path / "a.sock", folder)
            assert (tmp_path / "a.sock").is_socket()
        moved = tmp_path.with_name("moved")
        tmp_path.rename(moved)
        tmp_path.mkdir()
        with socket.socket(socket.AF_UNIX) as listening, pytest.raises(FileNotFoundError):
            bind_private(listening, tmp_path / "b.sock", folder)
    finally:
        os.close(folder)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        ends = accepted.getpeername(), accepted.getsockname()
        assert client.getsockname() == ends[0]
        assert find_tcp_owner(*ends) == (os.getpid(), os.geteuid())
        assert find_tcp_owner(("127.0.0.1", 1), ends[1]) is None


def test_the_credentials_of_a_mac_are_read() -> None:
    class MacSocket(socket.socket):
        version = 0

        def getsockopt(self, level: int, option: int, size: int = 0, /) -> object:  # type: ignore[override]  # of three overloads
            assert level == 0  # SOL_LOCAL
            if option == 2:  # LOCAL_PEERPID
                return 4711
            assert (option, size) == (1, 76)  # LOCAL_PEERCRED, `struct xucred`
            return struct.pack("=IIh2x16I", self.version, 501, 1, *range(16))

    with MacSocket(socket.AF_UNIX) as connection:
        assert read_mac_credentials(connection) == (4711, 501)
        connection.version = 1
        with pytest.raises(OSError, match="not known"):
            read_mac_credentials(connection)


@pytest.mark.usefixtures("portable")
def test_locks_and_syncs_do_without_linux(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        assert lock_holder(file.fileno()) is None
        data_sync()(file.fileno())
        Disk().sync(file.fileno())
