"""One server of the file: connected, listed, called. Every failure of a call is a result (M8)."""

from collections.abc import Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from aish.config.server_entry import ServerEntry
from aish.errors import AishError
from aish.mcp.connection import ServerConnection
from aish.mcp.convert import Definition, read_result, read_tools
from aish.mcp.failures import (
    HEADER_MISMATCH,
    HttpStatusError,
    LeftError,
    McpError,
    RpcError,
    ToolChangedError,
    TransportError,
)
from aish.mcp.headers import parameter_headers
from aish.mcp.opening import Opening
from aish.mcp.requests_from_server import Answers, Elicit
from aish.mcp.running import Call
from aish.mcp.session import Session, Terms
from aish.system.globs import matches_word
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Progress, Sampler
from aish.vocab.tools import ToolResult

MAX_REFRESHES = 50
NOT_THERE = frozenset({404, 405})
"""Answers to a POST after which 2024's HTTP+SSE is tried (M2)."""


class Server:
    """A server, up or not; `definitions` are the tools it offers under its entry's filters."""

    def __init__(
        self,
        connection: ServerConnection,
        opening: Opening,
        tasks: TaskGroup,
        *,
        elicit: Elicit | None,
        on_change: Callable[["Server"], None],
        may_call: Callable[["Server", str], bool],
    ) -> None:
        self.entry: ServerEntry = connection.entry
        self.definitions: Mapping[str, Definition] = {}
        self.failure: str | None = None
        self.ambiguous: str | None = None
        """A name under which the server lists two tools that differ."""
        self._opening = opening
        self._tasks = tasks
        self._elicit = elicit
        self._on_change = on_change
        self._may_call = may_call
        self._session: Session | None = None
        self._refreshes = 0
        self._refreshing = False
        self._refreshed = anyio.Event()
        self._stale = False

    @property
    def alias(self) -> str:
        """The server's name in the file."""
        return self.entry.alias

    @property
    def transport(self) -> str:
        """`http`, `stdio` or `pack`."""
        return self._opening.transport

    async def open(self) -> None:
        """Connect and list the tools; a failure is kept in `failure` (M5)."""
        seconds = self.entry.timeout.connect
        try:
            with anyio.fail_after(seconds):
                self._session = await self._begin()
                self.definitions = await self._list()
                await self._session.listening()
        except (TimeoutError, LeftError):
            await self._fail(f"no answer within {seconds:g} s")
        except McpError as error:
            await self._fail(error.message)

    async def close(self) -> None:
        """Let go of the server."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        name: str,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None,
    ) -> ToolResult:
        """Call a tool. Only cancellation passes through."""
        result = await self._result_of(name, arguments, on_progress, sample)
        if self._opening.border is not None and self._refreshing:
            # The same in every replay: what follows knows the tools that this call changed.
            await self._refreshed.wait()
        return result

    async def _result_of(
        self,
        name: str,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None,
    ) -> ToolResult:
        seconds = self.entry.timeout.tools.get(name, self.entry.timeout.call)
        try:
            with anyio.move_on_after(seconds):
                return read_result(await self._call(name, arguments, on_progress, sample))
        except ToolChangedError as error:
            return ToolResult("denied", f"[aish] tool call denied: {error.message}")
        except RpcError as error:
            return ToolResult("rpc_error", f"[aish] tool dispatch failed: {error.message}")
        except LeftError:
            if anyio.current_effective_deadline() < anyio.current_time() + seconds:
                # A limit of the run ended the call, and does so again.
                await anyio.sleep_forever()
        except TransportError as error:
            return _lost(error.message)
        return _lost(f"no answer within {seconds:g} s")

    async def _call(
        self,
        name: str,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None,
    ) -> JsonObject:
        params: JsonObject = {"name": name, "arguments": arguments}
        await self._settled(name)
        try:
            return await self._live().request(
                "tools/call", params, self._as_call(name, arguments, on_progress, sample)
            )
        except RpcError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # The server did not run the tool: which headers it wants is in the list of tools.
        self._take(await self._list())
        if not self._may_call(self, name):
            raise ToolChangedError(self.alias, name)
        return await self._live().request(
            "tools/call", params, self._as_call(name, arguments, on_progress, sample)
        )

    def _as_call(
        self,
        name: str,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None,
    ) -> Call:
        definition = self.definitions.get(name)
        mirrored = definition.headers if definition is not None else ()
        return Call(on_progress, sample, tuple(parameter_headers(mirrored, arguments)))

    def _live(self) -> Session:
        if self._session is None:
            raise TransportError(self.failure or "the server is closed")
        return self._session

    async def _begin(self) -> Session:
        """A session over the entry's transport, or over 2024's where the server has that only."""
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
                entry.alias, entry.roots, sampling=entry.sampling == "allow", elicit=self._elicit
            ),
            probe_seconds=self._opening.probe_seconds,
            notice=self._opening.notice,
            on_tools_changed=self._changed,
            on_new_session=self._on_new_session,
            border=self._opening.border,
            origin=self._opening.origin,
        )

    async def _list(self) -> Mapping[str, Definition]:
        """The tools the server offers and the entry wants."""
        session = self._live()
        reading = self._opening.reading(modern=session.agreement.manner.modern)
        found: dict[str, Definition] = {}
        for page in await session.pages("tools/list"):
            for one in read_tools(page, reading, self._opening.notice):
                if self._is_wanted(one):
                    self._add(found, one)
        return found

    def _add(self, found: dict[str, Definition], one: Definition) -> None:
        earlier = found.setdefault(one.name, one)
        if earlier is not one:
            text = f"it lists `{one.name}` more than once; the first is used"
            self._opening.notice("duplicate_tool", text)
            if earlier != one:
                self.ambiguous = one.name

    def _is_wanted(self, one: Definition) -> bool:
        """Whether the entry wants a tool; left out by one name, it is left out by all."""
        wanted, names = self.entry.tools, filter(None, (one.name, one.older_of))
        return (not wanted or any(matches_word(glob, one.name) for glob in wanted)) and not any(
            matches_word(glob, name) for name in names for glob in self.entry.exclude
        )

    async def _settled(self, name: str) -> None:
        """Wait until what the server said of changes is known (P8)."""
        known = self.definitions.get(name)
        while self._refreshing:
            await self._refreshed.wait()
        self._hold(name, known)

    async def _on_new_session(self, method: str, params: JsonObject) -> None:
        """A server that was lost may come back with other tools: look before one is called."""
        if method == "tools/call":
            name = str(params.get("name"))
            known = self.definitions.get(name)
            self._take(await self._list())
            self._hold(name, known)

    def _hold(self, name: str, known: Definition | None) -> None:
        """A call is for the tool that it was decided on (P6)."""
        found = self.definitions.get(name)
        if found is not None and known is not None and found != known:
            raise ToolChangedError(self.alias, name)

    def _take(self, found: Mapping[str, Definition]) -> None:
        """Offer these tools from now on."""
        if found != self.definitions:
            self._report(found)
            self.definitions = found
            self._on_change(self)

    def _changed(self) -> None:
        """Hear that the tools changed; many such words lead to one new list."""
        self._stale = True
        if not self._refreshing and self._refreshes < MAX_REFRESHES:
            self._refreshing = True
            self._refreshed = anyio.Event()
            self._tasks.start_soon(self._refresh)

    async def _refresh(self) -> None:
        while self._stale and self._refreshes < MAX_REFRESHES:
            self._stale = False
            self._refreshes += 1
            try:
                with anyio.fail_after(self.entry.timeout.connect):
                    found = await self._list()
            except (McpError, TimeoutError, AishError):
                # What a replay misses is remembered by its tape.
                self._opening.notice("refresh_failed", "its changed tools could not be listed")
                break
            self._take(found)
        self._refreshing = False
        self._refreshed.set()

    def _report(self, found: Mapping[str, Definition]) -> None:
        """Say which tools changed in mid-session."""
        before = self.definitions
        words = [f"added `{name}`" for name in found if name not in before]
        words += [f"removed `{name}`" for name in before if name not in found]
        words += [f"changed `{n}`" for n in found if n in before and found[n] != before[n]]
        if words:
            self._opening.notice("tools_changed", "its tools changed: " + ", ".join(words))

    async def _fail(self, reason: str) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()
        self.definitions = {}
        self.failure = self._opening.explain(reason)


def _lost(reason: str) -> ToolResult:
    return ToolResult("transport_error", f"[aish] tool transport error: {reason}")
