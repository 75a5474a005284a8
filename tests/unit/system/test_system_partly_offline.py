"""What is offline in a process that listens all the same."""

import socket
import subprocess

import anyio
import anyio.lowlevel
import pytest

from aish.system.offline import OfflineError, PartlyOffline, offline_here, permit_attempts


def start() -> None:
    subprocess.run(["true"], check=True)


def connect() -> None:
    with socket.socket() as one:
        one.settimeout(0)
        one.connect_ex(("127.0.0.1", 9))


def test_only_what_begins_within_is_refused_and_nothing_is_swallowed() -> None:
    async def main() -> list[str]:
        done: list[str] = []
        with PartlyOffline() as offline:

            async def inside() -> None:  # ruff: ignore[unused-async] - a task
                with pytest.raises(OfflineError):
                    connect()
                with pytest.raises(OfflineError):
                    start()
                done.append("inside")

            async def outside() -> None:  # ruff: ignore[unused-async] - a task
                connect()
                done.append("outside")

            async with anyio.create_task_group() as tasks:
                with offline.within():
                    tasks.start_soon(inside)
                tasks.start_soon(outside)
            connect()
        assert len(offline.trips) == 2
        connect()
        return done

    assert sorted(anyio.run(main)) == ["inside", "outside"]


def test_what_is_permitted_may_leave_where_a_task_is_offline() -> None:
    async def ask() -> None:
        with permit_attempts():
            await anyio.lowlevel.checkpoint()
            connect()
        with pytest.raises(OfflineError):
            connect()

    async def main() -> int:
        async with anyio.create_task_group() as tasks:
            with offline_here() as trips:
                async with anyio.create_task_group() as asking:
                    asking.start_soon(ask)
                    asking.start_soon(ask)
            tasks.start_soon(anyio.to_thread.run_sync, connect)
        return len(trips)

    assert anyio.run(main) == 2
