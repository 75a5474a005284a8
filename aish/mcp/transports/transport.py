"""The interface between a session and its transports.

Implementations: `streamable`, `sse_2024`, `stdio`, and `inprocess` for packs that are recorded.
"""

from collections.abc import Callable
from typing import Protocol

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.mcp.protocol.messages import Noted, RpcResponse, ServerRequest

Headers = tuple[tuple[str, str], ...]
Inbox = Callable[[ServerRequest | Noted, int | None], None]
"""Takes what the server says unasked, with the request on whose answer it came, if known."""


@frozen
class Outgoing:
    """A request of the client; `headers` are for HTTP, other transports ignore them."""

    number: int
    method: str
    params: JsonObject
    headers: Headers = ()


class Transport(Protocol):
    """Carries messages to one server; several exchanges may be pending at the same time."""

    @property
    def over_http(self) -> bool:
        """True if headers matter, and closing a response cancels its request."""

    async def open(self, inbox: Inbox) -> None:
        """Prepare for exchanges; called again after the server was lost.

        Raises:
            TransportError: the server cannot be reached.
        """

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        """Send a request and wait for its answer.

        Raises:
            TransportError: no answer arrived.
        """

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or an answer to the server.

        Raises:
            TransportError: it was not accepted.
        """

    @property
    def has_session(self) -> bool:
        """True if the server keeps a session, and may stream unsolicited messages."""

    async def listen(self, on_open: Callable[[], None]) -> float | None:
        """Receive unsolicited messages until the stream ends.

        If it had any, returns the pause that the server wants before the next stream. `on_open` is
        called once no message can be missed any more.

        Raises:
            TransportError: the stream was lost, or the server offers none.
        """

    async def close(self) -> None: ...


async def hears_already(on_open: Callable[[], None]) -> float | None:
    """`listen` of a transport whose only channel carries all messages."""
    on_open()
    await anyio.sleep_forever()
    return None
