"""When a process was started, as it finds out itself; what is done again and again."""

import gc
import subprocess
import sys
import time
import weakref

import anyio

from aish.system.clock import call_every

_ASK = "from aish.system.clock import process_began; print(process_began())"
# The kernel counts in hundredths of a second.
_TICK = 0.02


def test_a_process_knows_when_it_was_started() -> None:
    before = time.time()
    said = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, check=True).stdout
    after = time.time()

    assert before - _TICK <= float(said) <= after


def test_something_is_called_again_and_again_until_it_is_stopped() -> None:
    async def count() -> int:
        calls = 0
        enough = anyio.Event()

        def tell() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                stop()
                enough.set()

        stop = call_every(0.001, tell)
        with anyio.fail_after(60):
            await enough.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        return calls

    assert anyio.run(count) == 3


def test_what_was_called_again_and_again_is_freed_as_soon_as_it_is_stopped() -> None:
    """A cycle would live on until a full collection, which a long run rarely has."""

    class Answer:
        def tell(self) -> None: ...

    async def is_freed() -> bool:
        answer = Answer()
        ref = weakref.ref(answer)
        stop = call_every(3600, answer.tell)
        del answer
        assert ref() is not None
        stop()
        await anyio.lowlevel.checkpoint()
        return ref() is None

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        assert anyio.run(is_freed)
    finally:
        if was_enabled:
            gc.enable()
