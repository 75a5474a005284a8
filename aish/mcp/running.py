"""A request of ours on its way: what belongs to it, and what the server asks before it answers."""

from collections.abc import Callable
from dataclasses import field

import anyio

from aish.core.frozen import frozen, slotted
from aish.core.protocols import Progress, Sampler
from aish.mcp.transport import Headers


@frozen
class Call:
    """What belongs to one request: who hears its progress, who samples for it, its headers."""

    on_progress: Callable[[Progress], None] | None = None
    sample: Sampler | None = None
    headers: Headers = ()


NO_CALL = Call()
ELICITING = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Requests on the way to whose answer a person may be asked; at any other time nobody is."""


@slotted
class Running:
    """A request without its answer; `elicits` says that a person may be asked on the way to it."""

    call: Call
    elicits: bool = False
    progress_seen: int = 0
    asked: int = 0
    answered: anyio.Event = field(default_factory=anyio.Event)
    answering: set[anyio.CancelScope] = field(default_factory=set)

    async def all_answered(self) -> None:
        """Wait until the server has an answer to everything that it asked so far."""
        while self.asked:
            await self.answered.wait()

    def abandon(self) -> None:
        """Nobody waits for the answer any more, nor for what the server asks on the way to it."""
        for scope in self.answering:
            scope.cancel()
