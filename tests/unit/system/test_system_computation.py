"""Computations that a deadline stops, in any thread (F6)."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from threading import Thread

import anyio
import anyio.lowlevel
import pytest

from aish.system.computation import ComputationStoppedError, add_signal_handler, compute


def endless() -> int:
    """What would take hours."""
    return sum(1 for _ in range(10**6) for _ in range(10**6))


def swallowing() -> int:
    """The same, where what comes up is caught once."""
    try:
        return endless()
    except BaseException:
        return endless()


def in_a_thread(work: Callable[[], object]) -> list[object]:
    found: list[object] = []

    def kept() -> None:
        try:
            found.append(compute(work, 0.05))
        except ComputationStoppedError as error:
            found.append(error.is_late)

    thread = Thread(target=kept)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found


@pytest.mark.parametrize("work", [endless, swallowing])
def test_a_computation_ends_at_its_own_bound(work: Callable[[], int]) -> None:
    before = signal.getsignal(signal.SIGALRM)

    with pytest.raises(ComputationStoppedError) as caught:
        compute(work, 0.05)

    assert caught.value.is_late
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_computation_ends_in_a_thread_too() -> None:
    assert in_a_thread(endless) == [True]


def test_what_comes_to_its_end_is_returned() -> None:
    assert compute(lambda: 3, 1) == 3
    assert in_a_thread(lambda: 3) == [3]


def test_a_computation_within_another_is_a_part_of_it() -> None:
    with pytest.raises(ComputationStoppedError):
        compute(lambda: compute(endless, 1000), 0.05)


def test_the_deadline_of_the_task_ends_a_computation_and_then_the_task() -> None:
    late: list[bool] = []

    async def main() -> bool:
        with anyio.move_on_after(0.05) as scope:
            try:
                compute(endless, 1000)
            except ComputationStoppedError as error:
                late.append(error.is_late)
            await anyio.sleep_forever()
        return scope.cancelled_caught

    assert anyio.run(main)
    assert late == [False]


def test_more_signals_than_the_loop_can_take_note_of_are_one_and_no_warning() -> None:
    """Python's own warning takes a lock in the C handler, and a process could wait for itself."""
    handled: list[str] = []
    warned: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        come = anyio.Event()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            add_signal_handler(loop, number, come.set)
        for _ in range(1000):
            os.kill(os.getpid(), signal.SIGUSR1)
        await come.wait()
        handled.append("once")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.remove_signal_handler(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", warned.append)
        anyio.run(main)
    assert (handled, warned) == (["once"], [])


@pytest.mark.parametrize("cancels", ["", "cancels"])
def test_what_the_handler_of_a_signal_leaves_alone_is_computed_again(cancels: str) -> None:
    handled: list[str] = []
    begun: list[str] = []

    def signalled() -> int:
        begun.append("once")
        if len(begun) > 1:
            return 3
        os.kill(os.getpid(), signal.SIGUSR1)
        return endless()

    async def main() -> object:
        loop = asyncio.get_running_loop()
        second = anyio.Event()
        with anyio.CancelScope() as scope:

            def handler() -> None:
                handled.append("once")
                if len(handled) > 1:
                    second.set()
                elif cancels:
                    scope.cancel()

            add_signal_handler(loop, signal.SIGUSR1, handler)
            try:
                found: object = compute(signalled, 1000)
            except ComputationStoppedError as error:
                found = error.is_late
            with anyio.CancelScope(shield=True):
                # The loop has its own word of the first signal, and handles only the second.
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                assert len(handled) == 1
                os.kill(os.getpid(), signal.SIGUSR1)
                await second.wait()
            loop.remove_signal_handler(signal.SIGUSR1)
        return found

    assert anyio.run(main) == (False if cancels else 3)
    assert len(begun) == (1 if cancels else 2)
    assert len(handled) == 2
