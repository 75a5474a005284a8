"""One client of the MCP server: its requests by id, its era, its subscriptions (H12, H15).

A listener gives it messages and takes what it answers. Both eras are spoken beside each other: a
request with the `_meta` of the stateless era stands for itself, `initialize` begins a session of
the handshake era.
"""

from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_hex
from typing import Any

import anyio

from aish import __version__
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Progress
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    RpcError,
    json_object,
)
from aish.mcp.protocol.requests import (
    INVALID_REQUEST,
    Notification,
    Request,
    RequestId,
    Response,
    answer,
    dump,
    failure,
    notice,
)
from aish.mcp.protocol.revisions import (
    BATCHING,
    CAPABILITIES_KEY,
    HANDSHAKE,
    MODERN,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    VERSION_KEY,
)
from aish.serve.audit import Caller
from aish.serve.calls import RESULT_TYPE, Report
from aish.serve.client_requests import ClientRequests, StreamOwner, offered_capabilities
from aish.serve.held_calls import StatelessOwner
from aish.serve.hub import Hub

TOOLS_CHANGED = "notifications/tools/list_changed"
TTL_MS = 1000
"""How long a list may be kept without asking: as long as a change takes to be told (H5)."""
_MOST_REQUESTS = 512
_MOST_SUBSCRIPTIONS = 64

Notify = Callable[[bytes, str], None]
"""Sends a notification on the way of a request. One with the same key that still waits to be sent
is replaced by it."""


@slotted
class _Subscription:
    """An open `subscriptions/listen`."""

    id: RequestId
    notify: Notify


