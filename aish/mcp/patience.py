"""How long one waits for a server's answer (M9)."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

from aish.mcp.failures import LeftError, TransportError

Answer = TypeVar("Answer")


async def in_time(seconds: float, answer: Awaitable[Answer]) -> Answer:
    """An answer that comes within `seconds`.

    Raises:
        TransportError: it does not.
    """
    try:
        with anyio.move_on_after(seconds):
            return await answer
    except LeftError:
        if anyio.current_effective_deadline() < anyio.current_time() + seconds:
            # A limit of the run ended the waiting, and does so again.
            await anyio.sleep_forever()
    raise TransportError(f"no answer within {seconds:g} s")
