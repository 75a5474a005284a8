"""Pending requests of one channel, matched to answers by id (stdio, 2024's HTTP+SSE)."""

import asyncio

from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import RpcResponse, TransportError
from aish.mcp.transports.transport import Inbox


class Pending:
    """The requests without an answer; several may wait at the same time."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[RpcResponse]] = {}

    def open(self, number: int) -> None:
        self._answers[str(number)] = asyncio.get_running_loop().create_future()

    def forget(self, number: int) -> None:
        answer = self._answers.pop(str(number))
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # asked for, so that asyncio does not report it

    async def wait(self, number: int) -> RpcResponse:
        """The answer.

        Raises:
            TransportError: the channel failed before it came.
        """
        return await self._answers[str(number)]

    def take(self, raw: bytes | str, inbox: Inbox) -> None:
        """Deliver the messages in a line or an event; of several answers the first counts.

        Raises:
            NotAMessageError: it is not JSON-RPC.
        """
        for message in messages.decode(raw):
            if not isinstance(message, RpcResponse):
                inbox(message, None)
            elif (answer := self._answers.get(message.id or "")) is not None and not answer.done():
                answer.set_result(message)

    def fail(self, failure: TransportError) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(failure)
