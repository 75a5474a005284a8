"""Resources and prompts of servers, passed through to clients: lists, reads, updates, log levels.

`serve.resources` and `serve.prompts` name what is offered. A URI is known if a server lists it, has
a template for it, or has named it to this client in one of its last results. Results are passed
through unchanged; a failure is a JSON-RPC error, never an empty result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import unquote

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ServeSettings
from aish.core.events import Level
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.tools import ToolName, ToolResult
from aish.engine.plan.uris import matches
from aish.mcp.client.connection import Server
from aish.mcp.client.registry import Registry
from aish.mcp.client.server_requests import Call
from aish.mcp.protocol.convert import MAX_NAME
from aish.mcp.protocol.convert_resources import MAX_URI
from aish.mcp.protocol.messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    McpError,
    RpcError,
    json_object,
)
from aish.mcp.protocol.requests import INVALID_REQUEST, PARSE_ERROR, dump
from aish.mcp.protocol.revisions import (
    LIST_CHANGES,
    LOG_LEVELS,
    LOG_MESSAGE,
    PAGE_COMPLETED,
    RESOURCE_UPDATED,
)
from aish.policy.rules import matches_tool
from aish.serve.calls.calls import RESULT_TYPE, Calls, own_part
from aish.serve.calls.pending_calls import INPUT_REQUIRED, PendingCall
from aish.serve.offer.active import Active
from aish.serve.offer.offers import ListName, Offer, Rows
from aish.serve.records.audit import AuditError, AuditLog, Caller
from aish.system.task_group import task_group

RESOURCE_NOT_FOUND = -32002
"""Of the handshake era; the stateless one says -32602."""
_SESSION_LOST = -32001
_OF_THE_HOP = frozenset(
    {
        PARSE_ERROR,
        INVALID_REQUEST,
        METHOD_NOT_FOUND,
        HEADER_MISMATCH,
        UNSUPPORTED_VERSION,
        _SESSION_LOST,
    }
)
"""Errors about the connection to a server: on the client's own they would say something else."""
_BURST_SECONDS = 0.2
_MOST_UPDATES = 1000
"""Resources whose updates wait to be told: a server that names more in a burst is not heard."""
_DOTS = frozenset({".", ".."})


class Publish(Protocol):
    """Offers the lists of a capability to clients, and notifies those whose lists changed."""

    def __call__(self, capability: str, lists: Mapping[ListName, Rows], *, is_told: bool) -> None:
        """Offer the lists."""


Updated = Callable[[JsonObject], None]
"""Takes the params of `notifications/resources/updated`."""


@frozen
class _Listed:
    """The lists of a server; `server` is the connection that returned them."""

    server: Server
    wanted: tuple[bool, bool]
    """Whether it was asked for resources, and for prompts."""
    resources: Mapping[str, JsonObject]
    templates: Mapping[str, JsonObject]
    prompts: Mapping[str, JsonObject]


