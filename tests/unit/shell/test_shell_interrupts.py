"""What Ctrl-C and the signals that end a session do, in each of its states (S1)."""

import os
import signal
import sys
from collections.abc import Callable

import anyio
import pytest

from aish.errors import ExitCode
from aish.run.interrupt import interruptible
from aish.shell.interrupts import Interrupts

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("S1")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def nothing() -> None:
    """Neither restores nor forgets."""


def interrupts(*, attended: bool = True, forget: Callable[[], None] = nothing) -> Interrupts:
    return Interrupts(attended=attended, restore=nothing, forget=forget)


async def test_ctrl_c_ends_what_runs_and_nothing_else() -> None:
    forgot: list[str] = []
    taken = interrupts(forget=lambda: forgot.append("ahead"))
    with taken.taken(), taken.session():
        taken.interrupt()
        assert not (taken.stopped)
        assert not forgot
        with taken.running() as scope:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (taken.stopped, forgot) == (True, ["ahead"])
        with taken.running():
            assert not taken.stopped
    assert taken.code is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_session_and_says_with_which_code(number: signal.Signals) -> None:
    taken = interrupts()
    with taken.taken(), taken.session(), taken.running():
        os.kill(os.getpid(), number)
        await anyio.sleep_forever()
    assert taken.code is ExitCode.TERMINATED


async def test_a_signal_before_the_session_ends_it_at_once() -> None:
    taken = interrupts()
    reached = False
    with taken.taken():
        taken.end(ExitCode.TERMINATED)
        with taken.session():
            await anyio.lowlevel.checkpoint()
            reached = True
    assert not reached


async def test_with_nobody_there_ctrl_c_ends_the_session() -> None:
    taken = interrupts(attended=False)
    with taken.taken(), taken.session(), taken.running():
        taken.interrupt()
        await anyio.sleep_forever()
    assert taken.code is ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("end", "code", "goes_on"),
    [
        (lambda taken: taken.interrupt(), ExitCode.INTERRUPTED, True),
        (lambda taken: taken.stop(), ExitCode.INTERRUPTED, True),
        (lambda taken: taken.end(ExitCode.TERMINATED), ExitCode.TERMINATED, False),
    ],
)
async def test_a_run_in_the_session_is_ended_first(
    end: Callable[[Interrupts], None], code: ExitCode, *, goes_on: bool
) -> None:
    taken = interrupts()
    said: list[ExitCode] = []
    went_on = False
    with taken.taken(), taken.session(), taken.running():
        with taken.lent(), interruptible(said.append) as seen:
            end(taken)
            # Whoever has borrowed them ends in its own time.
            await anyio.lowlevel.checkpoint()
            assert (seen.code, said) == (code, [code])
        await anyio.lowlevel.checkpoint()
        went_on = True
    assert went_on is goes_on


async def test_a_key_that_stops_never_leaves() -> None:
    taken = interrupts()
    with taken.taken(), taken.session(), taken.running() as scope:
        taken.stop()
        taken.stop()
        await anyio.sleep_forever()
    assert scope.cancelled_caught


STOPPING = """
import os, signal
import anyio
from aish.shell.interrupts import Interrupts

def restore():
    print("restored", flush=True)

async def main():
    found = Interrupts(attended=True, restore=restore, forget=lambda: None)
    with found.taken(), found.session(), found.running():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                os.kill(os.getpid(), signal.SIGINT)
                await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.requirement("exit-130")
async def test_a_second_ctrl_c_while_something_stops_leaves_at_once() -> None:
    done = await anyio.run_process([sys.executable, "-c", STOPPING], check=False)

    assert (done.returncode, done.stdout) == (130, b"restored\n")
