"""Which era and revision a server speaks (M1).

`auto` asks `server/discover` of 2026-07-28 first and falls back to `initialize` on any answer that
only a server of the handshake era gives. A child process may leave the first request unanswered, or
be slow to start: after a while the second one is sent too, both stay open, and the first answer
that agrees is taken. A pinned revision is asked for directly.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio

from aish.config.model import ProtocolChoice
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.channel import (
    BEFORE_AGREEMENT,
    CLIENT_INFO,
    Channel,
    Dialect,
)
from aish.mcp.protocol.messages import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    HttpStatusError,
    LeftError,
    RpcError,
    ServerEndedError,
)
from aish.mcp.protocol.mirrored_headers import is_header_value
from aish.mcp.protocol.revisions import HANDSHAKE, MODERN

CREDENTIALS_REFUSED = frozenset({401, 403, 407})


@frozen
class Agreement:
    """What was agreed on; `sent` is the revision requested first."""

    dialect: Dialect
    sent: str
    capabilities: JsonObject

    def announces(self, capability: str) -> bool:
        """Whether the server says when its tools, resources or prompts change."""
        return _object(self.capabilities.get(capability)).get("listChanged") is True

    @property
    def has_subscriptions(self) -> bool:
        """Whether the server says when a resource was updated, if it is asked to."""
        return _object(self.capabilities.get("resources")).get("subscribe") is True


async def negotiate(
    speaker: Channel,
    choice: ProtocolChoice,
    capabilities: JsonObject,
    *,
    probe_seconds: float | None,
    notice: Callable[[str, str], None],
) -> Agreement:
    """Agree with a server on an era and a revision.

    `probe_seconds` is how long only the first request is sent to a server that may leave it
    unanswered (stdio); `None` waits for its answer, until the caller's own deadline.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    found: Agreement | None = None
    version = choice if choice in HANDSHAKE else HANDSHAKE[0]
    greet = partial(_greet, speaker, version, capabilities, MODERN if choice == MODERN else version)
    if choice in {"auto", MODERN}:
        if probe_seconds is None:
            found = await _discover(speaker)
        else:
            found = await _Race(speaker, greet, notice).run(probe_seconds)
    if found is None:
        found = await greet()
        await _confirm(speaker, found)
    pinned = choice not in {"auto", "legacy"}
    got = found.dialect.version
    if got != found.sent and (pinned or got not in {MODERN, *HANDSHAKE}):
        text = f"protocol version mismatch (sent {found.sent}, got {got}); proceeding"
        notice("protocol_mismatch", text)
    return found


