"""Clients of one connection each, kept for the next request."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closed(Protocol):
    """What can be closed."""

    async def aclose(self) -> None:
        """Close it."""
        ...


Client = TypeVar("Client", bound=Closed)


class Clients(Generic[Client]):
    """One client for each connection, opened as needed.

    For each request that begins or ends, an httpx pool looks at all of its connections and, for
    each of these, at all of them again: with 32 in a pool that is five milliseconds a request.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._all: list[Client] = []
        self._idle: list[Client] = []

    def take(self) -> Client:
        """A client that nobody else uses; the one that was used last is most likely connected."""
        if self._idle:
            return self._idle.pop()
        client = self._make()
        self._all.append(client)
        return client

    def give_back(self, client: Client) -> None:
        """It may be used again."""
        self._idle.append(client)

    async def aclose(self) -> None:
        """Close every connection."""
        clients, self._all = self._all, []
        for client in clients:
            await client.aclose()
