"""Server of the file: its connection, tools, and calls. Failures of calls are results.

The tools of a server are listed again each time it says that they changed.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ServerEntry
from aish.core.errors import AishError
from aish.core.events import ServerInfo, ServerState
from aish.core.json import JsonObject
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten
from aish.core.protocols import Progress, Sampler
from aish.core.tools import CALL_DEADLINE, ToolResult
from aish.mcp.client.server_requests import NO_CALL, Answers, Call, Elicit
from aish.mcp.client.session import ENDED_AGAIN, Backoff, ServerSession, Terms
from aish.mcp.protocol.convert import (
    Definition,
    ToolList,
    denial_result,
    differences,
    loss_result,
    read_result,
    tool_list,
    with_explanation,
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

if TYPE_CHECKING:
    from aish.mcp.client.pack_session import PackSession

MAX_REFRESHES = 50
"""How often the tools are listed again in a minute; a server may last for months."""
_REFRESH_SECONDS = 60.0
FIRST_PAUSE = 0.25
"""Before a server that was not up is tried again for the first time."""
_LONGEST_INSTRUCTIONS = 8_000
# Errors by which a server says that it has not begun what was asked of it.
_NOT_ACCEPTED = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, MISSING_CAPABILITY, PAGES_REQUIRED})
# Servers say so with four codes, and with `isError`.
_UNKNOWN_TOOL = lazy_pattern(
    r"(?is)\A.{0,40}(?:(?:unknown|no|such|find) tool|tool.{0,120}(?:not found|not exist|unknown))"
)
_LONGEST_UNKNOWN = 300


def _is_unknown(name: str, message: str) -> bool:
    is_short = name in message and len(message) <= _LONGEST_UNKNOWN
    return is_short and _UNKNOWN_TOOL.search(message) is not None


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

    def schedule(self) -> None:
        self._stale = True
        now = anyio.current_time()
        if now - self._counted_from > _REFRESH_SECONDS:
            self._times, self._counted_from = 0, now
        if not self.under_way and self._times < MAX_REFRESHES:
            self.under_way = True
            self._over = anyio.Event()
            self._tasks.start_soon(self._refresh)

    async def over(self) -> None:
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
"""Answers to a POST after which 2024's HTTP+SSE is tried."""


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
        """Hears that it is lost for good. Without it, in a run, its tools stay listed, and each
        call of them fails."""
        self.on_note: Callable[[Server, str, JsonObject], None] | None = None
        """Takes notifications that belong to no request: their method and their params."""
        self.ambiguous: frozenset[str] = frozenset()
        """A name under which the server lists two tools that differ."""
        self._opening = opening
        self._restarts = restarts
        self._requests = 0
        self._idle = anyio.Event()
        if not restarts:
            opening.on_ended = self._handle_loss
        self._tasks = tasks
        self._elicit = elicit
        self._on_change = on_change
        self._may_call = may_call
        self._session: ServerSession | PackSession | None = None
        self._lost = False
        self._is_listed = self._is_changed = False
        self._warned: set[str] = set()
        self._down: str | None = None
        self._opened = anyio.Event()
        self._refresh = Refresh(tasks, self._list_again)

    @property
    def alias(self) -> str:
        return self.entry.alias

    @property
    def state(self) -> ServerState:
        if self.failure is not None:
            return "failed"
        return "ready" if self._opened.is_set() else "connecting"

    @property
    def info(self) -> ServerInfo:
        ready = self.state == "ready"
        return ServerInfo(
            alias=self.alias,
            transport=self._opening.transport,
            state=self.state,
            tools=len(self.definitions) if ready else 0,
            error=self.failure,
            address=self._opening.address,
            sandbox=self._opening.sandbox,
        )

    @property
    def instructions(self) -> str:
        """Instructions of the server for its use, cut, if the file wants them."""
        text = self._session.agreement.instructions if self._session is not None else ""
        return shorten(text.strip(), _LONGEST_INSTRUCTIONS) if self.entry.instructions else ""

    def declares(self, capability: str) -> bool:
        known = None if self._session is None else self._session.agreement.capabilities
        # Lua and PHP print an empty object as `[]`.
        value = None if known is None else known.get(capability)
        return value is not None and value is not False

    async def wait_until_settled(self) -> None:
        await self._opened.wait()

    async def open(self, *, waits: bool = False) -> None:
        """Connect and list the tools; a failure is kept in `failure`.

        With `waits` a server that is not up yet is tried again, until its time to connect is over.
        """
        seconds = self.entry.timeout.connect
        # A replay would not know how often.
        waits = waits and self._opening.environment.adapter is None
        try:
            await self._opening.prepare()
            with anyio.fail_after(seconds):
                session = self._session = await self._reach(waits=waits)
                await self._list_first()
                await session.wait_until_listening()
        except (TimeoutError, LeftError):
            down = None if self._down is None else f"{self._down}, for {seconds:g} s"
            await self.fail(down or f"no answer within {seconds:g} s")
        except RpcError as error:
            await self.fail(f"it answers `{error.method}` with an error: {error.message}")
        except McpError as error:
            await self.fail(error.message)
        finally:
            self._opened.set()

    async def _list_first(self) -> None:
        # Some servers tell of each tool that they add at their start: the list has those.
        self._is_changed = False
        listing = await self._list()
        self.definitions, self.rows = listing.definitions, listing.rows
        self._is_listed = True
        if self._is_changed:
            self._refresh.schedule()

    async def _reach(self, *, waits: bool) -> "ServerSession | PackSession":
        backoff = Backoff(FIRST_PAUSE)
        while True:
            self._down = None
            try:
                return await self._begin()
            except (UnreachableError, HttpStatusError) as error:
                if not (waits and error.is_down):
                    raise
                self._down = error.message
            await self.close()
            await anyio.sleep(backoff.pause())

    async def close(self) -> None:
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
        with self._in_use():
            result = await self._result_of(name, arguments, call)
        if self._opening.environment.adapter is not None:
            # The same in every replay: what follows knows the tools that this call changed.
            await self._refresh.over()
        return result

    async def _result_of(
        self, name: str, arguments: JsonObject, call: Call
    ) -> JsonObject | ToolResult:
        timeout = self.entry.timeout
        seconds, most = min(timeout.tools.get(name, timeout.call), call.limit), timeout.call_max
        if most is not None:
            most = max(seconds, min(most, call.limit))
        time = CallTime(seconds, most, raised_by=f"timeout.tools.{name}")
        CALL_DEADLINE.set(anyio.current_time() + seconds)
        if isinstance(self._session, ServerSession):  # a pack reports no progress
            # Progress is asked for, whoever hears of it.
            on_progress = call.on_progress or (None if most is None else lambda _progress: None)
            call = replace(call, time=time, on_progress=on_progress)
        try:
            result = await in_time(time, self._call(name, arguments, call))
        except ToolChangedError as error:
            return denial_result(error.message)
        except RpcError as error:
            if error.code in {PAGES_REQUIRED, MISSING_CAPABILITY} and call.owner is not None:
                raise  # it is about the owner's client, not about us
            began = error.code not in _NOT_ACCEPTED and not _is_unknown(name, error.message)
            message = f"[aish] tool dispatch failed: {error.message}"
            if began:
                message = self._opening.name_sandbox(message)
            return ToolResult("rpc_error", message, began=began)
        except TransportError as error:
            return loss_result(self._opening.name_sandbox(error.message), sent=error.sent)
        message = read_result(result).content if result.get("isError") is True else ""
        if _is_unknown(name, message):
            return ToolResult("rpc_error", f"[aish] tool dispatch failed: {message}", began=False)
        return with_explanation(result, self._opening.name_sandbox) if message else result

    async def ask(self, method: str, params: JsonObject, call: Call = NO_CALL) -> JsonObject:
        """The answer to a request other than a tool call.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        time = self._time()
        with self._in_use(), self._failures_explained():
            return await in_time(
                time, self._live().request(method, params, replace(call, time=time))
            )

    def _time(self) -> CallTime:
        return CallTime(self.entry.timeout.call)

    @property
    def has_subscriptions(self) -> bool:
        return self._session is not None and self._session.agreement.has_subscriptions

    async def subscribe(self, uri: str) -> None:
        await in_time(self._time(), self._live().subscribe(uri))

    async def unsubscribe(self, uri: str) -> None:
        await in_time(self._time(), self._live().unsubscribe(uri))

    async def set_log_level(self, level: str) -> None:
        await in_time(self._time(), self._live().set_log_level(level))

    def _note(self, method: str, params: JsonObject) -> None:
        if method == LIST_CHANGES["tools"]:
            self._is_changed = True
            if self._is_listed:
                self._refresh.schedule()
        elif self.on_note is not None:
            self.on_note(self, method, params)

    async def pages(self, method: str) -> Sequence[JsonObject]:
        with self._in_use(), self._failures_explained():
            return await in_time(self._time(), self._live().pages(method))

    async def idle(self) -> None:
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

    @contextmanager
    def _failures_explained(self) -> Generator[None]:
        try:
            yield
        except TransportError as error:
            error.message = self._opening.name_sandbox(error.message)
            raise

    async def _call(self, name: str, arguments: JsonObject, call: Call) -> JsonObject:
        params: JsonObject = {"name": name, "arguments": arguments}
        await self._wait_for_changes(name)
        try:
            asked = self._with_headers(name, arguments, call)
            return await self._live().request("tools/call", params, asked)
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # The server did not run the tool: which headers it wants is in the list of tools.
        self._take(await self._list())
        if not self._may_call(self, name):
            raise ToolChangedError(self.alias, name)
        asked = self._with_headers(name, arguments, call)
        return await self._live().request("tools/call", params, asked)

    def _with_headers(self, name: str, arguments: JsonObject, call: Call) -> Call:
        definition = self.definitions.get(name)
        if definition is None or not definition.headers:
            return call
        return replace(call, headers=tuple(parameter_headers(definition.headers, arguments)))

    def _live(self) -> "ServerSession | PackSession":
        if self._lost:
            # Runs report this too: an export of the session has to tell its model the same.
            raise UnreachableError(ENDED_AGAIN)
        if self._session is None:
            raise UnreachableError(self.failure or "the server is closed")
        return self._session

    async def _begin(self) -> "ServerSession | PackSession":
        pack, adapter = self._opening.pack, self._opening.environment.adapter
        if pack is not None and adapter is None:
            from aish.mcp.client.pack_session import PackSession

            own = self._session = PackSession(pack, self._terms().answers)
            await own.open()
            return own
        session = ServerSession(self._opening.first(), self._terms(), self._tasks)
        try:
            self._session = session
            await session.open()
        except HttpStatusError as error:
            if error.status not in NOT_THERE:
                raise
            older = await self._opening.older()
            self._session = session = ServerSession(older, self._terms(legacy=True), self._tasks)
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
                forwards=self._opening.environment.forwards,
            ),
            probe_seconds=self._opening.probe_seconds,
            notice=self._opening.notice,
            on_note=self._note,
            on_new_session=self._on_new_session,
            on_gone=self._handle_loss,
            adapter=self._opening.environment.adapter,
            origin=self._opening.origin,
            is_process=self._opening.transport == "stdio",
            restarts=self._restarts,
        )

    async def _list(self) -> ToolList:
        session = self._live()
        pages = await session.pages("tools/list")
        reading = self._opening.make_reading(modern=session.agreement.dialect.modern)
        listing = tool_list(pages, reading, self.entry, self._warn)
        for name in sorted(listing.ambiguous):
            text = f"it lists two different tools as `{name}`: neither is offered"
            self._warn("ambiguous_tool", text)
        self.ambiguous = listing.ambiguous
        return listing

    def _warn(self, code: str, text: str) -> None:
        """Report what is odd in the list, once however often it is listed."""
        if text not in self._warned:
            self._warned.add(text)
            self._opening.notice(code, text)

    async def _wait_for_changes(self, name: str) -> None:
        """Wait until all changes announced by the server are known."""
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
        """Ensure that a call goes to the tool that was approved."""
        definition = self.definitions.get(name)
        if definition is not None and known is not None and definition != known:
            raise ToolChangedError(self.alias, name)

    def _take(self, found: ToolList) -> None:
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
                listing = await self._list()
        except (McpError, TimeoutError, AishError):
            # The adapter remembers what a replay did not find.
            if self._session is not None:
                self._opening.notice("refresh_failed", "its changed tools could not be listed")
            return False
        self._take(listing)
        return True

    async def fail(self, reason: str) -> None:
        """Disconnect from a server that failed to start, and keep the reason."""
        with anyio.CancelScope(shield=True):
            await self.close()
        self.definitions, self.rows = {}, {}
        self.failure = self._opening.explain(reason)

    def _handle_loss(self, reason: str) -> None:
        if self.state != "ready":
            return
        self._lost = True
        self.failure = self._opening.explain_loss(reason)
        if self.on_gone is not None:
            self.refuse(self.failure)
            self.on_gone(self)

    def refuse(self, reason: str) -> None:
        self.definitions, self.rows = {}, {}
        self.failure = reason
