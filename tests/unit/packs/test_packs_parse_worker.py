"""The child that parses untrusted input: limits, death, and what is left behind (K16)."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper


def play(scene: Callable[[ParseWorker], Awaitable[None]]) -> None:
    """Run a scene with a worker, and close it."""

    async def main() -> None:
        reaper = Reaper()
        worker = ParseWorker(reaper)
        try:
            await scene(worker)
        finally:
            await worker.close()
            reaper.close()

    anyio.run(main)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_of(worker: ParseWorker) -> int | None:
    return worker.pid


async def code(worker: ParseWorker, call: str, *sources: bytes, **options: float) -> str:
    with pytest.raises(PackError) as caught:
        await worker.run(call, *sources, **options)  # type: ignore[arg-type]  # options of both kinds
    return caught.value.code


def test_one_warm_child_answers_all_calls() -> None:
    async def scene(worker: ParseWorker) -> None:
        assert pid_of(worker) is None
        assert await worker.run("json:loads", b'{"a": [1]}') == {"a": [1]}
        first = pid_of(worker)
        assert await worker.run("json:loads", b"2") == 2
        assert pid_of(worker) == first
        answers: list[object] = []

        async def one(number: int) -> None:
            answers.append(await worker.run("json:loads", b"%d" % number))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, number)
        assert sorted(map(str, answers)) == [str(number) for number in range(8)]
        assert pid_of(worker) == first
        assert first is not None
        await worker.close()
        assert not is_running(first)

    play(scene)


def test_a_child_that_is_killed_ends_the_call_and_the_next_call_has_another() -> None:
    async def scene(worker: ParseWorker) -> None:
        await worker.run("json:loads", b"1")
        pid = pid_of(worker)
        assert pid is not None
        seen: list[str] = []

        async def wait() -> None:
            seen.append(await code(worker, "signal:pause", seconds=60.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            os.kill(pid, signal.SIGKILL)
        assert seen == ["too_slow"]
        assert await worker.run("json:loads", b"3") == 3
        assert pid_of(worker) != pid
        second = pid_of(worker)
        assert second is not None
        os.kill(second, signal.SIGKILL)
        while is_running(second):
            await anyio.lowlevel.checkpoint()
        # It died while nothing was asked: nobody notices.
        assert await worker.run("json:loads", b"4") == 4

    play(scene)


def test_what_takes_too_much_time_memory_or_space_is_an_error_with_a_code() -> None:
    async def scene(worker: ParseWorker) -> None:
        assert await code(worker, "json:loads", b"1" * (2 * 1024 * 1024 + 1)) == "too_large"
        assert await code(worker, "json:loads", b"[" * 200_000) == "too_slow"
        assert await code(worker, "builtins:bytearray", count=1.0) == "failed"
        assert await worker.run("json:loads", b"5") == 5
        with pytest.raises(PackError, match=r"took more than 0\.1 seconds"):
            await worker.run("re:match", b"(a+)+$", b"a" * 60 + b"!", seconds=0.1)
        assert await worker.run("json:loads", b"6") == 6

    play(scene)


def test_a_cancelled_call_leaves_no_answer_for_the_next_one() -> None:
    async def scene(worker: ParseWorker) -> None:
        await worker.run("json:loads", b"1")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run, "json:loads", b"[" + b"1," * 500_000 + b"1]")
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert await worker.run("json:loads", b"7") == 7

    play(scene)
