"""The client of the control API for an event loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import anyio

from aish.control.errors import ControlError
from aish.control.event_stream import AsyncEventStream
from aish.control.http_exchange import (
    CONNECT_SECONDS,
    ControlConnection,
    Deadline,
    Opened,
    OutgoingRequest,
    RequestSender,
    headers_of,
)
from aish.control.operations import Operations
from aish.control.run_endpoint import RunEndpoint

if TYPE_CHECKING:
    import httpx


@dataclass(eq=False)
class AsyncExchange(RequestSender):
    """Sends and receives with httpx, in the event loop of the caller."""

    _clients: "dict[RunEndpoint, httpx.AsyncClient]" = field(default_factory=dict, init=False)

    async def close_answer(self, opened: Opened) -> None:
        """Close an answer, even if the task is cancelled."""
        response, _ = opened.handle
        with anyio.CancelScope(shield=True):
            await response.aclose()

    async def close(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    async def _sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def _open(self, endpoint: RunEndpoint, request: OutgoingRequest) -> Opened:
        import httpx

        client = self._clients.get(endpoint)
        if client is None:
            # No proxy, and nothing else of the environment.
            transport = httpx.AsyncHTTPTransport(
                verify=self._tls_context() if endpoint.is_tls else False,
                trust_env=False,
                uds=endpoint.path,
            )
            client = self._clients.setdefault(endpoint, httpx.AsyncClient(transport=transport))
        times = httpx.Timeout(request.seconds, connect=min(request.seconds, CONNECT_SECONDS))
        sent = httpx.Request(
            request.method,
            f"{endpoint.url}{request.path}",
            headers=headers_of(endpoint, request),
            content=request.content,
            extensions={"timeout": times.as_dict()},
        )
        try:
            response = await client.send(sent, stream=True)
        except httpx.TransportError as error:
            raise _failure(endpoint, error) from error
        return Opened(response.status_code, endpoint, (response, response.aiter_raw()))

    async def _read(self, opened: Opened) -> bytes:
        import httpx

        _, pieces = opened.handle
        try:
            data: bytes = await anext(pieces, b"")
        except httpx.TransportError as error:
            raise _failure(opened.endpoint, error) from error
        return data


class AsyncClient(ControlConnection, Operations):
    """A `Client` with async methods; `wait_for_…` methods and streams can be cancelled.

    `async with` closes its connections. It belongs to one event loop.
    """

    _exchange_type = AsyncExchange

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._exchange.close()

    def follow(self, after: int | None = None, *, timeout: float | None = None) -> AsyncEventStream:
        """Yield the events after a number as they happen, by default from the oldest kept one.

        Ends with `run.finished`. With a `timeout`, iterating longer is a `WaitTimeoutError`.
        """
        deadline = Deadline(timeout, "the stream of events did not end")
        return AsyncEventStream(self._exchange, after, deadline)


def _failure(endpoint: RunEndpoint, error: "httpx.TransportError") -> ControlError:
    """Return the error for a missing or incomplete answer."""
    import httpx

    why = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return endpoint.not_listening(why)
    if isinstance(error, httpx.ReadTimeout):
        return endpoint.silent()
    return endpoint.loss_error(why)
