"""Requests under way on one channel, matched to their answers by id (stdio, 2024's HTTP+SSE)."""

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
    """The requests that have no answer yet; several wait at the same time."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}

    def open(self, number: int) -> None:
        """Expect an answer; called before the request is written, so that none is missed."""
        self._slots[str(number)] = _Slot()

    def forget(self, number: int) -> None:
        """Expect it no longer; an answer that comes later is dropped."""
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
        """Hand an answer to whoever waits for it, if anybody does; of several the first counts."""
        slot = self._slots.get(answer.id or "")
        if slot is not None and slot.answer is None:
            slot.answer = answer
            slot.event.set()

    def fail(self, failure: TransportError) -> None:
        """Tell everybody who waits that no answer will come."""
        for slot in self._slots.values():
            slot.failure = failure
            slot.event.set()
