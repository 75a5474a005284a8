"""Real attempts to reach out, each refused while offline (C6)."""

import asyncio
import gc
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aish.core.errors import ExitCode
from aish.system.offline import OfflineError, offline, permit_attempts
from aish.system.process.child import child_environment, run_command
from aish.system.process.reaper import Reaper
from aish.system.schema.client import SchemaWorker

TRUE = "/bin/true"


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def stream() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


@pytest.fixture
def datagrams() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        yield made


@pytest.fixture
def local() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        yield made


def refused(attempt: Callable[[], object]) -> OfflineError:
    with offline() as trips, pytest.raises(OfflineError) as caught:
        attempt()
    assert caught.value in trips
    assert caught.value.exit_code == ExitCode.INTERNAL
    # What the refused attempt had opened is closed here, not in another test.
    gc.collect()
    return caught.value


def test_a_socket_that_is_there_can_neither_connect_nor_bind_nor_send(
    listener: tuple[str, int],
    stream: socket.socket,
    datagrams: socket.socket,
    local: socket.socket,
    tmp_path: Path,
) -> None:
    name = str(tmp_path / "s")
    refused(lambda: stream.connect(listener))
    refused(lambda: stream.connect_ex(listener))
    refused(lambda: stream.bind(("127.0.0.1", 0)))
    refused(lambda: datagrams.sendto(b"x", listener))
    refused(lambda: datagrams.sendmsg([b"x"], (), 0, listener))
    refused(lambda: datagrams.connect(listener))
    refused(lambda: local.bind(name))
    refused(lambda: local.connect(name))
    assert not Path(name).exists()
    stream.connect(listener)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_no_socket_of_a_network_is_opened(family: socket.AddressFamily) -> None:
    error = refused(lambda: socket.socket(family))

    assert "something tried to open a socket" in error.message


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "attempt",
    [
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: socket.gethostbyname("localhost"),
        lambda: socket.gethostbyname_ex("localhost"),
        lambda: socket.gethostbyaddr("127.0.0.1"),
        lambda: socket.getnameinfo(("127.0.0.1", 80), 0),
        lambda: socket.create_connection(("localhost", 80)),
    ],
)
def test_nothing_is_looked_up(attempt: Callable[[], object]) -> None:
    assert "look up" in refused(attempt).message


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "attempt",
    [
        lambda: subprocess.run([TRUE], check=False),
        lambda: subprocess.Popen(f"{TRUE} x", shell=True),  # ruff: ignore[subprocess-popen-with-shell-equals-true] - refused
        lambda: os.posix_spawn(TRUE, [TRUE], {}),
        lambda: os.posix_spawnp(TRUE, [TRUE], {}),
        lambda: os.spawnv(os.P_WAIT, TRUE, [TRUE]),  # ruff: ignore[start-process-with-no-shell] - refused
        os.fork,
        os.forkpty,
        lambda: os.system(TRUE),  # ruff: ignore[start-process-with-a-shell] - refused
        lambda: os.popen(TRUE),  # ruff: ignore[start-process-with-a-shell] - refused
        lambda: os.execv(TRUE, [TRUE]),  # ruff: ignore[start-process-with-no-shell] - refused
        lambda: pty.spawn([TRUE]),
    ],
)
def test_no_process_is_started(attempt: Callable[[], object]) -> None:
    refused(attempt)


def test_asynchronous_code_and_its_threads_are_refused_too(listener: tuple[str, int]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: asyncio.create_subprocess_exec(TRUE),
            lambda: anyio.run_process([TRUE]),
            lambda: anyio.connect_tcp(*listener),
            lambda: anyio.connect_unix("/nowhere"),
            lambda: loop.getaddrinfo("localhost", 80),
            lambda: anyio.to_thread.run_sync(lambda: subprocess.run([TRUE], check=False)),
            lambda: run_command(
                [TRUE], cwd="/", env=child_environment({}, {}), timeout=5, limit_bytes=9
            ),
        ]
        for attempt in attempts:
            with offline() as trips:
                try:
                    await attempt()
                except* OfflineError:
                    pass
                assert trips

    anyio.run(main)
    gc.collect()


def test_who_swallows_the_error_hides_nothing() -> None:
    with offline() as trips:
        heard = threading.Event()

        def elsewhere() -> None:
            try:
                socket.gethostbyname("localhost")
            except Exception:
                heard.set()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert heard.is_set()
    assert [error.code for error in trips] == ["offline"]
    assert "look up an address: socket.gethostbyname('localhost',)" in trips[0].message


def test_it_ends_with_the_last_that_wanted_it(listener: tuple[str, int]) -> None:
    with offline() as outer:
        with offline() as inner:
            pass
        with pytest.raises(OfflineError):
            socket.create_connection(listener)

    assert len(outer) == 1
    assert inner == []
    socket.create_connection(listener).close()


def test_an_event_loop_can_be_made_offline() -> None:
    with offline() as trips:
        anyio.run(anyio.sleep, 0)
        left, right = socket.socketpair()
        left.close()
        right.close()

    assert trips == []


async def _check() -> None:
    reaper = Reaper()
    worker = SchemaWorker(reaper)
    schema = {"type": "string", "pattern": "^(a|b)+$"}
    with offline() as trips:
        try:
            problems = await worker.check(schema, "abc")
        finally:
            await worker.close()
            reaper.close()
    assert [problem.keyword for problem in problems] == ["pattern"]
    assert trips == []


def test_our_own_schema_worker_and_reaper_are_excepted() -> None:
    anyio.run(_check)


def test_what_is_permitted_to_one_task_is_refused_to_another() -> None:
    async def main() -> None:
        inside, done = anyio.Event(), anyio.Event()

        def started() -> int:
            return subprocess.run([TRUE], check=True).returncode

        async def ours() -> None:
            with permit_attempts():
                inside.set()
                await done.wait()
                assert started() == 0

        with offline() as trips:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ours)
                await inside.wait()
                with pytest.raises(OfflineError):
                    started()
                done.set()
        assert len(trips) == 1

    anyio.run(main)


def test_a_program_of_its_own_ends_with_the_attempt() -> None:
    code = (
        "import socket\n"
        "from aish.system.offline import offline\n"
        "with offline():\n"
        "    socket.gethostbyname('localhost')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "OfflineError: a replay must reach nothing" in done.stderr