async def handshake(speaker: Channel, version: str, capabilities: JsonObject) -> Agreement:
    """Agree with a server of the handshake era.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    agreement = await _greet(speaker, version, capabilities, version)
    await _confirm(speaker, agreement)
    return agreement


async def _confirm(speaker: Channel, agreement: Agreement) -> None:
    """Tell a server of the handshake era that it may begin."""
    await speaker.tell("notifications/initialized", agreement.dialect)


async def _greet(speaker: Channel, version: str, capabilities: JsonObject, sent: str) -> Agreement:
    """The agreement with a server of the handshake era, before `initialized` is sent."""
    try:
        result = await _initialize(speaker, version, capabilities)
    except RpcError as error:
        offered = [found for found in _versions(error.data, "supported") if found in HANDSHAKE]
        if not offered or version in offered:
            raise
        version = max(offered)
        result = await _initialize(speaker, version, capabilities)
    got = result.get("protocolVersion")
    return Agreement(
        Dialect(got if isinstance(got, str) and is_header_value(got) else version),
        sent,
        _object(result.get("capabilities")),
    )


async def _initialize(speaker: Channel, version: str, capabilities: JsonObject) -> JsonObject:
    params: JsonObject = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    return await speaker.ask("initialize", params, BEFORE_AGREEMENT)


class _Race:
    """Both requests to a child, the second one if the first is not answered in time."""

    def __init__(
        self,
        speaker: Channel,
        greet: Callable[[], Awaitable[Agreement]],
        notice: Callable[[str, str], None],
    ) -> None:
        self._speaker = speaker
        self._greet = greet
        self._notice = notice
        self._found: Agreement | None = None
        self._discovered = anyio.Event()
        self._failure: Exception | None = None

    async def run(self, seconds: float) -> Agreement | None:
        """The first answer that agrees; `None` if both are answered and neither does.

        A server of the handshake era has been notified of the agreement.

        Raises:
            McpError: the server cannot be reached, or refuses both.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._probe, tasks.cancel_scope)
            tasks.start_soon(self._greet_later, seconds, tasks.cancel_scope)
        # A task group would wrap it.
        if self._found is None and self._failure is not None:
            raise self._failure
        return self._found

    async def _probe(self, scope: anyio.CancelScope) -> None:
        try:
            found = await _discover(self._speaker, may_be_left=True)
        except Exception as error:  # ruff: ignore[blind-except] - raised in `run`
            self._failure = error
            scope.cancel()
            return
        if found is not None and self._found is None:
            self._found = found
            scope.cancel()
        self._discovered.set()

    async def _greet_later(self, seconds: float, scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(seconds):
            await self._discovered.wait()
        try:
            found = await self._greeted()
        except Exception as error:  # ruff: ignore[blind-except] - raised in `run`
            self._failure = self._failure or error
            if not self._discovered.is_set():
                said = f"it refuses `initialize` ({error}); its other answer is waited for"
                self._notice("handshake_refused", said)
            return
        if self._found is None:
            await self._settle(found, scope)

    async def _settle(self, found: Agreement, scope: anyio.CancelScope) -> None:
        """Cancel the other request; what cancels it may not come before the handshake is over."""
        self._found = found
        try:
            await _confirm(self._speaker, found)
        except Exception as error:  # ruff: ignore[blind-except] - raised in `run`
            self._found, self._failure = None, error
        scope.cancel()

    async def _greeted(self) -> Agreement:
        try:
            return await self._greet()
        except ServerEndedError:
            if self._discovered.is_set():
                raise
        # The process ended because of the first request; it is restarted where that is noticed.
        await self._discovered.wait()
        return await self._greet()


async def _discover(speaker: Channel, *, may_be_left: bool = False) -> Agreement | None:
    """The agreement with a stateless server, `None` if the server is of the handshake era.

    `may_be_left`: in a replay the request may be one that was left without an answer.
    """
    try:
        return await _ask_discover(speaker, MODERN, again=True)
    except RpcError as error:
        if error.code in {HEADER_MISMATCH, MISSING_CAPABILITY}:
            raise
    except LeftError:
        if not may_be_left:
            raise
    except ServerEndedError:
        # Some servers exit when the first message is not `initialize`.
        await speaker.open()
    except HttpStatusError as error:
        if error.status in CREDENTIALS_REFUSED:
            raise
    return None


async def _ask_discover(speaker: Channel, version: str, *, again: bool) -> Agreement | None:
    """Ask in the dialect of a revision, and once more in one that the answer names."""
    capabilities: JsonObject = {}
    try:
        result = await speaker.ask("server/discover", {}, Dialect(version, modern=True))
    except RpcError as error:
        if error.code != UNSUPPORTED_VERSION or not again:
            raise
        offered = _versions(error.data, "supported")
    else:
        offered = _versions(result, "supportedVersions")
        capabilities = _object(result.get("capabilities"))
        if version in offered:
            return Agreement(Dialect(version, modern=True), MODERN, capabilities)
    best = _best_modern(offered)
    if best is None or not again:
        return None
    return await _ask_discover(speaker, best, again=False)


def _best_modern(offered: Sequence[str]) -> str | None:
    """The stateless revision to continue with: ours, else the newest unknown one."""
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
