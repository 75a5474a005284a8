"""Which era and revision a server speaks.

`auto` asks `server/discover` of 2026-07-28 first and falls back to `initialize` on any answer that
only a server of the handshake era gives. A server may leave the first request unanswered, or be
slow to start: after a while the second one is sent too, both stay open, and the first answer that
agrees is taken. A pinned revision is asked for directly.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio

from aish.config.model import ProtocolChoice
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.channel import BEFORE_AGREEMENT, CLIENT_INFO, Channel, RequestForm
from aish.mcp.protocol.messages import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    CredentialsError,
    HttpStatusError,
    McpError,
    RpcError,
    ServerEndedError,
    TransportError,
    UnreachableError,
)
from aish.mcp.protocol.mirrored_headers import is_header_value
from aish.mcp.protocol.revisions import HANDSHAKE, MODERN
from aish.system.task_group import task_group

CREDENTIALS_REFUSED = frozenset({401, 403, 407})


@frozen
class Agreement:
    """Result of the negotiation; `sent` is the revision requested first."""

    dialect: RequestForm
    sent: str
    capabilities: JsonObject
    instructions: str = ""

    def announces(self, capability: str) -> bool:
        """Return true if the server says when its tools, resources or prompts change."""
        return _object(self.capabilities.get(capability)).get("listChanged") is True

    @property
    def has_subscriptions(self) -> bool:
        return _object(self.capabilities.get("resources")).get("subscribe") is True


async def negotiate(
    speaker: Channel,
    choice: ProtocolChoice,
    capabilities: JsonObject,
    *,
    probe_seconds: float,
    notice: Callable[[str, str], None],
) -> Agreement:
    """Agree with a server on an era and a revision.

    `probe_seconds` is how long only the first request is sent, which may be left unanswered.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    agreement: Agreement | None = None
    version = choice if choice in HANDSHAKE else HANDSHAKE[0]
    greet = partial(_greet, speaker, version, capabilities, MODERN if choice == MODERN else version)
    if choice in {"auto", MODERN}:
        agreement = await _Race(speaker, greet, notice).run(probe_seconds)
    if agreement is None:
        agreement = await greet()
        await _confirm(speaker, agreement)
    pinned = choice not in {"auto", "legacy"}
    got = agreement.dialect.version
    if got != agreement.sent and (pinned or got not in {MODERN, *HANDSHAKE}):
        text = f"protocol version mismatch (sent {agreement.sent}, got {got}); proceeding"
        notice("protocol_mismatch", text)
    return agreement


async def handshake(speaker: Channel, version: str, capabilities: JsonObject) -> Agreement:
    """Agree with a server of the handshake era.

    Raises:
        McpError: the server cannot be reached, or refuses.
    """
    agreement = await _greet(speaker, version, capabilities, version)
    await _confirm(speaker, agreement)
    return agreement


async def _confirm(speaker: Channel, agreement: Agreement) -> None:
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
        RequestForm(got if isinstance(got, str) and is_header_value(got) else version),
        sent,
        _object(result.get("capabilities")),
        _text(result.get("instructions")),
    )


async def _initialize(speaker: Channel, version: str, capabilities: JsonObject) -> JsonObject:
    params: JsonObject = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    return await speaker.ask("initialize", params, BEFORE_AGREEMENT)


class _Race:
    """Both requests, the second one if the first is not answered in time."""

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
        self._refusal: Exception | None = None

    async def run(self, seconds: float) -> Agreement | None:
        """The first answer that agrees; `None` if both are answered and neither does.

        A server of the handshake era has been notified of the agreement.

        Raises:
            McpError: the server cannot be reached, or refuses both.
        """
        async with task_group() as tasks:
            tasks.start_soon(self._probe, tasks.cancel_scope)
            tasks.start_soon(self._greet_later, seconds, tasks.cancel_scope)
        if self._found is None and self._refusal is not None:
            raise self._refusal
        return self._found

    async def _probe(self, scope: anyio.CancelScope) -> None:
        agreement = None
        try:
            agreement = await _discover(self._speaker)
        except HttpStatusError as error:
            # It may be up for the second request; if not, that is to be known.
            if not error.is_down:
                raise
            self._refusal = error
        if agreement is not None and self._found is None:
            self._found = agreement
            scope.cancel()
        self._discovered.set()

    async def _greet_later(self, seconds: float, scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(seconds):
            await self._discovered.wait()
        try:
            agreement = await self._greet_after_restart()
        except (McpError, AishError) as error:
            self._refusal = self._refusal or error
            if not self._discovered.is_set():
                message = f"it refuses `initialize` ({error}); its other answer is waited for"
                self._notice("handshake_refused", message)
            return
        if self._found is None:
            # What cancels the other request may not come before the handshake is over.
            self._found = agreement
            await _confirm(self._speaker, agreement)
            scope.cancel()

    async def _greet_after_restart(self) -> Agreement:
        try:
            return await self._greet()
        except ServerEndedError:
            if self._discovered.is_set():
                raise
        # The process ended because of the first request; it is restarted where that is noticed.
        await self._discovered.wait()
        return await self._greet()


async def _discover(speaker: Channel) -> Agreement | None:
    """The agreement with a stateless server, `None` if the server is of the handshake era."""
    try:
        return await _ask_discover(speaker, MODERN, again=True)
    except RpcError as error:
        if error.code in {HEADER_MISMATCH, MISSING_CAPABILITY}:
            raise
    except ServerEndedError:
        # Some servers exit when the first message is not `initialize`.
        await speaker.open()
    except HttpStatusError as error:
        if error.status in CREDENTIALS_REFUSED or error.is_down:
            raise
    except (UnreachableError, CredentialsError):
        raise
    except TransportError:
        pass  # an answer that is none; in a replay it may be one that was not waited for
    return None


async def _ask_discover(speaker: Channel, version: str, *, again: bool) -> Agreement | None:
    capabilities: JsonObject = {}
    try:
        result = await speaker.ask("server/discover", {}, RequestForm(version, modern=True))
    except RpcError as error:
        if error.code != UNSUPPORTED_VERSION or not again:
            raise
        offered = _versions(error.data, "supported")
    else:
        offered = _versions(result, "supportedVersions")
        capabilities = _object(result.get("capabilities"))
        if version in offered:
            instructions = _text(result.get("instructions"))
            return Agreement(RequestForm(version, modern=True), MODERN, capabilities, instructions)
    best = _best_modern(offered)
    if best is None or not again:
        return None
    return await _ask_discover(speaker, best, again=False)


def _best_modern(offered: Sequence[str]) -> str | None:
    if MODERN in offered:
        return MODERN
    if any(version in HANDSHAKE for version in offered):
        return None
    return max(offered, default=None)


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _versions(value: JsonValue, key: str) -> list[str]:
    listed = _object(value).get(key)
    if not isinstance(listed, list):
        return []
    return [item for item in listed if isinstance(item, str) and is_header_value(item)]
