"""One server of the file: its connection, tools, and calls. Failures of calls are results (M8).

The tools of a server are listed again each time it says that they changed (M6).
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ServerEntry
from aish.core.errors import AishError
from aish.core.events import ServerInfo, ServerState
from aish.core.json import JsonObject
from aish.core.protocols import Progress, Sampler
from aish.core.tools import CALL_DEADLINE, ToolResult
from aish.mcp.client.server_requests import NO_CALL, Answers, Call, Elicit
from aish.mcp.client.session import ENDED_AGAIN, Session, Terms
from aish.mcp.protocol.convert import (
    Definition,
    ToolList,
    denied,
    differences,
    lost,
    read_result,
    tool_list,
)
from aish.mcp.protocol.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PAGES_REQUIRED,
    HttpStatusError,
    LeftError,
    McpError,
    RpcError,
    ToolChangedError,
    TransportError,
    UnreachableError,
)
from aish.mcp.protocol.mirrored_headers import parameter_headers
from aish.mcp.protocol.revisions import LIST_CHANGES
from aish.mcp.transports.factory import TransportFactory
from aish.mcp.transports.settings import CallTime, ServerConnection, in_time

MAX_REFRESHES = 50
"""How often the tools are listed again in a minute; a server may last for months."""
_REFRESH_SECONDS = 60.0
# Errors by which a server says that it has not begun what was asked of it.
_NOT_ACCEPTED = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, MISSING_CAPABILITY, PAGES_REQUIRED})


class Refresh:
    """Lists the tools `again`; several notifications of the server lead to one new list.

    `again` returns whether that worked.
    """

    def __init__(self, tasks: TaskGroup, again: Callable[[], Awaitable[bool]]) -> None:
        self._tasks = tasks
        self._again = again
        self._times = 0
        self._counted_from = -inf
        self._stale = False
        self._over = anyio.Event()
        self.under_way = False

    def changed(self) -> None:
        """Note that the tools changed."""
        self._stale = True
        now = anyio.current_time()
        if now - self._counted_from > _REFRESH_SECONDS:
            self._times, self._counted_from = 0, now
        if not self.under_way and self._times < MAX_REFRESHES:
            self.under_way = True
            self._over = anyio.Event()
            self._tasks.start_soon(self._refresh)

    async def over(self) -> None:
        """Wait until all announced changes are known."""
        while self.under_way:
            await self._over.wait()

    async def _refresh(self) -> None:
        try:
            while self._stale and self._times < MAX_REFRESHES:
                self._stale = False
                self._times += 1
                if not await self._again():
                    break
        finally:
            # Also set when the server is disconnected meanwhile: a call may wait for this.
            self.under_way = False
            self._over.set()


NOT_THERE = frozenset({404, 405})
"""Answers to a POST after which 2024's HTTP+SSE is tried (M2)."""


