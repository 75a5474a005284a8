"""The seam between a session and the ways to reach a server.

Real ones: `streamable`, `events`, `stdio`; the twin in memory that ships is `inprocess`.
"""

from collections.abc import Callable
from typing import Protocol

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.mcp.protocol.messages import Answer, Asked, Noted

Headers = tuple[tuple[str, str], ...]
Inbox = Callable[[Asked | Noted, int | None], None]
"""Takes what the server says unasked, with the request on whose answer it came, if known."""


@frozen
class Outgoing:
    """A request of ours; `headers` are for HTTP, others leave them."""

    number: int
    method: str
    params: JsonObject
    headers: Headers = ()


class Transport(Protocol):
    """Carries messages to one server; several exchanges may be under way at the same time."""

    @property
    def over_http(self) -> bool:
        """Whether headers matter, and closing an answer cancels its request."""
        ...

    async def open(self, inbox: Inbox) -> None:
        """Get ready to exchange; called again after the server was lost.

        Raises:
            TransportError: the server is out of reach.
        """
        ...

    async def exchange(self, outgoing: Outgoing) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            TransportError: no answer came.
        """
        ...

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification, or an answer of ours.

        Raises:
            TransportError: it was not taken.
        """
        ...

    @property
    def has_session(self) -> bool:
        """Whether the server keeps a session, and may speak unasked on a stream of its own."""
        ...

    async def listen(self, heard: anyio.Event, headers: Headers = ()) -> None:
        """Hear what the server says unasked, where that needs a stream of its own.

        `heard` is set once nothing that is said can be missed any more.

        Raises:
            TransportError: the stream was lost.
        """
        ...

    async def close(self) -> None:
        """Let go of the server."""
        ...


async def hears_already(heard: anyio.Event, headers: Headers = ()) -> None:  # ruff: ignore[unused-function-argument, unused-async] - `Transport.listen`
    """`listen` of a transport whose one channel brings all there is."""
    heard.set()
