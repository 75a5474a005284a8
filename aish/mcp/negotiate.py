"""Which era and revision a server speaks (M1).

`auto` asks `server/discover` of 2026-07-28 first and falls back to `initialize` on any answer that
only a server of the handshake era gives. A pinned revision is asked for directly.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from aish.config.server_entry import ProtocolChoice
from aish.mcp.channel import BEFORE_AGREEMENT, CLIENT_INFO, HANDSHAKE, MODERN, Manner
from aish.mcp.failures import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    HttpStatusError,
    LeftError,
    RpcError,
    ServerEndedError,
)
from aish.mcp.headers import is_header_value
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue

CREDENTIALS_REFUSED = frozenset({401, 403, 407})


@frozen
class Agreement:
    """What was agreed on; `sent` is the revision we asked for first."""

    manner: Manner
    sent: str
    capabilities: JsonObject

    @property
    def announces_tools(self) -> bool:
        """Whether the server says when its tools change."""
        tools = self.capabilities.get("tools")
        return isinstance(tools, dict) and tools.get("listChanged") is True


class Speaker(Protocol):
    """What negotiation needs of a `Channel`."""

    async def open(self) -> None:
        """Reach the server again."""
        ...

    async def ask(self, method: str, params: JsonObject, manner: Manner) -> JsonObject:
        """The result of a request."""
        ...

    async def tell(self, method: str, manner: Manner) -> None:
        """Send a notification."""
        ...


async def negotiate(
    speaker: Speaker,
    choice: ProtocolChoice,
    capabilities: JsonObject,
    *,
    probe_seconds: float | None,
    notice: Callable[[str, str], None],
) -> Agreement:
    """Agree with a server on how to speak.

    `probe_seconds` bounds the first question where an old server may leave it unanswered (stdio);
    `None` leaves that to the caller's own deadline.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    found: Agreement | None = None
    if choice in {"auto", MODERN}:
        found = await _discover(speaker, probe_seconds)
    if found is None:
        version = choice if choice in HANDSHAKE else HANDSHAKE[0]
        sent = MODERN if choice == MODERN else version
        found = await handshake(speaker, version, capabilities, sent=sent)
    pinned = choice not in {"auto", "legacy"}
    got = found.manner.version
    if got != found.sent and (pinned or got not in {MODERN, *HANDSHAKE}):
        text = f"protocol version mismatch (sent {found.sent}, got {got}); proceeding"
        notice("protocol_mismatch", text)
    return found


async def handshake(
    speaker: Speaker, version: str, capabilities: JsonObject, *, sent: str | None = None
) -> Agreement:
    """Agree with a server of the handshake era.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    sent = version if sent is None else sent
    try:
        result = await _initialize(speaker, version, capabilities)
    except RpcError as error:
        offered = [found for found in _versions(error.data, "supported") if found in HANDSHAKE]
        if not offered or version in offered:
            raise
        version = max(offered)
        result = await _initialize(speaker, version, capabilities)
    got = result.get("protocolVersion")
    agreement = Agreement(
        Manner(got if isinstance(got, str) and is_header_value(got) else version),
        sent,
        _object(result.get("capabilities")),
    )
    await speaker.tell("notifications/initialized", agreement.manner)
    return agreement


async def _initialize(speaker: Speaker, version: str, capabilities: JsonObject) -> JsonObject:
    params: JsonObject = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    return await speaker.ask("initialize", params, BEFORE_AGREEMENT)


async def _discover(speaker: Speaker, probe_seconds: float | None) -> Agreement | None:
    """The agreement with a stateless server, `None` where the server is of the handshake era."""
    with anyio.move_on_after(probe_seconds):
        try:
            return await _ask_discover(speaker, MODERN, again=True)
        except RpcError as error:
            if error.code in {HEADER_MISMATCH, MISSING_CAPABILITY}:
                raise
        except LeftError:
            if probe_seconds is None:
                raise
        except ServerEndedError:
            # Some servers exit when the first message is not `initialize`.
            await speaker.open()
        except HttpStatusError as error:
            if error.status in CREDENTIALS_REFUSED:
                raise
    return None


async def _ask_discover(speaker: Speaker, version: str, *, again: bool) -> Agreement | None:
    """Ask in the manner of a revision, and once more in one that the answer names."""
    capabilities: JsonObject = {}
    try:
        result = await speaker.ask("server/discover", {}, Manner(version, modern=True))
    except RpcError as error:
        if error.code != UNSUPPORTED_VERSION or not again:
            raise
        offered = _versions(error.data, "supported")
    else:
        offered = _versions(result, "supportedVersions")
        capabilities = _object(result.get("capabilities"))
        if version in offered:
            return Agreement(Manner(version, modern=True), MODERN, capabilities)
    best = _best_modern(offered)
    if best is None or not again:
        return None
    return await _ask_discover(speaker, best, again=False)


def _best_modern(offered: Sequence[str]) -> str | None:
    """The stateless revision to go on with: ours, else the newest one that nobody told us of."""
    if MODERN in offered:
        return MODERN
    if any(version in HANDSHAKE for version in offered):
        return None
    return max(offered, default=None)


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _versions(value: JsonValue, key: str) -> list[str]:
    listed = _object(value).get(key)
    if not isinstance(listed, list):
        return []
    return [item for item in listed if isinstance(item, str) and is_header_value(item)]