class Session:
    """What is known of one client, as long as it is connected.

    `tell` sends it a notification that belongs to no request, in the handshake era.
    """

    def __init__(
        self,
        hub: Hub,
        client: str,
        peer: JsonObject,
        tell: Callable[[bytes], None],
        tools: tuple[str, ...] = (),
    ) -> None:
        self.caller = Caller(client, token_hex(8), peer)
        self.version: str | None = None
        """The revision that was agreed on in the handshake."""
        self._hub = hub
        self._tell = tell
        self._offer = hub.offer(tools)
        self._is_ready = False
        self._places = hub.calls.places()
        self._capabilities: JsonObject = {}
        self._requests = ClientRequests(hub.settings.limits.message)
        self._running: dict[tuple[type, RequestId], anyio.CancelScope] = {}
        self._subscriptions: list[_Subscription] = []
        self._offer.watchers.add(self._tools_changed)

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        return not self._running

    @property
    def takes_arrays(self) -> bool:
        """Whether several messages may come as an array."""
        return self.version == BATCHING

    def admit(self, request: Request) -> anyio.CancelScope:
        """The scope that a request is answered in: from now on the client can cancel it.

        Raises:
            RpcError: it is not answered.
        """
        if self._hub.draining.is_set():
            raise RpcError(INTERNAL_ERROR, "the server is shutting down")
        key = (type(request.id), request.id)
        if key in self._running:
            raise RpcError(INVALID_REQUEST, "another request with this id is being answered")
        if len(self._running) >= _MOST_REQUESTS:
            raise RpcError(INTERNAL_ERROR, "busy: too many open requests")
        self._running[key] = scope = anyio.CancelScope()
        return scope

    async def answer(
        self, request: Request, scope: anyio.CancelScope, notify: Notify
    ) -> bytes | None:
        """The answer to a request that was admitted; `None` if it was cancelled."""
        found: bytes | None = None
        try:
            with self._hub.answering(scope), scope:
                found = answer(request.id, await self._result(request, notify))
            if found is None and self._hub.is_cut_off:
                said = "this request was cut off: the server is shutting down"
                found = failure(request.id, RpcError(INTERNAL_ERROR, said))
        except RpcError as error:
            found = failure(request.id, error)
        except Exception as error:  # ruff: ignore[blind-except] - a fault of ours ends one request
            self._hub.report(error)
            said = "the server has failed at this request"
            found = failure(request.id, RpcError(INTERNAL_ERROR, said))
        finally:
            del self._running[type(request.id), request.id]
        return found

    def take(self, message: Notification | Response) -> None:
        """What the client tells or answers; what is unknown, or comes too late, is ignored."""
        if isinstance(message, Response):
            self._requests.answered(message)
            return
        match message.method:
            case "notifications/initialized":
                self._is_ready = self.version is not None
            case "notifications/cancelled":
                id = message.params.get("requestId")
                scope = self._running.get((type(id), id)) if isinstance(id, str | int) else None
                if scope is not None:
                    scope.cancel()
            case "notifications/progress":
                self._requests.progressed(message.params)

    def close(self) -> None:
        """The client is gone: nothing of it goes on."""
        self._offer.watchers.discard(self._tools_changed)
        for scope in tuple(self._running.values()):
            scope.cancel()
        self._hub.held.end(self.caller.session)

    def _tools_changed(self) -> None:
        """Tell the client that its list is another one."""
        for one in tuple(self._subscriptions):
            params: JsonObject = {"_meta": {SUBSCRIPTION_KEY: one.id}}
            one.notify(notice(TOOLS_CHANGED, params), f"{TOOLS_CHANGED} {one.id!r}")
        if self._is_ready:
            self._tell(notice(TOOLS_CHANGED))

    async def _result(self, request: Request, notify: Notify) -> bytes:
        meta = json_object(request.params.get("_meta"))
        is_modern = VERSION_KEY in meta
        if is_modern:
            _check_modern(meta)
        elif self.version is None and request.method not in {"initialize", "ping"}:
            said = f"send `initialize` first, or each request with `_meta.{VERSION_KEY}`"
            raise RpcError(INVALID_PARAMS, said, {"supported": [MODERN, *HANDSHAKE]})
        match request.method:
            case "tools/list":
                return await self._list(request, is_modern=is_modern)
            case "tools/call":
                return await self._call(request, meta, notify, is_modern=is_modern)
            case "server/discover" if is_modern:
                return dump(self._discovered())
            case "subscriptions/listen" if is_modern:
                return await self._listen(request, notify)
            case "initialize" if not is_modern:
                return dump(self._begin(request))
            case "ping" if not is_modern:
                return b"{}"
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {request.method}")

    def _begin(self, request: Request) -> JsonObject:
        """Begin a session of the handshake era."""
        asked = request.params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcError(INVALID_PARAMS, "`protocolVersion` has to be a text")
        if self.version is not None:
            raise RpcError(INVALID_REQUEST, "the session has begun already")
        self.version = asked if asked in HANDSHAKE else HANDSHAKE[0]
        self._capabilities = json_object(request.params.get("capabilities"))
        return {
            "protocolVersion": self.version,
            "capabilities": _CAPABILITIES,
            "serverInfo": self._server_info(),
            **self._instructions(),
        }

    def _discovered(self) -> JsonObject:
        return self._completed(
            {
                "supportedVersions": [MODERN, *HANDSHAKE],
                "capabilities": _CAPABILITIES,
                **self._instructions(),
                **_CACHE,
            }
        )

    def _server_info(self) -> JsonObject:
        return {"name": self._hub.name, "version": __version__}

    def _instructions(self) -> JsonObject:
        text = self._hub.settings.instructions
        return {} if text is None else {"instructions": text}

    def _completed(self, result: JsonObject) -> JsonObject:
        """A result with what the stateless era has in each."""
        meta = json_object(result.get("_meta"))
        ours = {**meta, SERVER_KEY: self._server_info()}
        return {RESULT_TYPE: "complete", **result, "_meta": ours}

    async def _list(self, request: Request, *, is_modern: bool) -> bytes:
        await self._hub.settled()
        cursor = request.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise RpcError(INVALID_PARAMS, "`cursor` has to be a text")
        page, following = self._offer.page(cursor)
        rest: dict[str, JsonValue] = {} if following is None else {"nextCursor": following}
        if is_modern:
            rest |= self._completed(_CACHE)
        more = b"," + dump(rest)[1:] if rest else b"}"
        return b'{"tools":%b%b' % (page, more)

    async def _call(
        self, request: Request, meta: JsonObject, notify: Notify, *, is_modern: bool
    ) -> bytes:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if arguments is None:
            arguments = {}  # some clients write `null` for none
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "`name` has to be a text")
        if not isinstance(arguments, Mapping):
            raise RpcError(INVALID_PARAMS, "`arguments` has to be an object")
        await self._hub.settled()
        tool = self._hub.tool(self._offer, name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name}")
        report = _reporter(meta.get("progressToken"), notify)
        call = partial(
            self._hub.calls.call,
            self.caller,
            self._places,
            lambda: self._hub.tool(self._offer, name),
            tool,
            arguments,
        )
        declared = json_object(meta.get(CAPABILITIES_KEY)) if is_modern else self._capabilities
        offered = offered_capabilities(declared, self._hub.settings.forward)
        if not is_modern:
            owner = StreamOwner(self.caller.client, offered, self._requests, notify)
            return await call(report, dict, owner)

        async def make(owner: StatelessOwner, report: Report) -> bytes:
            return await call(report, self._completed, owner)

        subject: JsonValue = [request.method, name, arguments]
        held, params = self._hub.held, request.params
        found = await held.make(self.caller, subject, params, offered, report, make)
        return found if isinstance(found, bytes) else dump(self._completed(found))

    async def _listen(self, request: Request, notify: Notify) -> bytes:
        """Tell of changes until the client cancels this, or the server ends."""
        wanted = request.params.get("notifications")
        if not isinstance(wanted, Mapping):
            raise RpcError(INVALID_PARAMS, "`notifications` has to be an object")
        if len(self._subscriptions) >= _MOST_SUBSCRIPTIONS:
            raise RpcError(INTERNAL_ERROR, "busy: too many subscriptions")
        honored = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        meta: JsonObject = {SUBSCRIPTION_KEY: request.id}
        params: JsonObject = {"_meta": meta, "notifications": honored}
        notify(notice("notifications/subscriptions/acknowledged", params), "")
        one = _Subscription(request.id, notify)
        if honored:
            self._subscriptions.append(one)
        try:
            await self._hub.draining.wait()
        finally:
            if honored:
                self._subscriptions.remove(one)
        return dump(self._completed({"_meta": meta}))


