"""What Ctrl-C and the signals that end a session do, in each of its states (S1)."""

import os
import signal
import sys
from collections.abc import Callable

import anyio
import pytest

from aish.core.errors import ExitCode
from aish.engine.cancellation import interruptible
from aish.shell.cancellation import Interrupts

pytestmark = pytest.mark.anyio


def nothing() -> None:
    """Neither restores nor forgets."""


def interrupts(*, attended: bool = True, forget: Callable[[], None] = nothing) -> Interrupts:
    return Interrupts(attended=attended, restore=nothing, forget=forget)


async def test_ctrl_c_ends_what_runs_and_nothing_else() -> None:
    forgot: list[str] = []
    taken = interrupts(forget=lambda: forgot.append("ahead"))
    with taken.handle_signals(), taken.session():
        taken.interrupt()
        assert not (taken.stopped)
        assert not forgot
        with taken.cancellable() as scope:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (taken.stopped, forgot) == (True, ["ahead"])
        with taken.cancellable():
            assert not taken.stopped
    assert taken.code is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_session_and_says_with_which_code(number: signal.Signals) -> None:
    taken = interrupts()
    with taken.handle_signals(), taken.session(), taken.cancellable():
        os.kill(os.getpid(), number)
        await anyio.sleep_forever()
    assert taken.code is ExitCode.TERMINATED


async def test_a_signal_before_the_session_ends_it_at_once() -> None:
    taken = interrupts()
    reached = False
    with taken.handle_signals():
        taken.end(ExitCode.TERMINATED)
        with taken.session():
            await anyio.lowlevel.checkpoint()
            reached = True
    assert not reached


async def test_with_nobody_there_ctrl_c_ends_the_session() -> None:
    taken = interrupts(attended=False)
    with taken.handle_signals(), taken.session(), taken.cancellable():
        taken.interrupt()
        await anyio.sleep_forever()
    assert taken.code is ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("end", "code", "goes_on"),
    [
        (lambda taken: taken.interrupt(), ExitCode.INTERRUPTED, True),
        (lambda taken: taken.stop(), ExitCode.INTERRUPTED, True),
        (lambda taken: (taken.stop(), taken.interrupt()), ExitCode.INTERRUPTED, True),
        (lambda taken: taken.end(ExitCode.TERMINATED), ExitCode.TERMINATED, False),
        (lambda taken: (taken.hang_up(), taken.hang_up()), ExitCode.TERMINATED, False),
        (lambda taken: (taken.interrupt(), taken.hang_up()), ExitCode.INTERRUPTED, False),
    ],
)
async def test_a_run_in_the_session_is_ended_first(
    end: Callable[[Interrupts], object], code: ExitCode, *, goes_on: bool
) -> None:
    taken = interrupts()
    said: list[ExitCode] = []
    went_on = False
    with taken.handle_signals(), taken.session(), taken.cancellable():
        with taken.lend_to_run(), interruptible(said.append) as seen:
            end(taken)
            # Whoever has borrowed them ends in its own time.
            await anyio.lowlevel.checkpoint()
            assert (seen.code, said) == (code, [code])
        await anyio.lowlevel.checkpoint()
        went_on = True
    assert went_on is goes_on


async def test_a_key_that_stops_never_leaves() -> None:
    taken = interrupts()
    with taken.handle_signals(), taken.session(), taken.cancellable() as scope:
        taken.stop()
        taken.stop()
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    with taken.handle_signals(), taken.session(), taken.cancellable() as scope:
        taken.stop()
        # Neither does the first Ctrl-C after it, which may have been on its way.
        taken.interrupt()
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    with taken.handle_signals(), taken.session(), taken.cancellable():
        taken.end(ExitCode.TERMINATED)
        taken.stop()
        await anyio.sleep_forever()
    assert taken.code is ExitCode.TERMINATED


ENDING = """
import asyncio, os, signal, sys
import anyio
from aish.shell.cancellation import Interrupts

def restore():
    print("left at once", flush=True)

async def main():
    found = Interrupts(attended=True, restore=restore, forget=lambda: None)
    first, second = (signal.Signals[name] for name in sys.argv[1:])
    with found.handle_signals(), anyio.open_signal_receiver(signal.SIGUSR1) as marks:
        with found.session(), found.cancellable():
            try:
                os.kill(os.getpid(), first)
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    # By its clock, the second one comes too late to be the same wish.
                    loop = asyncio.get_running_loop()
                    now = loop.time()
                    loop.time = lambda: now + 60
                    os.kill(os.getpid(), second)
                    os.kill(os.getpid(), signal.SIGUSR1)
                    # Signals are heard in their order.
                    async for _ in marks:
                        break
    return found.code

code = anyio.run(main)
print("in order", flush=True)
sys.exit(code)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("signals", "code", "how"),
    [
        ("SIGINT SIGINT", 130, "left at once"),
        ("SIGTERM SIGTERM", 143, "left at once"),
        ("SIGTERM SIGINT", 143, "left at once"),
        ("SIGHUP SIGTERM", 143, "left at once"),
        ("SIGHUP SIGINT", 143, "left at once"),
        ("SIGHUP SIGHUP", 143, "in order"),
        ("SIGTERM SIGHUP", 143, "in order"),
        ("SIGINT SIGHUP", 143, "in order"),
        ("SIGINT SIGTERM", 143, "in order"),
    ],
)
async def test_a_second_signal_leaves_at_once_unless_it_is_a_terminal_that_goes_away(
    signals: str, code: int, how: str
) -> None:
    argv = [sys.executable, "-c", ENDING, *signals.split()]
    done = await anyio.run_process(argv, check=False)

    assert (done.returncode, done.stdout.decode()) == (code, f"{how}\n")
