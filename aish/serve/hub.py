"""Tools of packs and servers, offered to clients under public names.

Resources and prompts are in `passthrough`. Each session is notified of changes, in bursts.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from itertools import starmap
from typing import TYPE_CHECKING, Any

import anyio

from aish.agent.wording import server_instructions
from aish.config.model import ServeSettings
from aish.core.errors import UsageError
from aish.core.events import NOWHERE, Level, Notice, ServerInfo
from aish.core.json import JsonObject, JsonValue
from aish.core.sources import Sources
from aish.core.tools import Tool, ToolName
from aish.engine.plan.validation.names import LONGEST_SERVED
from aish.engine.resources.resources import missing_server
from aish.mcp.client.dynamic_registry import Exchanged
from aish.mcp.client.registry import Registry
from aish.mcp.protocol.convert import wire_name
from aish.mcp.protocol.requests import dump
from aish.packs.catalogue import own_public_name
from aish.policy.gate import Gate
from aish.policy.rules import matches_tool
from aish.serve.calls.calls import Calls, own_part
from aish.serve.calls.pending_calls import PendingCalls
from aish.serve.clients import Clients
from aish.serve.offer.active import Active, ActiveConfig
from aish.serve.offer.offers import ListName, Offer, Rows
from aish.serve.passthrough import Passthrough
from aish.serve.records.audit import AuditError, AuditLog, Caller
from aish.serve.records.call_events import CallEvents
from aish.system.task_group import task_group

if TYPE_CHECKING:
    # Most servers record nothing.
    from aish.serve.client_exchanges import ClientExchanges

_BURST_SECONDS = 0.2
_REFUSED_SECONDS = 60.0
_MOST_REFUSED = 100
"""Refusals that are written down in each such time: nobody fills the disk by being refused."""


class Hub:
    """State that sessions share: the offer, the gate, and whether the server is ending."""

    def __init__(
        self,
        active: Active,
        registry: Registry,
        gate: Gate,
        calls: Calls,
        audit: AuditLog,
        events: CallEvents,
        clients: Clients,
    ) -> None:
        self.active = active
        self.clients = clients
        """Who may connect with a token."""
        self.pending: PendingCalls
        self.reconnect: Callable[[str], Awaitable[None]]
        """Given by who composes the server: it reports to the hub."""
        self.calls = calls
        self.draining = anyio.Event()
        """Nothing new is taken, and subscriptions end."""
        self.is_cut_off = False
        """What did not end in time was cancelled."""
        self.metrics = calls.metrics
        self.exchanges: ClientExchanges | None = None
        """Records the exchanges of clients, if there is a cassette."""
        self.flushes: set[Callable[[], Coroutine[Any, Any, None]]] = set()
        """Wait until what was said to a client is written."""
        self._registry = registry
        self._gate = gate
        self._audit = audit
        self._emit = events.notify
        self._events = events
        self._offers: dict[tuple[str, ...], Offer] = {}
        self._rows: dict[ListName, Rows] = {}
        self._answering: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._settled = anyio.Event()
        self._changed = anyio.Event()
        self._left_out: set[ToolName] = set()
        self._lost: Mapping[str, ToolName] = {}
        """Tools whose server is lost, by the names that clients knew them by."""
        self._sessions = 0
        self.metrics.counters["aish_audit_failures_total"] = (
            "Records of the audit log that could not be written or synced.",
            lambda: {(): audit.failures},
        )
        self.metrics.gauges["aish_sessions"] = (
            "Sessions of the handshake, over all transports.",
            lambda: {(): self._sessions},
        )
        self.metrics.gauges["aish_server_up"] = (
            "Whether a server is connected.",
            lambda: {(("server", one.alias),): int(one.state == "ready") for one in self.servers},
        )
        self._refused_since = -_REFUSED_SECONDS
        self._refused = self._unwritten = 0
        self.passthrough = Passthrough(registry, active, calls, audit, self._publish, self.tell)
        registry.on_change = self._on_change

    @property
    def name(self) -> str:
        return self.active.now.name

    @property
    def settings(self) -> ServeSettings:
        return self.active.now.settings

    @property
    def servers(self) -> tuple[ServerInfo, ...]:
        return self._registry.servers

    @property
    def state(self) -> str:
        """`ready`, or the reason why not: `starting`, `unavailable` or `draining`."""
        if self.draining.is_set():
            return "draining"
        if not self._settled.is_set():
            return "starting"
        missing = missing_server(self.active.now.plan, self.servers)
        return "ready" if missing is None else "unavailable"

    def offer(self, globs: tuple[str, ...]) -> Offer:
        """Return the offer for clients that may see only these tools."""
        offer = self._offers.get(globs)
        if offer is None:
            offer = self._offers[globs] = Offer(globs)
            for listed, rows in self._rows.items():
                offer.make(listed, rows)
        return offer

    def tool(self, offer: Offer, public: str) -> Tool | None:
        """Return the tool with this public name, as its server defines it now.

        Tools of packs also have older names, which no list shows.
        """
        name, older = self._name_of(offer, public), None
        if name is None:
            name = older = self._name_of(offer, own_public_name(public))
        tool = None if name is None else self.active.now.tools.by_name(name)
        return tool if tool is None or older is None or tool.builtin else None

    async def tool_after_reconnect(self, offer: Offer, public: str) -> Tool | None:
        """Return the tool; if its server is lost, after the next attempt to connect to it."""
        tool = self.tool(offer, public)
        if tool is None and (lost := self.find_lost_server(offer, public)) is not None:
            await self.reconnect(lost.alias)
            tool = self.tool(offer, public)
        return tool

    def find_lost_server(self, offer: Offer, public: str) -> ServerInfo | None:
        """Return the server that had the tool of this name, if it is lost for the moment."""
        name = self._name_of(offer, public) or self._name_of(offer, own_public_name(public))
        if name is None:
            return None
        servers = (server for server in self.servers if server.alias == name.server)
        return next((server for server in servers if server.state == "failed"), None)

    def _name_of(self, offer: Offer, public: str) -> ToolName | None:
        """Return the tool of a public name; a lost server keeps its tools until the next list."""
        name = offer.name("tools", public)
        if name is None and (lost := self._lost.get(public)) is not None and offer.covers(lost):
            return lost
        return name

    async def wait_until_settled(self) -> None:
        """Wait until each server has started or failed: before that there is no list."""
        if not self._settled.is_set():
            await self._settled.wait()

    async def instructions(self, offer: Offer) -> tuple[str, Sources]:
        """Return the instructions for clients: those of the file, then those of its servers."""
        parts, now = [self.settings.instructions or ""], self.active.now
        told: Mapping[str, str] = {}
        if any(server.entry.instructions for server in now.plan.servers):
            await self.wait_until_settled()
            seen = {name.server for name in offer.names("tools").values()}
            told = now.tools.own.instructions(now.tools.own.listed())
            told = {one: said for one, said in told.items() if one in seen}
            parts += starmap(server_instructions, told.items())
        return "\n\n".join(filter(None, parts)), frozenset(told)

    def begin(self) -> None:
        """Begin to offer tools: all servers have started or failed.

        Raises:
            UsageError: two tools have the same name.
        """
        self._make(_refuse)  # nobody has had a list yet, so nobody is told
        self._settled.set()

    def exchange(self, config: ActiveConfig, exchange_servers: Callable[[], Exchanged]) -> None:
        """Put another file into force, and notify the clients whose lists change.

        Raises:
            UsageError: two tools would have the same name; nothing has changed.
        """
        servers = exchange_servers()
        old, self.active.now = self.active.now, config
        self._follow(config)
        try:
            self._make(_refuse)
        except BaseException:  # half of a file is never in force
            self.active.now = old
            servers.revert()
            self._follow(old)
            raise
        self._left_out.clear()
        servers.keep()

    def _follow(self, config: ActiveConfig) -> None:
        own = config.tools.own
        self._gate.follow(config.plan.policy, own.denial_of)
        self.calls.follow_sources(config)
        if own.watch is None:
            self._registry.hold_to(lambda: None, lambda _tool: True)
        else:
            own.watch.hold(self._registry)

    async def watch(self) -> None:
        """Follow changes of the servers' lists until this is cancelled."""
        async with task_group() as tasks:
            tasks.start_soon(self.passthrough.run)
            await self._watch_tools()

    async def _watch_tools(self) -> None:
        def leave_out(public: str, first: ToolName, second: ToolName) -> None:
            if second not in self._left_out:
                self._left_out.add(second)
                text = f"`{second}` is left out: `{first}` is called `{public}` already"
                self.tell("warning", "tool_name_taken", text)

        while True:
            await self._changed.wait()
            await anyio.sleep(_BURST_SECONDS)
            self._changed = anyio.Event()
            self._make(leave_out)

    @contextmanager
    def track_answer(self, scope: anyio.CancelScope) -> Generator[None]:
        """Register a request that is being answered in this scope."""
        self._answering.add(scope)
        try:
            yield
        finally:
            self._answering.discard(scope)
            if not self._answering:
                self._idle.set()

    def cut_off(self) -> None:
        """Cancel all requests that are still being answered."""
        self.is_cut_off = True
        for scope in tuple(self._answering):
            scope.cancel()

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        while self._answering:
            self._idle = anyio.Event()
            await self._idle.wait()

    def open_session(self, caller: Caller) -> None:
        """Open a session.

        Raises:
            AuditError: it could not be recorded.
        """
        self._audit.open_session(caller)
        self._events.open_session(caller)
        self._sessions += 1

    def close_session(self, caller: Caller) -> None:
        self.active.now.tools.close_session(caller.session)
        self._sessions -= 1
        try:
            self._audit.close_session(caller)
        except AuditError as error:
            self.tell("error", "audit_lost", str(error))
        self._events.close_session(caller)

    def forget(self, session: str) -> None:
        """Clean up after the requests of a stateless client."""
        self.pending.end(session)
        self.active.now.tools.close_session(session)

    def note_refusal(self, peer: JsonObject, reason: str, detail: str = "") -> None:
        """Record that a request was refused; of very many only some, with a count of the rest."""
        now = anyio.current_time()
        if now - self._refused_since >= _REFUSED_SECONDS:
            self._refused_since, self._refused = now, 0
        self._refused += 1
        if self._refused > _MOST_REFUSED:
            self._unwritten += 1
            return
        about: dict[str, JsonValue] = {"peer": peer, "reason": reason}
        if detail:
            about["detail"] = detail
        if self._unwritten:
            about["unwritten"] = self._unwritten
        try:
            self._audit.note("refused", None, **about)
        except AuditError as error:
            self.tell("error", "audit_lost", str(error))
        else:
            self._unwritten = 0

    def tell(self, level: Level, code: str, text: str) -> None:
        """Show a message to the person who runs the server."""
        self._emit(Notice(NOWHERE, level, code, text))

    def report(self, error: Exception) -> None:
        """Report a bug that has ended one request."""
        text = f"a request failed: {type(error).__name__}: {error}"
        self.tell("error", "request_failed", text)

    def report_listener(self, error: Exception) -> None:
        """Report a problem of a listening socket."""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        text = f"a listener failed: {type(error).__name__}: {reason}"
        self.tell("warning", "listener_failed", text)

    def _make(self, on_clash: Callable[[str, ToolName, ToolName], None]) -> None:
        rows: dict[str, tuple[ToolName, bytes]] = {}
        for tool in self.active.now.tools.listed():
            if not self._is_offered(tool.name):
                continue
            public = tool.name.name
            if self.settings.names != "plain":
                public = wire_name(tool.name, LONGEST_SERVED)
            if public in rows:
                on_clash(public, rows[public][0], tool.name)
                continue
            row = {
                **own_part(self.active.now.tools.row(tool), is_pack=tool.builtin),
                "name": public,
            }
            rows[public] = (tool.name, dump(row))
        self._remember_lost(rows)
        self._publish("tools", {"tools": rows}, is_told=self._settled.is_set())

    def _remember_lost(self, rows: Rows) -> None:
        """Remember tools that are gone only because their server is lost: it may return."""
        down = {server.alias for server in self.servers if server.state == "failed"}
        known = {public: name for public, (name, _) in self._rows.get("tools", {}).items()}
        self._lost = {
            public: name
            for public, name in {**self._lost, **known}.items()
            if public not in rows and name.server in down and self._is_offered(name)
        }

    def _publish(self, capability: str, lists: Mapping[ListName, Rows], *, is_told: bool) -> None:
        self._rows.update(lists)
        for offer in self._offers.values():
            changed = list(starmap(offer.make, lists.items()))
            if any(changed) and is_told:
                offer.tell(capability)

    def _on_change(self) -> None:
        self._changed.set()
        self.passthrough.note_change()

    def _is_offered(self, name: ToolName) -> bool:
        denying = (rule for rule in self._gate.policy.deny if rule.unconditional)
        globs = self.settings.tools
        return not any(rule.covers(name) for rule in denying) and (
            not globs or any(matches_tool(pattern, name) for pattern in globs)
        )


def _refuse(public: str, first: ToolName, second: ToolName) -> None:
    message = f"`{first}` and `{second}` would both be called `{public}`"
    hint = "`names: prefixed` tells them apart, `exclude` leaves one of them out"
    raise UsageError(message, where="serve.names", hint=hint)
