"""A client of the MCP server: its requests by id, its era, its subscriptions.

A listener passes messages to it and takes its answers. Both eras can be used at the same time: a
request with the `_meta` of the stateless era is independent, and `initialize` begins a session of
the handshake era.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any
from weakref import WeakSet

import anyio
from anyio.lowlevel import checkpoint

from aish import __version__
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import backticked
from aish.core.protocols import Progress
from aish.core.tools import Tool
from aish.mcp.client.server_requests import Call
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    RpcError,
    json_object,
)
from aish.mcp.protocol.requests import (
    INVALID_REQUEST,
    ClientRequest,
    ClientResponse,
    Invalid,
    Notification,
    Received,
    RequestId,
    answer,
    dump,
    failure,
    notice,
)
from aish.mcp.protocol.revisions import (
    ACKNOWLEDGED,
    BATCHING,
    CAPABILITIES_KEY,
    HANDSHAKE,
    LIST_CHANGES,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    LOG_MESSAGE,
    MODERN,
    PAGE_COMPLETED,
    RESOURCE_UPDATED,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    VERSION_KEY,
    trace_in,
)
from aish.packs.catalogue import call_arguments
from aish.packs.pack_error import PackError
from aish.packs.tool_results import failure as pack_failure
from aish.serve.calls.calls import RESULT_TYPE, own_part
from aish.serve.calls.client_requests import (
    ClientRequests,
    StreamOwner,
    capabilities_for_servers,
    fills_forms,
)
from aish.serve.calls.pending_calls import (
    TASK_MOVED,
    TASKS,
    PendingCall,
    TaskTerms,
    require_tasks,
    takes_tasks,
)
from aish.serve.calls.waiting_calls import BusyError, Owner
from aish.serve.clients import AuthenticatedClient
from aish.serve.hub import Hub
from aish.serve.offer.offers import ListName
from aish.serve.passthrough import error_for
from aish.serve.records.audit import Caller
from aish.serve.records.metrics import NONE, OTHER
from aish.system.task_group import task_group

_CACHE: JsonObject = {"ttlMs": 1000, "cacheScope": "private"}
"""How long a list may be kept without asking: as long as a change takes to be told."""
_MOST_REQUESTS = 512
_AT_ONCE = 1.0
"""Seconds in which the run of a pipeline has begun that is a task at once, or was refused."""
_MOST_SUBSCRIPTIONS = 64
_MOST_TASKS = 256
"""Tasks that one subscription may hear of."""
_MOST_RESOURCES = 256
"""Resources that one client may hear updates of."""
_MOST_LOGS = 64
"""Log messages that wait to be sent to one client; a later one replaces the oldest."""
_USUAL_LEVEL = "info"
"""From where on a client of the handshake era gets log messages that has not said it."""
_RUN_KEY = "aish/run_key"
"""The key of a request's `_meta` that tells calls of a pipeline apart which are equal."""
_LISTING: Mapping[str, ListName] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
_NEEDED = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "resources/subscribe": "resources",
    "resources/unsubscribe": "resources",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}
