"""A first signal ends a run in order, and what a second one does (B14)."""

import sys

import anyio
import pytest

pytestmark = pytest.mark.anyio

ENDING = """
import asyncio, os, signal, sys
import anyio
from aish.engine.cancellation import interruptible

async def main():
    first, second = (signal.Signals[name] for name in sys.argv[1:])
    with anyio.CancelScope() as scope, anyio.open_signal_receiver(signal.SIGUSR1) as marks:
        with interruptible(lambda _: scope.cancel()) as seen:
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
    return seen.code

code = anyio.run(main)
print("in order", flush=True)
sys.exit(code)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ("SIGINT SIGINT", 130, ""),
        ("SIGTERM SIGINT", 143, ""),
        ("SIGHUP SIGINT", 143, ""),
        ("SIGHUP SIGTERM", 143, ""),
        ("SIGHUP SIGHUP", 143, "in order\n"),
        ("SIGINT SIGHUP", 130, "in order\n"),
    ],
)
async def test_a_second_signal_leaves_at_once_unless_it_is_a_terminal_that_goes_away(
    signals: str, code: int, said: str
) -> None:
    argv = [sys.executable, "-c", ENDING, *signals.split()]
    done = await anyio.run_process(argv, check=False)

    assert (done.returncode, done.stdout.decode()) == (code, said)