class Server:
    """A server, connected or not; `definitions` are its tools under its entry's filters."""

    def __init__(
        self,
        connection: ServerConnection,
        opening: TransportFactory,
        tasks: TaskGroup,
        *,
        elicit: Elicit | None,
        on_change: Callable[["Server"], None],
        may_call: Callable[["Server", str], bool],
        restarts: bool = True,
    ) -> None:
        self.entry: ServerEntry = connection.entry
        self.definitions: Mapping[str, Definition] = {}
        self.rows: Mapping[str, JsonObject] = {}
        """The tools as the server lists them, by its names for them."""
        self.failure: str | None = None
        self.on_gone: Callable[[Server], None] | None = None
        """Hears that it is lost for good. Without it, in a run, it stays what it was: that each
        call fails is all that there is to say then (M8)."""
        self.on_note: Callable[[Server, str, JsonObject], None] | None = None
        """Takes notifications that belong to no request: their method and their params."""
        self.ambiguous: frozenset[str] = frozenset()
        """A name under which the server lists two tools that differ."""
        self._opening = opening
        self._restarts = restarts
        self._requests = 0
        self._idle = anyio.Event()
        if not restarts:
            opening.on_ended = self._gone
        self._tasks = tasks
        self._elicit = elicit
        self._on_change = on_change
        self._may_call = may_call
        self._session: Session | None = None
        self._lost = False
        self._opened = anyio.Event()
        self._refresh = Refresh(tasks, self._list_again)

    @property
    def alias(self) -> str:
        """The server's name in the file."""
        return self.entry.alias

    @property
    def state(self) -> ServerState:
        """Whether it is connected, failed, or is still connecting."""
        if self.failure is not None:
            return "failed"
        return "ready" if self._opened.is_set() else "connecting"

    @property
    def info(self) -> ServerInfo:
        """Its state, for display and for `run.started`."""
        ready = self.state == "ready"
        return ServerInfo(
            alias=self.alias,
            transport=self._opening.transport,
            state=self.state,
            tools=len(self.definitions) if ready else 0,
            error=self.failure,
            address=self._opening.address,
        )

    def declares(self, capability: str) -> bool:
        """Whether the server declares `resources` or `prompts`."""
        known = None if self._session is None else self._session.agreement.capabilities
        # Lua and PHP print an empty object as `[]`.
        found = None if known is None else known.get(capability)
        return found is not None and found is not False

    async def settled(self) -> None:
        """Wait until it is connected or has failed."""
        await self._opened.wait()

    async def open(self) -> None:
        """Connect and list the tools; a failure is kept in `failure` (M5)."""
        seconds = self.entry.timeout.connect
        try:
            with anyio.fail_after(seconds):
                self._session = await self._begin()
                found = await self._list()
                self.definitions, self.rows = found.definitions, found.rows
                await self._session.listening()
        except (TimeoutError, LeftError):
            await self.fail(f"no answer within {seconds:g} s")
        except RpcError as error:
            await self.fail(f"it answers `{error.method}` with an error: {error.message}")
        except McpError as error:
            await self.fail(error.message)
        finally:
            self._opened.set()

    async def close(self) -> None:
        """Disconnect from the server."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        name: str,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None,
        limit: float = inf,
    ) -> ToolResult:
        """Call a tool. Only cancellation propagates as an exception."""
        result = await self.forward(name, arguments, Call(on_progress, sample, limit=limit))
        return result if isinstance(result, ToolResult) else read_result(result)

    async def forward(
        self, name: str, arguments: JsonObject, call: Call
    ) -> JsonObject | ToolResult:
        """Call a tool: what the server answers, unread; a failure is a `ToolResult`.

        Raises:
            RpcError: the owner of the call has to open pages first, or its client has not declared
                what the server needs.
        """
        time = None if call.owner is None else CallTime()
        with self._in_use():
            result = await self._result_of(name, arguments, replace(call, time=time))
        if self._opening.adapter is not None:
            # The same in every replay: what follows knows the tools that this call changed.
            await self._refresh.over()
        return result

    async def _result_of(
        self, name: str, arguments: JsonObject, call: Call
    ) -> JsonObject | ToolResult:
        seconds = min(self.entry.timeout.tools.get(name, self.entry.timeout.call), call.limit)
        CALL_DEADLINE.set(anyio.current_time() + seconds)
        try:
            return await in_time(seconds, self._call(name, arguments, call), call.time)
        except ToolChangedError as error:
            return denied(error.message)
        except RpcError as error:
            if error.code in {PAGES_REQUIRED, MISSING_CAPABILITY} and call.owner is not None:
                raise  # it is about the owner's client, not about us
            began = error.code not in _NOT_ACCEPTED
            said = f"[aish] tool dispatch failed: {error.message}"
            return ToolResult("rpc_error", said, began=began)
        except TransportError as error:
            return lost(error.message, sent=error.sent)

    async def ask(self, method: str, params: JsonObject, call: Call = NO_CALL) -> JsonObject:
        """The answer to a request other than a tool call.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        time = None if call.owner is None else CallTime()
        with self._in_use():
            request = self._live().request(method, params, replace(call, time=time))
            return await in_time(self.entry.timeout.call, request, time)

    @property
    def has_subscriptions(self) -> bool:
        """Whether the server says when a resource was updated."""
        return self._session is not None and self._session.agreement.has_subscriptions

    async def subscribe(self, uri: str) -> None:
        """Hear of updates of a resource, as long as this server is connected.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        await in_time(self.entry.timeout.call, self._live().subscribe(uri))

    async def unsubscribe(self, uri: str) -> None:
        """Hear of no more updates of a resource.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        await in_time(self.entry.timeout.call, self._live().unsubscribe(uri))

    async def set_log_level(self, level: str) -> None:
        """Want the log messages from this level on; a request may want more, or less.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        await in_time(self.entry.timeout.call, self._live().set_log_level(level))

    def _note(self, method: str, params: JsonObject) -> None:
        if method == LIST_CHANGES["tools"]:
            self._refresh.changed()
        elif self.on_note is not None:
            self.on_note(self, method, params)

    async def pages(self, method: str) -> Sequence[JsonObject]:
        """All pages of a listing.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        with self._in_use():
            return await in_time(self.entry.timeout.call, self._live().pages(method))

    async def idle(self) -> None:
        """Wait until nobody waits for an answer of it."""
        while self._requests:
            self._idle = anyio.Event()
            await self._idle.wait()

    @contextmanager
    def _in_use(self) -> Generator[None]:
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def _call(self, name: str, arguments: JsonObject, call: Call) -> JsonObject:
        params: JsonObject = {"name": name, "arguments": arguments}
        await self._settled(name)
        try:
            asked = self._headed(name, arguments, call)
            return await self._live().request("tools/call", params, asked)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # The server did not run the tool: which headers it wants is in the list of tools.
        self._take(await self._list())
        if not self._may_call(self, name):
            raise ToolChangedError(self.alias, name)
        asked = self._headed(name, arguments, call)
        return await self._live().request("tools/call", params, asked)

    def _headed(self, name: str, arguments: JsonObject, call: Call) -> Call:
        definition = self.definitions.get(name)
        mirrored = definition.headers if definition is not None else ()
        return replace(call, headers=tuple(parameter_headers(mirrored, arguments)))

    def _live(self) -> Session:
        if self._lost:
            # Runs report this too: an export of the session has to tell its model the same.
            raise UnreachableError(ENDED_AGAIN)
        if self._session is None:
            raise UnreachableError(self.failure or "the server is closed")
        return self._session

    async def _begin(self) -> Session:
        """Open a session over the entry's transport, or over 2024's if the server has only that."""
        session = Session(self._opening.first(), self._terms(), self._tasks)
        try:
            self._session = session
            await session.open()
        except HttpStatusError as error:
            if error.status not in NOT_THERE:
                raise
            older = await self._opening.older()
            self._session = session = Session(older, self._terms(legacy=True), self._tasks)
            try:
                await session.open()
            except McpError:
                raise error from None
        return session

    def _terms(self, *, legacy: bool = False) -> Terms:
        entry = self.entry
        protocol = entry.protocol
        return Terms(
            protocol="legacy" if legacy and protocol == "auto" else protocol,
            answers=Answers(
                entry.alias,
                entry.roots,
                sampling=entry.sampling == "allow" or entry.model_consent.given,
                elicit=self._elicit,
                consent=entry.model_consent if entry.pack else None,
                forwards=self._opening.forwards,
            ),
            probe_seconds=self._opening.probe_seconds,
            notice=self._opening.notice,
            on_note=self._note,
            on_new_session=self._on_new_session,
            on_gone=self._gone,
            adapter=self._opening.adapter,
            origin=self._opening.origin,
            restarts=self._restarts,
        )

    async def _list(self) -> ToolList:
        """The tools that the server offers and the entry selects."""
        session = self._live()
        pages = await session.pages("tools/list")
        reading = self._opening.reading(modern=session.agreement.dialect.modern)
        found = tool_list(pages, reading, self.entry, self._opening.notice)
        for name in sorted(found.ambiguous - self.ambiguous):
            text = f"it lists two different tools as `{name}`: neither is offered"
            self._opening.notice("ambiguous_tool", text)
        self.ambiguous = found.ambiguous
        return found

    async def _settled(self, name: str) -> None:
        """Wait until all changes announced by the server are known (P8)."""
        known = self.definitions.get(name)
        await self._refresh.over()
        self._hold(name, known)

    async def _on_new_session(self, method: str, params: JsonObject) -> None:
        """A server that was lost may return with other tools: list them before a call."""
        if method == "tools/call":
            name = str(params.get("name"))
            known = self.definitions.get(name)
            self._take(await self._list())
            self._hold(name, known)

    def _hold(self, name: str, known: Definition | None) -> None:
        """Ensure that a call goes to the tool that was approved (P6)."""
        found = self.definitions.get(name)
        if found is not None and known is not None and found != known:
            raise ToolChangedError(self.alias, name)

    def _take(self, found: ToolList) -> None:
        """Offer these tools from now on."""
        is_same, rows = found.definitions == self.definitions, self.rows
        if not is_same:
            self._opening.notice("tools_changed", differences(self.definitions, found.definitions))
            self.definitions = found.definitions
        self.rows = found.rows
        if not is_same or rows != found.rows:
            self._on_change(self)

    async def _list_again(self) -> bool:
        try:
            with anyio.fail_after(self.entry.timeout.connect):
                found = await self._list()
        except (McpError, TimeoutError, AishError):
            # The adapter remembers what a replay did not find.
            self._opening.notice("refresh_failed", "its changed tools could not be listed")
            return False
        self._take(found)
        return True

    async def fail(self, reason: str) -> None:
        """Disconnect from a server that failed to start, and keep the reason."""
        with anyio.CancelScope(shield=True):
            await self.close()
        self.definitions, self.rows = {}, {}
        self.failure = self._opening.explain(reason)

    def _gone(self, reason: str) -> None:
        """Mark the server as lost for good; it is not connected again."""
        if self.on_gone is None or self.state != "ready":
            return
        self._lost = True
        self.refuse(self._opening.explain_loss(reason))
        self.on_gone(self)

    def refuse(self, reason: str) -> None:
        """Offer none of its tools, although it is connected."""
        self.definitions, self.rows = {}, {}
        self.failure = reason
