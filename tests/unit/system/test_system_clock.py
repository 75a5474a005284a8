"""What is done again and again while something else is waited for."""

import anyio
import pytest

from aish.system.clock import call_every


@pytest.mark.requirement("L10")
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
        with anyio.fail_after(20):
            await enough.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        return calls

    assert anyio.run(count) == 3
