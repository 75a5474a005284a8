"""Pending requests of one channel, matched to answers by id (stdio, 2024's HTTP+SSE)."""

import anyio

from aish.mcp.protocol.messages import Answer, TransportError


class _Slot:
    """Where one request waits for its answer."""

    __slots__ = ("answer", "event", "failure")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.answer: Answer | None = None
        self.failure: TransportError | None = None


class Pending:
    """The requests without an answer; several may wait at the same time."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}

    def open(self, number: int) -> None:
        """Register a request; called before it is written, so that no answer is missed."""
        self._slots[str(number)] = _Slot()

    def forget(self, number: int) -> None:
        """Unregister a request; an answer that arrives later is dropped."""
        self._slots.pop(str(number), None)

    async def wait(self, number: int) -> Answer:
        """The answer.

        Raises:
            TransportError: the channel failed before it came.
        """
        slot = self._slots[str(number)]
        await slot.event.wait()
        if slot.answer is None:
            raise slot.failure or TransportError("the connection was lost")
        return slot.answer

    def settle(self, answer: Answer) -> None:
        """Deliver an answer to its request, if one waits; of several answers the first counts."""
        slot = self._slots.get(answer.id or "")
        if slot is not None and slot.answer is None:
            slot.answer = answer
            slot.event.set()

    def fail(self, failure: TransportError) -> None:
        """Fail all pending requests."""
        for slot in self._slots.values():
            slot.failure = failure
            slot.event.set()