class Passthrough:
    """The resources and prompts of all servers, as sessions read them."""

    def __init__(
        self,
        registry: Registry,
        active: Active,
        calls: Calls,
        audit: AuditLog,
        publish: Publish,
        tell: Callable[[Level, str, str], None],
    ) -> None:
        self.named = calls.named
        self._calls = calls
        self.loggers: set[Callable[[JsonObject], None]] = set()
        """One for each session: takes log messages that belong to no request."""
        self.on_page: set[Callable[[str, JsonObject], None]] = set()
        """One for each session: hears that a page of a server, by its alias, was completed."""
        self._registry = registry
        self._active = active
        self._mask = calls.mask
        self._audit = audit
        self._publish = publish
        self._tell = tell
        self._listed: dict[str, _Listed] = {}
        self._stale: set[str] = set()
        self._listing: set[str] = set()
        self._changed = anyio.Event()
        self._settled = anyio.Event()
        self._taken: set[tuple[str, str]] = set()
        self._subscribers: dict[tuple[str, str], set[Updated]] = {}
        self._updates: dict[tuple[str, str], JsonObject] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._levels: dict[object, str] = {}
        self._tasks: TaskGroup | None = None
        registry.on_note = self._note

    def capabilities(self) -> JsonObject:
        """The capabilities declared to clients, except tools."""
        capabilities: dict[str, JsonObject] = {}
        if self._settings().resources:
            capabilities["resources"] = {"subscribe": True, "listChanged": True}
        if self._settings().prompts:
            capabilities["prompts"] = {"listChanged": True}
        if capabilities:
            capabilities["completions"] = {}
        if any(server.transport != "pack" for server in self._registry.servers):
            capabilities["logging"] = {}
        return capabilities

    def note_change(self) -> None:
        self._changed.set()

    async def wait_until_settled(self) -> None:
        """Wait until the lists of each server were requested."""
        await self._settled.wait()

    async def run(self) -> None:
        """Request the lists of servers, now and after changes, until this is cancelled."""
        async with task_group() as tasks:
            self._tasks = tasks
            try:
                await self._follow(tasks)
            finally:
                self._tasks = None  # sessions may end later

    async def _follow(self, tasks: TaskGroup) -> None:
        while True:
            for alias in self._stale_servers():
                self._listing.add(alias)
                tasks.start_soon(self._list, alias)
            self._make()
            if not self._listing:
                self._settled.set()
            await self._changed.wait()
            self._changed = anyio.Event()

    async def read(self, offer: Offer, caller: Caller, uri: str, call: Call) -> JsonObject:
        """Return the result of `resources/read`.

        Raises:
            RpcError: the resource is unknown to the client, or reading it failed.
        """
        alias = self._owner(offer, caller.client, uri)
        self._record(caller, "resources/read", alias, uri)
        server = self._server_of(alias, uri)
        server = await self._of_session(caller, server)
        with self._calls.follow_request(caller, server.alias, {"uri": uri}):
            result = await self._ask(server, "resources/read", {"uri": uri}, "contents", list, call)
        self._note_read(caller, server.alias, result)
        return result

    async def prompt(
        self, offer: Offer, caller: Caller, name: str, arguments: JsonObject | None, call: Call
    ) -> JsonObject:
        """Return the result of `prompts/get`.

        Raises:
            RpcError: the prompt is unknown to the client, or its server failed.
        """
        found = self._prompt_name(offer, name)
        self._record(caller, "prompts/get", None if found is None else found.server, name)
        server, own = self._prompt(found, name)
        params: dict[str, Any] = {"name": own}
        if arguments is not None:
            params["arguments"] = arguments
        server = await self._of_session(caller, server)
        with self._calls.follow_request(caller, server.alias, arguments or {}):
            result = await self._ask(server, "prompts/get", params, "messages", list, call)
        self._note_read(caller, server.alias, result)
        return result

    def _note_read(self, caller: Caller, alias: str, result: JsonObject) -> None:
        """Remember the resources that a result names."""
        self.named.note(caller.client, alias, result)

    async def complete(
        self, offer: Offer, caller: Caller, params: JsonObject, call: Call
    ) -> JsonObject:
        """Return the result of `completion/complete`.

        Raises:
            RpcError: the reference is unknown to the client, or the server refused.
        """
        ref = json_object(params.get("ref"))
        kind, name, uri = ref.get("type"), ref.get("name"), ref.get("uri")
        if kind == "ref/prompt" and isinstance(name, str):
            server, own = self._prompt(self._prompt_name(offer, name), name)
            ref = {**ref, "name": own}
        elif kind == "ref/resource" and isinstance(uri, str):
            template = offer.name("resourceTemplates", uri)
            alias = self._owner(offer, caller.client, uri) if template is None else template.server
            server = self._server_of(alias, uri)
        else:
            raise RpcError(INVALID_PARAMS, "`ref` has to name a prompt or a resource")
        sent = {"ref": ref, **{k: params[k] for k in ("argument", "context") if k in params}}
        server = await self._of_session(caller, server)
        with self._calls.follow_request(caller, server.alias, sent):
            return await self._ask(server, "completion/complete", sent, "completion", dict, call)

    async def subscribe(self, offer: Offer, caller: Caller, uri: str, updated: Updated) -> None:
        """Subscribe to updates of a resource; repeating it has no effect.

        Raises:
            RpcError: the resource is unknown to the client, its server does not tell, or what the
                client was given before holds the request.
        """
        alias = self._owner(offer, caller.client, uri)
        self._record(caller, "resources/subscribe", alias, uri)
        server = self._server_of(alias, uri)
        key = (server.alias, uri)
        # A URI of a template says whatever the client puts into it.
        with self._calls.follow_request(caller, server.alias, {"uri": uri}):
            if not server.has_subscriptions:
                raise RpcError(INVALID_PARAMS, f"`{server.alias}` does not tell of updates")
            async with self._lock(server.alias):
                if key not in self._subscribers:
                    await self._answer_of(server, server.subscribe(uri))
                self._subscribers.setdefault(key, set()).add(updated)

    def unsubscribe(self, uri: str, updated: Updated) -> None:
        """End a subscription to updates."""
        for key, callbacks in tuple(self._subscribers.items()):
            if key[1] == uri and updated in callbacks:
                callbacks.remove(updated)
                if not callbacks and self._tasks is not None:
                    self._tasks.start_soon(self._release, key)

    def want_level(self, who: object, level: str) -> None:
        """Set the level of log messages that a client wants, and request it from servers.

        This waits for no answer: a server that gives none must not delay calls of others.
        """
        before = self._level()
        known = self._levels.get(who)
        if known is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(known):
            self._levels[who] = level
        if self._level() != before and self._tasks is not None:
            for server in self._ready():
                self._tasks.start_soon(self._set_level, server)

    def forget(self, who: object) -> None:
        """Forget a client that is gone; servers keep their level."""
        self._levels.pop(who, None)

    def _ready(self) -> Iterator[Server]:
        for info in self._registry.servers:
            server = self._registry.server(info.alias)
            if server is not None:
                yield server

    def _stale_servers(self) -> list[str]:
        ready, selection = {server.alias: server for server in self._ready()}, self._selection()
        for alias in tuple(self._listed):
            if self._listed[alias].server is not ready.get(alias):
                del self._listed[alias]
        known = {alias for alias, lists in self._listed.items() if lists.wanted == selection}
        unknown = (set(ready) - known) | (self._stale & set(ready))
        return [alias for alias in ready if alias in unknown - self._listing]

    def _settings(self) -> ServeSettings:
        return self._active.now.settings

    def _selection(self) -> tuple[bool, bool]:
        settings = self._settings()
        return bool(settings.resources), bool(settings.prompts)

    async def _list(self, alias: str) -> None:
        try:
            if self._settled.is_set():
                await anyio.sleep(_BURST_SECONDS)  # joins bursts of changes
            self._stale.discard(alias)
            server = self._registry.server(alias)
            if server is None:
                return
            known = self._listed.get(alias)
            lists = await self._lists_of(server)
            if known is None:
                await self._take_up(server)
            if self._registry.server(alias) is server:
                self._listed[alias] = lists
        finally:
            self._listing.discard(alias)
            self._changed.set()

    async def _lists_of(self, server: Server) -> _Listed:
        resources: Sequence[JsonObject] = ()
        templates: Sequence[JsonObject] = ()
        prompts: Sequence[JsonObject] = ()
        selection = self._selection()
        if selection[0] and server.declares("resources"):
            resources = await self._pages(server, "resources/list", "resources")
            templates = await self._pages(server, "resources/templates/list", "resourceTemplates")
        if selection[1] and server.declares("prompts"):
            prompts = await self._pages(server, "prompts/list", "prompts")
        return _Listed(
            server,
            selection,
            dict(_rows_by_name(resources, "uri", MAX_URI)),
            dict(_rows_by_name(templates, "uriTemplate", MAX_URI)),
            dict(_rows_by_name(prompts, "name", MAX_NAME)),
        )

    async def _pages(self, server: Server, method: str, key: str) -> tuple[JsonObject, ...]:
        """Return the rows of a list; empty, with a report, if the server fails."""
        try:
            pages = await server.pages(method)
        except McpError as error:
            is_unknown = isinstance(error, RpcError) and error.code == METHOD_NOT_FOUND
            if not is_unknown:
                text = f"mcp server `{server.alias}` does not answer `{method}`: {error.message}"
                self._tell("warning", "list_failed", self._mask(text))
            return ()
        found = (page.get(key) for page in pages)
        return tuple(
            row for rows in found if isinstance(rows, list) for row in rows if isinstance(row, dict)
        )

    async def _take_up(self, server: Server) -> None:
        """Send subscriptions and log level of clients to a server that has just connected."""
        if self._level() is not None:
            await self._set_level(server)
        for alias, uri in tuple(self._subscribers):
            if alias == server.alias and server.has_subscriptions:
                with suppress(McpError):
                    await server.subscribe(uri)

    def _make(self) -> None:
        listed = [self._listed[one.alias] for one in self._ready() if one.alias in self._listed]
        resources: dict[str, tuple[ToolName, bytes]] = {}
        templates: dict[str, tuple[ToolName, bytes]] = {}
        prompts: dict[str, tuple[ToolName, bytes]] = {}
        for lists in listed:
            alias = lists.server.alias
            for rows, own in ((resources, lists.resources), (templates, lists.templates)):
                for uri, row in own.items():
                    self._add(rows, uri, ToolName(alias, uri), row)
            for name, row in lists.prompts.items():
                pair = ToolName(alias, name)
                if self._allows_prompt(pair):
                    prompts[str(pair)] = (pair, dump({**own_part(row), "name": str(pair)}))
        is_told = self._settled.is_set()
        both: dict[ListName, Rows] = {"resources": resources, "resourceTemplates": templates}
        self._publish("resources", both, is_told=is_told)
        self._publish("prompts", {"prompts": prompts}, is_told=is_told)

    def _add(
        self, rows: dict[str, tuple[ToolName, bytes]], uri: str, name: ToolName, row: JsonObject
    ) -> None:
        """Add a resource; if two servers list it, the first of the file has it."""
        if not self._allows(name):
            return
        if uri not in rows:
            rows[uri] = (name, dump(own_part(row)))
        elif (name.server, uri) not in self._taken:
            self._taken.add((name.server, uri))
            text = (
                f"resource `{uri}` of `{name.server}` is left out: `{rows[uri][0].server}` has it"
            )
            self._tell("warning", "resource_taken", self._mask(text))

    def _allows_prompt(self, name: ToolName) -> bool:
        return any(matches_tool(glob, name) for glob in self._settings().prompts)

    def _allows(self, name: ToolName) -> bool:
        return any(matches_tool(glob, name) for glob in self._settings().resources)

    def _owner(self, offer: Offer, client: str, uri: str) -> str | None:
        listed = offer.name("resources", uri)
        if listed is not None and self._allows(listed):
            return listed.server
        if len(uri) > MAX_URI or _leaves_its_folder(uri):
            return None
        for server in self._ready():
            name, lists = ToolName(server.alias, uri), self._listed.get(server.alias)
            if not self._allows(name) or not offer.covers(name):
                continue
            if lists is not None and (
                uri in lists.resources
                or any(matches(template, uri) for template in lists.templates)
            ):
                return server.alias
            if self.named.has(client, server.alias, uri):
                return server.alias
        return None

    def _server_of(self, alias: str | None, uri: str) -> Server:
        server = None if alias is None else self._registry.server(alias)
        if server is None:
            raise RpcError(RESOURCE_NOT_FOUND, "resource not found", {"uri": uri})
        return server

    def _prompt_name(self, offer: Offer, public: str) -> ToolName | None:
        prompt_name = offer.name("prompts", public)
        if prompt_name is None and self._settings().names == "plain":
            # It is listed with its alias; without it one is meant if there is only one.
            named = [pair for pair in offer.names("prompts").values() if pair.name == public]
            prompt_name = named[0] if len(named) == 1 else None
        return prompt_name if prompt_name is not None and self._allows_prompt(prompt_name) else None

    def _prompt(self, prompt_name: ToolName | None, public: str) -> tuple[Server, str]:
        server = None if prompt_name is None else self._registry.server(prompt_name.server)
        if prompt_name is None or server is None:
            raise RpcError(INVALID_PARAMS, f"unknown prompt: {public}")
        return server, prompt_name.name

    def _record(self, caller: Caller, method: str, server: str | None, name: str) -> None:
        try:
            self._audit.read(caller, method, server, name)
        except AuditError as error:
            raise RpcError(INTERNAL_ERROR, f"[aish] this was not done: {error}") from error

    async def _of_session(self, caller: Caller, server: Server) -> Server:
        """Return the session's own connection to a server that is not shared."""
        own = await self._active.now.tools.connection(caller.session, server.alias)
        if isinstance(own, ToolResult):
            raise RpcError(INTERNAL_ERROR, self._mask(own.content))
        return server if own is None else own

    async def _ask(
        self, server: Server, method: str, params: JsonObject, key: str, kind: type, call: Call
    ) -> JsonObject:
        """Return a server's result, which has to have a value of this kind under this key."""
        result: JsonObject = await self._answer_of(server, server.ask(method, params, call))
        if result.get(RESULT_TYPE) == INPUT_REQUIRED and isinstance(call.owner, PendingCall):
            required = call.owner.relay(server.alias, own_part(result))
            return {RESULT_TYPE: INPUT_REQUIRED, **required}
        if not isinstance(result.get(key), kind):
            message = f"[aish] {server.alias}: the server sent no `{key}`"
            raise RpcError(INTERNAL_ERROR, message)
        return own_part(result)

    async def _answer_of(self, server: Server, asked: Any) -> Any:
        """Wait for a server's answer, and tell the client why there is none.

        Raises:
            RpcError: it refused, or could not be reached.
        """
        try:
            return await asked
        except RpcError as error:
            code = INTERNAL_ERROR if error.code in _OF_THE_HOP else error.code
            raise RpcError(code, self._mask(error.message), error.data) from error
        except McpError as error:
            message = f"[aish] {server.alias}: {self._mask(error.message)}"
            raise RpcError(INTERNAL_ERROR, message) from error

    def _lock(self, alias: str) -> anyio.Lock:
        return self._locks.setdefault(alias, anyio.Lock())

    async def _release(self, key: tuple[str, str]) -> None:
        alias, uri = key
        async with self._lock(alias):
            if self._subscribers.get(key):
                return
            self._subscribers.pop(key, None)
            server = self._registry.server(alias)
            if server is not None:
                # Nobody hears of its updates, whatever the server does.
                with suppress(McpError):
                    await server.unsubscribe(uri)

    def _level(self) -> str | None:
        return min(self._levels.values(), key=LOG_LEVELS.index, default=None)

    async def _set_level(self, server: Server) -> None:
        level = self._level()
        if level is None:
            return
        try:
            await server.set_log_level(level)
        except McpError as error:
            text = f"mcp server `{server.alias}` refuses the log level `{level}`: {error.message}"
            self._tell("warning", "log_level_refused", self._mask(text))

    def _note(self, server: Server, method: str, params: JsonObject) -> None:
        """Handle a notification of a server that belongs to no request."""
        if method in {LIST_CHANGES["resources"], LIST_CHANGES["prompts"]}:
            self._stale.add(server.alias)
            self._changed.set()
        elif method == RESOURCE_UPDATED:
            self._update(server.alias, params)
        elif method == PAGE_COMPLETED:
            for hear in tuple(self.on_page):
                hear(server.alias, params)
        elif method == LOG_MESSAGE and len(self.loggers) == 1:
            # Whom it is about is not known: with several clients nobody hears it.
            (logger,) = self.loggers
            logger(params)

    def _update(self, alias: str, params: JsonObject) -> None:
        uri = params.get("uri")
        if not isinstance(uri, str) or len(uri) > MAX_URI or not self._subscribers_to(alias, uri):
            return
        key = (alias, uri)
        is_new = key not in self._updates
        if is_new and (self._tasks is None or len(self._updates) >= _MOST_UPDATES):
            return
        self._updates[key] = params
        if is_new and self._tasks is not None:
            self._tasks.start_soon(self._deliver, key)

    async def _deliver(self, key: tuple[str, str]) -> None:
        await anyio.sleep(_BURST_SECONDS)
        params = own_part(self._updates.pop(key))
        for updated in self._subscribers_to(*key):
            updated(params)

    def _subscribers_to(self, alias: str, uri: str) -> list[Updated]:
        """Return the subscribers of a resource, or of a resource that this one is a part of."""
        return [
            updated
            for (owner, prefix), callbacks in self._subscribers.items()
            if owner == alias and (uri == prefix or uri.startswith(prefix.removesuffix("/") + "/"))
            # Rules may have been narrowed since they subscribed.
            if self._allows(ToolName(owner, prefix))
            for updated in callbacks
        ]


def error_for(error: RpcError, *, is_modern: bool) -> RpcError:
    """Return an error about a resource, with the code of the client's era."""
    if is_modern and error.code == RESOURCE_NOT_FOUND:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    if not is_modern and error.code == INVALID_PARAMS and "uri" in json_object(error.data):
        return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
    return error


def _rows_by_name(
    rows: Iterable[JsonObject], key: str, longest: int
) -> Iterator[tuple[str, JsonObject]]:
    """Return the rows with a name, each name once."""
    names: set[str] = set()
    for row in rows:
        name = row.get(key)
        if isinstance(name, str) and 0 < len(name) <= longest and name not in names:
            names.add(name)
            yield name, row


def _leaves_its_folder(uri: str) -> bool:
    """Return true if a URI has segments that a server may resolve to a parent folder."""
    plain = uri
    for _ in range(3):
        plain, before = unquote(plain), plain
        if plain == before:
            break
    return any(part in _DOTS for part in plain.replace("\\", "/").split("/"))