"""The capability without which there is no such method."""
_HANDSHAKE_ONLY = frozenset(
    {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
_OF_TASKS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
_MODERN_ONLY = frozenset({"server/discover", "subscriptions/listen", *_OF_TASKS})

Notify = Callable[[bytes, str], None]
"""Sends a notification on the way of a request. One with the same key that still waits to be sent
is replaced by it."""


def unheard(message: bytes, key: str) -> None:
    """Discard a notification, for a client that accepts only the answer and cannot be asked."""


Admitted = tuple[ClientRequest, anyio.CancelScope]
Make = Callable[[Call, Owner], Awaitable[bytes]]
"""Makes a request to a server, for its owner: the JSON of the result."""


@slotted
class _Subscription:
    """An open `subscriptions/listen`."""

    id: RequestId
    notify: Notify
    capabilities: frozenset[str]
    """Of what it tells that a list has changed."""


@frozen
class StatelessClient:
    """The id and the places shared by all requests of a stateless client."""

    id: str
    places: anyio.Semaphore


class _ToolNow:
    """Finds the tool of a call; the first time it is `known`, because it was just found."""

    def __init__(self, hub: Hub, proof: AuthenticatedClient, name: str, known: Tool) -> None:
        self._hub = hub
        self._proof = proof
        self._name = name
        self.known: Tool | None = known

    def __call__(self) -> Tool | None:
        found, self.known = self.known, None
        if found is not None:
            return found
        # A task may come to its call when its client sees other tools, or is none any more.
        client = self._hub.clients.current(self._proof)
        if client is None:
            return None
        return self._hub.tool(self._hub.offer(client.tools), self._name)


class ClientSession:
    """A client while it is connected.

    `tell` sends it a notification that belongs to no request, in the handshake era. With
    `stateless` it is a single request of such a client, which may have others.
    """

    def __init__(
        self,
        hub: Hub,
        proof: AuthenticatedClient,
        peer: JsonObject,
        tell: Callable[[bytes], None],
        stateless: StatelessClient | None = None,
    ) -> None:
        common, client = (
            stateless or StatelessClient(token_hex(8), hub.calls.places()),
            proof.client,
        )
        self.caller = Caller(client.name, common.id, peer)
        self.version: str | None = None
        """The revision that was agreed on in the handshake."""
        self._hub = hub
        self._tell = tell
        self._proof = proof
        self._offer = hub.offer(client.tools)
        self._shown = self._offer if client.listed is None else hub.offer(client.listed)
        """The tools in its list; it may be able to call fewer."""
        self._is_ready = False
        self._places = common.places
        self._is_common = stateless is not None
        self._capabilities: JsonObject = {}
        self._requests = ClientRequests(hub.settings.limits.message)
        self._running: dict[tuple[type, RequestId], anyio.CancelScope] = {}
        self._withdrawn: WeakSet[anyio.CancelScope] = WeakSet()
        self._subscriptions: list[_Subscription] = []
        self._resources: dict[str, Callable[[JsonObject], None]] = {}
        """What a client of the handshake era wants to hear updates of."""
        self._level = _USUAL_LEVEL
        self._logged = 0
        self._shown.watchers.add(self._list_changed)
        hub.passthrough.loggers.add(self._log)
        hub.passthrough.on_page.add(self._page_completed)

    @property
    def is_idle(self) -> bool:
        return not self._running

    @property
    def takes_arrays(self) -> bool:
        """True if several messages may arrive as an array."""
        return self.version == BATCHING

    def admit(self, request: ClientRequest) -> anyio.CancelScope:
        """Return the scope for a request; from now on the client can cancel it.

        Raises:
            RpcError: the request is refused.
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
        self, request: ClientRequest, scope: anyio.CancelScope, notify: Notify
    ) -> bytes | None:
        """Answer an admitted request; `None` if it was cancelled."""
        try:
            return await self.respond(request, scope, notify)
        except RpcError as error:
            return failure(request.id, error)

    async def respond(
        self, request: ClientRequest, scope: anyio.CancelScope, notify: Notify
    ) -> bytes | None:
        """Answer an admitted request, and raise an error instead of returning it.

        Raises:
            RpcError: the request is refused.
        """
        exchanges = self._hub.exchanges
        exchange = exchanges and exchanges.begin(self.caller.session, request)
        if not exchange:
            return await self._respond(request, scope, notify)

        def tell(message: bytes, key: str) -> None:
            exchange.tell(message)
            notify(message, key)

        reply = None
        try:
            reply = await self._respond(request, scope, tell)
        except RpcError as error:
            reply = failure(request.id, error)
            raise
        finally:
            exchange.end(reply)
        return reply

    async def _respond(
        self, request: ClientRequest, scope: anyio.CancelScope, notify: Notify
    ) -> bytes | None:
        try:
            with self._hub.track_answer(scope), scope:
                if scope.cancel_called:
                    await checkpoint()
                return answer(request.id, await self._result(request, notify))
        except RpcError:
            raise
        except Exception as error:
            self._hub.report(error)
            message = "the server has failed at this request"
            raise RpcError(INTERNAL_ERROR, message) from error
        finally:
            del self._running[type(request.id), request.id]
        if self._hub.is_cut_off:
            message = "this request was cut off: the server is shutting down"
            raise RpcError(INTERNAL_ERROR, message)
        return None

    def admit_all(self, messages: Sequence[Received]) -> tuple[list[bytes], list[Admitted]]:
        """Admit the messages of an array: return the answers to refused ones, and the requests."""
        answers: list[bytes] = []
        admitted: list[Admitted] = []
        for message in messages:
            if isinstance(message, ClientRequest):
                try:
                    admitted.append((message, self.admit(message)))
                except RpcError as error:
                    answers.append(failure(message.id, error))
            elif isinstance(message, Invalid):
                answers.append(failure(message.id, message.error))
            else:
                self.take(message)
        return answers, admitted

    async def answer_all(
        self, answers: list[bytes], admitted: Sequence[Admitted], notify: Notify
    ) -> bytes | None:
        """Answer the requests of an array, each by itself, and return all answers together."""

        async def one(request: ClientRequest, scope: anyio.CancelScope) -> None:
            reply = await self.answer(request, scope, notify)
            if reply is not None:
                answers.append(reply)

        async with task_group() as tasks:
            for request, scope in admitted:
                tasks.start_soon(one, request, scope)
        return b"[%b]" % b",".join(answers) if answers else None

    def take(self, message: Notification | ClientResponse) -> None:
        """Handle a notification or an answer; unknown and late ones are ignored."""
        exchanges = self._hub.exchanges
        if exchange := exchanges and exchanges.begin(self.caller.session, message):
            exchange.end(b"")
        if isinstance(message, ClientResponse):
            self._requests.take_answer(message)
            return
        match message.method:
            case "notifications/initialized":
                self._is_ready = self.version is not None
            case "notifications/cancelled":
                id = message.params.get("requestId")
                scope = self._running.get((type(id), id)) if isinstance(id, str | int) else None
                if scope is not None:
                    self._withdrawn.add(scope)
                    scope.cancel()
            case "notifications/progress":
                self._requests.take_progress(message.params)

    @property
    def agreement(self) -> JsonObject:
        """The result of the handshake, for `take_over`."""
        version, capabilities = self.version, self._capabilities
        return {"session": self.caller.session, "version": version, "capabilities": capabilities}

    def take_over(self, agreement: JsonObject) -> bool:
        """Continue a session of another process; false if that is not possible."""
        name, version = agreement.get("session"), agreement.get("version")
        if not isinstance(name, str) or version not in HANDSHAKE:
            return False
        self.caller = replace(self.caller, session=name)
        self.version, self._is_ready = str(version), True
        self._capabilities = json_object(agreement.get("capabilities"))
        return True

    def follow(self, proof: AuthenticatedClient, peer: JsonObject) -> None:
        """Use another token of the client, with other permissions, from now on."""
        client, self._proof = proof.client, proof
        self.caller = replace(self.caller, peer=peer)
        self._shown.watchers.discard(self._list_changed)
        before, self._offer = self._shown, self._hub.offer(client.tools)
        self._shown = self._offer if client.listed is None else self._hub.offer(client.listed)
        self._shown.watchers.add(self._list_changed)
        if self._shown is not before:
            for capability in LIST_CHANGES.keys() & self._server_capabilities():
                self._list_changed(capability)

    def close(self) -> None:
        """Cancel everything of a client that has disconnected."""
        self._shown.watchers.discard(self._list_changed)
        passthrough = self._hub.passthrough
        passthrough.loggers.discard(self._log)
        passthrough.on_page.discard(self._page_completed)
        passthrough.forget(self)
        for uri in tuple(self._resources):
            passthrough.unsubscribe(uri, self._resources.pop(uri))
        for scope in tuple(self._running.values()):
            scope.cancel()
        if not self._is_common:
            self._hub.pending.end(self.caller.session)

    def _list_changed(self, capability: str) -> None:
        method = LIST_CHANGES[capability]
        for subscription in tuple(self._subscriptions):
            if capability in subscription.capabilities:
                params: JsonObject = {"_meta": {SUBSCRIPTION_KEY: subscription.id}}
                subscription.notify(notice(method, params), f"{method} {subscription.id!r}")
        if self._is_ready:
            self._tell(notice(method))

    def _log(self, params: JsonObject) -> None:
        if self._is_ready:
            self._logger(self._level, lambda data, _: self._tell(data))(params)

    def _page_completed(self, alias: str, params: JsonObject) -> None:
        id = params.get("elicitationId")
        if self._is_ready and self._requests.was_asked(alias, id):
            self._tell(notice(PAGE_COMPLETED, {"elicitationId": id}))

    def _logger(self, level: str, notify: Notify) -> Callable[[JsonObject], None]:

        def log(params: JsonObject) -> None:
            minimum = params.get("level")
            if minimum in LOG_LEVELS and LOG_LEVELS.index(str(minimum)) >= LOG_LEVELS.index(level):
                self._logged += 1
                message = notice(LOG_MESSAGE, own_part(params))
                if len(message) <= self._hub.settings.limits.message:
                    notify(message, f"log {self._logged % _MOST_LOGS}")

        return log

    async def _result(self, request: ClientRequest, notify: Notify) -> bytes:  # ruff: ignore[complex-structure, too-many-branches, too-many-return-statements] - one for each method
        meta = json_object(request.params.get("_meta"))
        is_modern = VERSION_KEY in meta
        if is_modern:
            _check_modern(meta)
        elif self.version is None and request.method not in {"initialize", "ping"}:
            message = f"send `initialize` first, or each request with `_meta.{VERSION_KEY}`"
            raise RpcError(INVALID_PARAMS, message, {"supported": [MODERN, *HANDSHAKE]})
        method = request.method
        needed = _NEEDED.get(method)
        if method in (_HANDSHAKE_ONLY if is_modern else _MODERN_ONLY) or (
            needed is not None and needed not in self._server_capabilities()
        ):
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")
        match method:
            case "tools/call":
                return await self._call(request, notify, is_modern=is_modern)
            case "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list":
                return await self._list(request, is_modern=is_modern)
            case "prompts/get" | "resources/read" | "completion/complete":
                return await self._pass_on(request, notify, is_modern=is_modern)
            case "subscriptions/listen":
                return await self._listen(request, notify)
            case "resources/subscribe" | "resources/unsubscribe":
                return await self._subscribe(request)
            case "logging/setLevel":
                self._level = _level(request.params.get("level"))
                self._hub.passthrough.want_level(self, self._level)
                return b"{}"
            case "server/discover":
                return dump(await self._discover())
            case _ if method in _OF_TASKS:
                return dump(self._complete(await self._task(request)))
            case "initialize":
                return dump(await self._begin(request))
            case "ping":
                return b"{}"
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")

    async def _begin(self, request: ClientRequest) -> JsonObject:
        asked = request.params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcError(INVALID_PARAMS, "`protocolVersion` has to be a text")
        if self.version is not None:
            raise RpcError(INVALID_REQUEST, "the session has begun already")
        self.version = asked if asked in HANDSHAKE else HANDSHAKE[0]
        self._capabilities = json_object(request.params.get("capabilities"))
        return {
            "protocolVersion": self.version,
            "capabilities": self._server_capabilities(),
            "serverInfo": self._server_info(),
            **await self._instructions(),
        }

    async def _discover(self) -> JsonObject:
        return self._complete(
            {
                "supportedVersions": [MODERN, *HANDSHAKE],
                "capabilities": {**self._server_capabilities(), "extensions": {TASKS: {}}},
                **await self._instructions(),
                **_CACHE,
            }
        )

    def _server_capabilities(self) -> JsonObject:
        return {"tools": {"listChanged": True}, **self._hub.passthrough.capabilities()}

    def _server_info(self) -> JsonObject:
        return {"name": self._hub.name, "version": __version__}

    async def _instructions(self) -> JsonObject:
        text, told = await self._hub.instructions(self._offer)
        self._hub.calls.note_shown(self.caller.client, (), told)
        return {"instructions": text} if text else {}

    def _complete(self, result: JsonObject) -> JsonObject:
        """Return a result with the fields that the stateless era requires."""
        meta = json_object(result.get("_meta"))
        ours = {**meta, SERVER_KEY: self._server_info()}
        return {RESULT_TYPE: "complete", **result, "_meta": ours}

    async def _list(self, request: ClientRequest, *, is_modern: bool) -> bytes:
        await self._hub.wait_until_settled()
        listed = _LISTING[request.method]
        if listed != "tools":
            await self._hub.passthrough.wait_until_settled()
        cursor = request.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise RpcError(INVALID_PARAMS, "`cursor` has to be a text")
        offer = self._shown if listed == "tools" else self._offer
        page, following = offer.page(listed, cursor)
        self._hub.calls.note_shown(self.caller.client, offer.names(listed).values())
        rest: dict[str, JsonValue] = {} if following is None else {"nextCursor": following}
        if is_modern:
            rest |= self._complete(_CACHE)
        more = b"," + dump(rest)[1:] if rest else b"}"
        return b'{"%b":%b%b' % (listed.encode(), page, more)

    async def _pass_on(self, request: ClientRequest, notify: Notify, *, is_modern: bool) -> bytes:
        await self._hub.passthrough.wait_until_settled()
        about = ("uri", "name", "arguments", "ref", "argument")
        subject: JsonValue = [request.method, *(request.params.get(key) for key in about)]

        async def make(about: Call, owner: Owner) -> bytes:
            if isinstance(owner, PendingCall):
                owner.is_passed = True
                about = replace(about, continuation=owner.continuation)
            result = await self._read(request, replace(about, owner=owner))
            if is_modern:
                is_cached = request.method == "resources/read" and RESULT_TYPE not in result
                result = self._complete({**result, **(_cache_of(result) if is_cached else {})})
            return self._encode(result)

        try:
            async with self._hub.calls.place(self._places):
                return await self._make_owned(request, subject, notify, make, is_modern=is_modern)
        except BusyError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from error
        except RpcError as error:
            raise error_for(error, is_modern=is_modern) from error

    def _encode(self, result: JsonObject) -> bytes:
        try:
            encoded = dump(result)
        except (ValueError, RecursionError) as error:
            message = "the result is not JSON that can be passed on"
            raise RpcError(INTERNAL_ERROR, message) from error
        most = self._hub.settings.limits.message
        if len(encoded) > most:
            message = f"the result has {len(encoded):,} bytes, more than {most:,}"
            raise RpcError(INTERNAL_ERROR, message)
        return encoded

    async def _read(self, request: ClientRequest, call: Call) -> JsonObject:
        passthrough, params = self._hub.passthrough, request.params
        match request.method:
            case "resources/read":
                uri = _text_of(params, "uri")
                return await passthrough.read(self._offer, self.caller, uri, call)
            case "prompts/get":
                name, arguments = _text_of(params, "name"), params.get("arguments")
                own_arguments = arguments if isinstance(arguments, Mapping) else None
                return await passthrough.prompt(self._offer, self.caller, name, own_arguments, call)
        return await passthrough.complete(self._offer, self.caller, params, call)

    async def _subscribe(self, request: ClientRequest) -> bytes:
        passthrough, uri = self._hub.passthrough, _text_of(request.params, "uri")
        if request.method == "resources/unsubscribe":
            updated = self._resources.pop(uri, None)
            if updated is not None:
                passthrough.unsubscribe(uri, updated)
            return b"{}"
        await passthrough.wait_until_settled()
        if uri in self._resources:
            return b"{}"
        if len(self._resources) >= _MOST_RESOURCES:
            raise RpcError(INTERNAL_ERROR, "busy: too many subscriptions")

        def tell(params: JsonObject) -> None:
            self._tell(notice(RESOURCE_UPDATED, params))

        self._resources[uri] = tell
        try:
            await passthrough.subscribe(self._offer, self.caller, uri, tell)
        except BaseException as error:
            if self._resources.get(uri) is tell:
                del self._resources[uri]
            passthrough.unsubscribe(uri, tell)
            if isinstance(error, RpcError):
                raise error_for(error, is_modern=False) from error
            raise
        if self._resources.get(uri) is not tell:
            # It was ended before it had begun.
            passthrough.unsubscribe(uri, tell)
        return b"{}"

    def _about(self, meta: JsonObject, notify: Notify, *, is_modern: bool) -> Call:
        """Return the context of a call for a server: who is notified, and its trace."""
        level: str | None = self._level
        if is_modern:
            level = None if LOG_LEVEL_KEY not in meta else _level(meta[LOG_LEVEL_KEY])
            if level is not None:
                self._hub.passthrough.want_level(self, level)
        return Call(
            _reporter(meta.get("progressToken"), notify),
            on_log=None if level is None else self._logger(level, notify),
            log_level=level,
            trace=trace_in(meta),
            run_key=_text_of(meta, _RUN_KEY) if _RUN_KEY in meta else "",
            check_answer=partial(self._hub.calls.check_answer, self.caller),
        )

    async def _call(self, request: ClientRequest, notify: Notify, *, is_modern: bool) -> bytes:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if arguments is None:
            arguments = {}  # some clients write `null` for none
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "`name` has to be a text")
        if not isinstance(arguments, Mapping):
            raise RpcError(INVALID_PARAMS, "`arguments` has to be an object")
        complete = self._complete if is_modern else dict
        await self._hub.wait_until_settled()
        tool = await self._hub.tool_after_reconnect(self._offer, name)
        if tool is None:
            lost = self._hub.find_lost_server(self._offer, name)
            if lost is not None:
                self._hub.metrics.count_call(OTHER, NONE, "transport_error")
                return self._hub.calls.unreachable(lost, complete)
            self._hub.metrics.count_call(OTHER, NONE, "unknown_tool")
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name}")
        if tool.builtin:
            try:
                arguments = call_arguments(name, tool, arguments)
            except ValueError as error:
                self._hub.metrics.count_call(str(tool.name), NONE, "bad_arguments")
                return dump(complete(pack_failure(PackError("bad_arguments", str(error)))))
        scope = self._running[type(request.id), request.id]

        find = _ToolNow(self._hub, self._proof, name, tool)
        call = partial(
            self._hub.calls.call,
            self.caller,
            self._places,
            find,
            arguments,
            is_withdrawn=lambda: scope in self._withdrawn,
        )

        async def make(about: Call, owner: Owner) -> bytes:
            if isinstance(owner, PendingCall):
                find.known = None  # it may be made later
            return await call(about, complete, owner)

        subject: JsonValue = [request.method, name, arguments]
        is_task = is_modern and takes_tasks(_capabilities_of(request))
        terms = self._terms(tool) if is_task else None
        return await self._make_owned(request, subject, notify, make, terms, is_modern=is_modern)

    def _terms(self, tool: Tool) -> TaskTerms:
        at_once = self._hub.active.now.tools.answers_with_task(tool)
        return TaskTerms(tool, _AT_ONCE if at_once else self._hub.settings.hold, at_once)

    async def _task(self, request: ClientRequest) -> JsonObject:
        require_tasks(_capabilities_of(request))
        calls, client = self._hub.pending, self.caller.client
        id, responses = request.params.get("taskId"), request.params.get("inputResponses")
        match request.method:
            case "tasks/get":
                return await calls.task(client, id)
            case "tasks/update":
                if not isinstance(responses, Mapping):
                    raise RpcError(INVALID_PARAMS, "`inputResponses` has to be an object")
                calls.update_task(client, id, responses)
            case _:
                calls.cancel_task(client, id)
        return {}

    async def _make_owned(
        self,
        request: ClientRequest,
        subject: JsonValue,
        notify: Notify,
        make: Make,
        terms: TaskTerms | None = None,
        *,
        is_modern: bool,
    ) -> bytes:
        """Make a request during which servers may ask this client; `subject` identifies it.

        With `terms` it may become a task.
        """
        meta = json_object(request.params.get("_meta"))
        is_open = True

        def tell(message: bytes, key: str) -> None:
            # A call may go on after this request: what is told then has no way to the client.
            if is_open:
                notify(message, key)

        about = self._about(meta, tell, is_modern=is_modern)
        declared = json_object(meta.get(CAPABILITIES_KEY)) if is_modern else self._capabilities
        offered = capabilities_for_servers(declared, self._hub.settings.forward)
        is_asked = "elicit" in self._hub.settings.ask and fills_forms(declared)
        if not is_modern:
            if notify is unheard:
                offered = {}
            owner = StreamOwner(
                self.caller.client,
                offered,
                self._requests,
                notify,
                fills_forms=is_asked and notify is not unheard,
            )
            return await make(about, owner)

        try:
            result = await self._hub.pending.make(
                self.caller,
                subject,
                request.params,
                offered,
                about,
                make,
                terms,
                fills_forms=is_asked,
            )
        except RpcError as error:
            missing = json_object(json_object(error.data).get("requiredCapabilities"))
            if error.code == MISSING_CAPABILITY and missing and missing.keys() <= declared.keys():
                message = f"the server needs {backticked(missing)}, which the file does not forward"
                raise RpcError(INTERNAL_ERROR, message) from error
            raise
        finally:
            is_open = False
        return result if isinstance(result, bytes) else dump(self._complete(result))

    async def _listen(self, request: ClientRequest, notify: Notify) -> bytes:
        filters = request.params.get("notifications")
        if not isinstance(filters, Mapping):
            raise RpcError(INVALID_PARAMS, "`notifications` has to be an object")
        if len(self._subscriptions) >= _MOST_SUBSCRIPTIONS:
            raise RpcError(INTERNAL_ERROR, "busy: too many subscriptions")
        passthrough = self._hub.passthrough
        honored: dict[str, JsonValue] = {
            f"{capability}ListChanged": True
            for capability in LIST_CHANGES
            if capability in self._server_capabilities()
            and filters.get(f"{capability}ListChanged") is True
        }
        meta: JsonObject = {SUBSCRIPTION_KEY: request.id}

        def on_update(params: JsonObject) -> None:
            fields = {**params, "_meta": {**json_object(params.get("_meta")), **meta}}
            notify(notice(RESOURCE_UPDATED, fields), f"{request.id!r} {params['uri']}")

        def on_move(task: JsonObject) -> None:
            notify(notice(TASK_MOVED, {**task, "_meta": meta}), f"{request.id!r} {task['taskId']}")

        ids = self._task_ids(request, filters.get("taskIds"))
        if ids:
            honored["taskIds"] = ids
        uris = await self._follow_resources(filters.get("resourceSubscriptions"), on_update)
        if uris:
            honored["resourceSubscriptions"] = uris
        notify(notice(ACKNOWLEDGED, {"_meta": meta, "notifications": honored}), "")
        told = frozenset(one for one in LIST_CHANGES if f"{one}ListChanged" in honored)
        one = _Subscription(request.id, notify, told)
        self._subscriptions.append(one)
        try:
            async with task_group() as tasks:
                tasks.start_soon(self._hub.pending.tell_of_tasks, self.caller.client, ids, on_move)
                await self._hub.draining.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._subscriptions.remove(one)
            for uri in uris:
                passthrough.unsubscribe(uri, on_update)
        return dump(self._complete({"_meta": meta}))

    def _task_ids(self, request: ClientRequest, value: JsonValue) -> list[str]:
        if not isinstance(value, list):
            return []
        require_tasks(_capabilities_of(request))
        ids = dict.fromkeys(item for item in value[:_MOST_TASKS] if isinstance(item, str))
        return [id for id in ids if self._hub.pending.has_task(self.caller.client, id)]

    async def _follow_resources(
        self, value: JsonValue, updated: Callable[[JsonObject], None]
    ) -> list[str]:
        if "resources" not in self._server_capabilities() or not isinstance(value, list):
            return []
        uris: list[str] = []
        await self._hub.passthrough.wait_until_settled()
        try:
            for uri in dict.fromkeys(item for item in value if isinstance(item, str)):
                if len(uris) < _MOST_RESOURCES:
                    with suppress(RpcError):  # what is not followed is not acknowledged
                        offer, caller = self._offer, self.caller
                        await self._hub.passthrough.subscribe(offer, caller, uri, updated)
                        uris.append(uri)
        except BaseException:
            for uri in uris:
                self._hub.passthrough.unsubscribe(uri, updated)
            raise
        return uris


def _text_of(params: JsonObject, key: str) -> str:
    text = params.get(key)
    if not isinstance(text, str):
        raise RpcError(INVALID_PARAMS, f"`{key}` has to be a text")
    return text


def _level(value: JsonValue) -> str:
    if not isinstance(value, str) or value not in LOG_LEVELS:
        raise RpcError(INVALID_PARAMS, "unknown log level")
    return value


def _cache_of(result: JsonObject) -> JsonObject:
    """Return the cache time of a result, from its server; it is private to this client."""
    ttl = result.get("ttlMs")
    is_usable = isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0
    return {"ttlMs": ttl if is_usable else 0, "cacheScope": "private"}


def _capabilities_of(request: ClientRequest) -> JsonObject:
    return json_object(json_object(request.params.get("_meta")).get(CAPABILITIES_KEY))


def _check_modern(meta: JsonObject) -> None:
    """Check the fields required in each request of the stateless era.

    Raises:
        RpcError: one is missing, or the revision is not supported.
    """
    version = meta[VERSION_KEY]
    if version != MODERN:
        data: JsonObject = {"supported": [MODERN, *HANDSHAKE], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)
    if not isinstance(meta.get(CAPABILITIES_KEY), Mapping):
        raise RpcError(INVALID_PARAMS, f"`_meta.{CAPABILITIES_KEY}` has to be an object")


def _reporter(token: Any, notify: Notify) -> Callable[[Progress], None]:
    """Forward the progress of a call while it increases, if the client gave a token for it."""
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
    """Return a whole number as an integer: `1`, not `1.0`."""
    return int(value) if value.is_integer() else value