_CAPABILITIES: JsonObject = {"tools": {"listChanged": True}}
_CACHE: JsonObject = {"ttlMs": TTL_MS, "cacheScope": "private"}


def _check_modern(meta: JsonObject) -> None:
    """Check what each request of the stateless era has to say.

    Raises:
        RpcError: it does not, or names a revision that is not spoken.
    """
    version = meta[VERSION_KEY]
    if version != MODERN:
        data: JsonObject = {"supported": [MODERN, *HANDSHAKE], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)
    if not isinstance(meta.get(CAPABILITIES_KEY), Mapping):
        raise RpcError(INVALID_PARAMS, f"`_meta.{CAPABILITIES_KEY}` has to be an object")


def _reporter(token: Any, notify: Notify) -> Callable[[Progress], None]:
    """Passes on the progress of a call, as long as it rises, if the client gave a token for it."""
    if isinstance(token, bool) or not isinstance(token, str | int):
        return lambda _: None
    highest: float | None = None

    def report(progress: Progress) -> None:
        nonlocal highest
        if highest is not None and progress.progress <= highest:
            return
        highest = progress.progress
        params: dict[str, JsonValue] = {
            "progressToken": token,
            "progress": _number(progress.progress),
        }
        if progress.total is not None:
            params["total"] = _number(progress.total)
        if progress.message is not None:
            params["message"] = progress.message
        notify(notice("notifications/progress", params), f"progress {token!r}")

    return report


def _number(value: float) -> float | int:
    """A whole number as one: `1`, not `1.0`."""
    return int(value) if value.is_integer() else value
