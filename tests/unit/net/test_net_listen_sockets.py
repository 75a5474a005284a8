"""Socket files that only their owner reaches, and ports (H17, A1, X9)."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aish.core.errors import UsageError
from aish.net.listen.addresses import Address, parse_address, unix_address
from aish.net.listen.sockets import credentials, default_address, listen_on

FOREIGN = 12345


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "private"
    path.mkdir(0o700)
    return path


def open_once(path: Path) -> None:
    with listen_on([unix_address(path)]):
        pass


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(path))


def descriptors() -> set[str]:
    """Those that are open, without the one that lists them."""
    return {one.name for one in [*Path("/proc/self/fd").iterdir()] if os.path.lexists(one)}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_a_socket_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "new" / "a.sock"
    before = os.umask(mask)
    try:
        with listen_on([unix_address(path)]) as (listener,):
            found = path.lstat()
            assert listener.address == Address(path=path)
            assert stat.S_ISSOCK(found.st_mode)
            assert stat.S_IMODE(found.st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            connected(path).close()
    finally:
        os.umask(before)

    assert not path.exists()


_UMASK_ZERO = """
import os, sys
from pathlib import Path
from aish.net.listen.addresses import unix_address
from aish.net.listen.sockets import listen_on
os.umask(0)
def seen(event, args):
    # The first call after `bind`: the file has the mode that the kernel made it with.
    if event == "os.chmod" and Path(sys.argv[1]).exists():
        print(oct(Path(sys.argv[1]).lstat().st_mode & 0o777))
with listen_on([unix_address(Path(sys.argv[1]).with_name("warm"))]):
    sys.addaudithook(seen)
    with listen_on([unix_address(Path(sys.argv[1]))]):
        pass
"""


def test_a_socket_is_private_from_the_moment_it_is_there(folder: Path) -> None:
    command = [sys.executable, "-c", _UMASK_ZERO, str(folder / "a.sock")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["0o600"]


def test_only_a_socket_on_which_nobody_answers_is_replaced(folder: Path) -> None:
    path = folder / "a.sock"
    dead_socket(path)

    with listen_on([unix_address(path)]):
        connected(path).close()
        with pytest.raises(UsageError, match="another process listens"):
            open_once(path)
        connected(path).close()

    open_once(path)
    assert list(folder.iterdir()) == []


def _file(path: Path) -> None:
    path.write_text("kept", encoding="utf-8")


def _link_to_socket(path: Path) -> None:
    dead_socket(path.with_name("dead"))
    path.symlink_to(path.with_name("dead"))


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _foreign_socket(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a socket away")
    dead_socket(path)
    os.chown(path, FOREIGN, -1)


def _full_backlog(path: Path) -> None:
    busy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    busy.bind(str(path))
    busy.listen(0)
    OPEN.extend((busy, connected(path)))


OPEN: list[socket.socket] = []


@pytest.mark.parametrize(
    "plant", [_file, _link_to_socket, _dangling, _fifo, _folder, _foreign_socket, _full_backlog]
)
def test_what_somebody_planted_is_refused_and_left_as_it_is(
    folder: Path, plant: Callable[[Path], None]
) -> None:
    path = folder / "a.sock"
    plant(path)
    before = {one.name: one.lstat() for one in folder.iterdir()}
    open_before = descriptors()
    try:
        with pytest.raises(UsageError) as caught:
            open_once(path)
    finally:
        while OPEN:
            OPEN.pop().close()

    assert caught.value.exit_code == 2
    after = {one.name: one.lstat() for one in folder.iterdir()}
    assert {name: one.st_ino for name, one in after.items()} == {
        name: one.st_ino for name, one in before.items()
    }
    assert descriptors() <= open_before


def _open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


def _link_to_folder(path: Path) -> None:
    path.with_name("real").mkdir(0o700)
    path.symlink_to(path.with_name("real"))


def _foreign_folder(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path.mkdir(0o700)
    os.chown(path, FOREIGN, -1)


def _no_folder(path: Path) -> None:
    path.write_text("a file", encoding="utf-8")


def _missing_above(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere") / "below")


@pytest.mark.parametrize(
    "plant", [_open_to_others, _link_to_folder, _foreign_folder, _no_folder, _missing_above]
)
def test_a_folder_that_is_not_ours_alone_is_refused(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / "place")
    open_before = descriptors()

    with pytest.raises(UsageError):
        open_once(tmp_path / "place" / "a.sock")

    assert descriptors() <= open_before


def test_a_socket_that_took_the_place_of_ours_is_not_removed(folder: Path) -> None:
    path = folder / "a.sock"
    with listen_on([unix_address(path)]):
        path.unlink()
        dead_socket(path)

    assert path.exists()


def test_of_several_none_stays_open_when_one_cannot_be_opened(folder: Path) -> None:
    open_before = descriptors()
    addresses = [unix_address(folder / "a.sock"), parse_address("127.0.0.1:0")]

    with listen_on(addresses) as (_, tcp):
        assert tcp.address.port > 0
        assert tcp.socket.getsockname() == ("127.0.0.1", tcp.address.port)
        with (
            pytest.raises(UsageError, match="Address already in use") as caught,
            listen_on([unix_address(folder / "b.sock"), tcp.address]),
        ):
            pass

    assert "port 0" in (caught.value.hint or "")
    assert list(folder.iterdir()) == []
    assert descriptors() <= open_before


def test_an_answer_does_not_wait_until_its_beginning_is_acknowledged() -> None:
    with (
        listen_on([parse_address("127.0.0.1:0")]) as (listener,),
        socket.create_connection(("127.0.0.1", listener.address.port)),
    ):
        listener.socket.setblocking(True)
        accepted, _ = listener.socket.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_of_ipv6_is_of_ipv6_alone() -> None:
    if not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    with listen_on([parse_address("[::1]:0")]) as (listener,):
        option = listener.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)

    assert (option, listener.address.host) == (1, "::1")


@pytest.mark.requirement("A1")
@pytest.mark.parametrize("told", [True, False], ids=["XDG_RUNTIME_DIR", "no XDG_RUNTIME_DIR"])
def test_the_default_socket_is_in_the_runtime_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    if told:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    address = default_address("20261123-010203-abcd")

    assert address.path is not None
    assert address.path.name == "20261123-010203-abcd.sock"
    assert address.path.is_relative_to(tmp_path) is told
    assert stat.S_IMODE(address.path.parent.stat().st_mode) == 0o700
    open_once(address.path)


def test_the_kernel_says_who_connected(folder: Path) -> None:
    with listen_on([unix_address(folder / "a.sock")]) as (listener,):
        client = connected(folder / "a.sock")
        listener.socket.setblocking(True)
        accepted, _ = listener.socket.accept()
        found = credentials(accepted)
        client.close()
        accepted.close()

    assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
