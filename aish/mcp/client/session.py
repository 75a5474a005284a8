"""A session with one server of either era: sends requests, returns results.

Retries `input_required`, and starts a new session when a session or a process was lost. Knows tools
only as JSON.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ProtocolChoice
from aish.core.errors import AishError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.channel import BEFORE_AGREEMENT, Channel
from aish.mcp.client.negotiate import Agreement, handshake, negotiate
from aish.mcp.client.server_requests import (
    ELICITING,
    NO_CALL,
    Answers,
    Call,
    InFlight,
)
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LISTINGS,
    MAX_LISTED,
    McpError,
    NotSentError,
    RpcError,
    ServerEndedError,
    SessionLostError,
    TransportError,
    UnreachableError,
    json_object,
)
from aish.mcp.protocol.revisions import ACKNOWLEDGED, LIST_CHANGES
from aish.mcp.transports.transport import Transport

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter

MAX_INPUT_ROUNDS = 10
MAX_RESTARTS = 1
ENDED_AGAIN = "the server ended again after it was restarted"
MAX_PAGES = 100
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
LISTEN_SECONDS = 0.5
"""Some servers send the head of a stream only with its first event."""


@frozen
class Terms:
    """How a session is opened, and who is notified of its events.

    `origin` is the server's address up to its path, as a cassette names it.
    """

    protocol: ProtocolChoice
    answers: Answers
    probe_seconds: float | None
    notice: Callable[[str, str], None]
    on_note: Callable[[str, JsonObject], None]
    """Takes the method and the params of a notification that belongs to no request."""
    on_new_session: Callable[[str, JsonObject], Awaitable[None]]
    """Takes the method and the params of the request that a new session is begun for."""
    on_gone: Callable[[str], None]
    """Takes why a server is lost that is not reached for again."""
    adapter: "CassetteAdapter | None" = None
    origin: str = ""
    restarts: bool = True
    """Whether a server that was lost is reached for once more here; else its owner does that."""

    @property
    def stays(self) -> bool:
        """Whether no change may be missed, however long the session lasts."""
        return not self.restarts

    @property
    def follows(self) -> Sequence[str]:
        """Of which lists changes are wanted."""
        return tuple(LIST_CHANGES) if self.stays else ("tools",)


@slotted
class _Subscription:
    """A wish to hear of the updates of one resource."""

    scope: anyio.CancelScope
    settled: anyio.Event = field(default_factory=anyio.Event)
    is_honored: bool = False


class Session:
    """One server's session; several requests may be pending at the same time."""

    def __init__(self, transport: Transport, terms: Terms, tasks: TaskGroup) -> None:
        self._terms = terms
        self._tasks = tasks
        self._channel = Channel(
            transport, terms.answers, tasks, self._note, terms.adapter, terms.origin
        )
        self._agreement = Agreement(BEFORE_AGREEMENT, "", {})
        self._lost = False
        self._restarts = 0
        self._beginning = anyio.Lock()
        self._heard = anyio.Event()
        self._left_out: set[str] = set()
        self._subscriptions: dict[str, _Subscription] = {}
        self._log_level: str | None = None
        self._listening = anyio.CancelScope()
        self._missed = False

    @property
    def agreement(self) -> Agreement:
        """What was agreed on in `open`."""
        return self._agreement

    async def open(self) -> None:
        """Connect to the server and agree on a revision.

        Raises:
            McpError: that did not work.
        """
        await self._channel.open()
        self._agreement = await negotiate(
            self._channel,
            self._terms.protocol,
            self._terms.answers.capabilities(),
            probe_seconds=self._terms.probe_seconds,
            notice=self._terms.notice,
        )
        self._watch()

    async def close(self) -> None:
        """Disconnect from the server."""
        await self._channel.close()

    async def request(self, method: str, params: JsonObject, call: Call = NO_CALL) -> JsonObject:
        """The result of a request, including its rounds of input.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        sent, running = params, InFlight(call, method in ELICITING)
        if self._agreement.dialect.modern:
            sent = {**params, **call.continuation}
        for _ in range(MAX_INPUT_ROUNDS):
            result = await self._once(method, sent, call)
            kind = result.get("resultType", "complete")
            if kind == "complete" or not self._agreement.dialect.modern:
                return result
            if kind != "input_required":
                raise RpcError(INTERNAL_ERROR, f"unknown kind of result: {kind}")
            if call.owner is not None and call.owner.is_given(_input_requests(result)):
                return result
            sent = {**params, **await self._inputs(result, running)}
        raise RpcError(INTERNAL_ERROR, f"the server asked {MAX_INPUT_ROUNDS} times for input")

    async def pages(self, method: str) -> list[JsonObject]:
        """All pages of a listing, a bounded number of them and of their rows (X6).

        Raises:
            McpError: the server refused or could not be reached.
        """
        found: list[JsonObject] = []
        seen: set[str] = set()
        params: JsonObject = {}
        room = MAX_LISTED
        while True:
            page = await self.request(method, params)
            rows = _row_count(page)
            found.append(page if rows <= room else _shortened(page, room))
            cursor = page.get("nextCursor")
            more = isinstance(cursor, str) and bool(cursor) and cursor not in seen
            if rows <= room and not more:
                return found
            if rows >= room:
                self._leave_out(method, f"{MAX_LISTED:,} {method.removesuffix('/list')}")
                return found
            if len(found) == MAX_PAGES:
                self._leave_out(method, f"{MAX_PAGES} pages of `{method}`")
                return found
            room -= rows
            seen.add(str(cursor))
            params = {"cursor": cursor}

    def _leave_out(self, method: str, most: str) -> None:
        """Report once per listing that it was truncated, however often it is requested."""
        if method not in self._left_out:
            self._left_out.add(method)
            text = f"it lists more than {most}: the rest is left out"
            self._terms.notice("too_many_pages", text)

    async def _inputs(self, result: JsonObject, running: InFlight) -> JsonObject:
        """What a retry sends: the answers, and the server's own state unchanged."""
        continuation: dict[str, JsonValue] = {}
        if result.get("inputRequests") is not None:
            responses = {}
            for key, asked in _input_requests(result).items():
                responses[key] = await self._terms.answers.answer_on_the_way(
                    str(asked.get("method")), json_object(asked.get("params")), running
                )
            continuation["inputResponses"] = responses
        if result.get("requestState") is not None:
            continuation["requestState"] = result["requestState"]
        return continuation

    async def _once(self, method: str, params: JsonObject, call: Call) -> JsonObject:
        if self._lost:
            await self._begin_again()
            await self._terms.on_new_session(method, params)
        try:
            return await self._ask(method, params, call)
        except (SessionLostError, NotSentError) as error:
            if not (self._terms.restarts or self._channel.over_http):
                self._terms.on_gone(error.message)
                raise
            # The server did not receive the request, so sending it again does not repeat it.
            self._lost = True
        except ServerEndedError:
            self._lost = True
            raise
        await self._begin_again()
        await self._terms.on_new_session(method, params)
        return await self._ask(method, params, call)

    async def _ask(self, method: str, params: JsonObject, call: Call) -> JsonObject:
        # Another call may have restarted it meanwhile: the new process is not the one that ended.
        restarts = self._restarts
        try:
            return await self._channel.ask(method, params, self._agreement.dialect, call)
        except UnreachableError as error:
            self._unreachable(error)
            raise
        except ServerEndedError as error:
            if not self._terms.restarts:
                self._terms.on_gone(error.message)
            elif restarts >= MAX_RESTARTS:
                self._lost = True
                self._terms.on_gone(f"{error.message}, again after it was restarted")
            raise

    async def _begin_again(self) -> None:
        """Create a new session or process, once for all callers that wait for it."""
        async with self._beginning:
            if not self._lost:
                return
            if not self._channel.over_http:
                self._count_restart()
            try:
                await self._greet()
            except McpError as error:
                if self._restarts >= MAX_RESTARTS or not self._terms.restarts:
                    self._terms.on_gone(error.message)
                raise
            self._lost = False
        self._watch()
        if self._terms.stays:
            self._tasks.start_soon(self._take_up)

    async def _greet(self) -> None:
        await self._channel.open()
        if not self._agreement.dialect.modern:
            capabilities = self._terms.answers.capabilities()
            version = self._agreement.dialect.version
            await handshake(self._channel, version, capabilities)

    def _count_restart(self) -> None:
        if self._restarts >= MAX_RESTARTS:
            self._terms.on_gone(ENDED_AGAIN)
            raise NotSentError(ENDED_AGAIN)
        self._restarts += 1
        self._terms.notice("server_restarted", "the server was lost and is reached again")

    async def listening(self) -> None:
        """Wait, but not for long, until no unsolicited message of the server can be missed."""
        if self._terms.adapter is not None and self._terms.adapter.replays:
            return
        with anyio.move_on_after(LISTEN_SECONDS):
            await self._heard.wait()

    async def subscribe(self, uri: str) -> None:
        """Hear of updates of a resource from now on, after a restart of the server too.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        if uri in self._subscriptions:
            return
        self._subscriptions[uri] = one = _Subscription(anyio.CancelScope())
        try:
            await self._subscribe(uri, one)
        except BaseException:
            one.scope.cancel()
            del self._subscriptions[uri]
            raise

    async def _subscribe(self, uri: str, one: _Subscription) -> None:
        if not self._agreement.dialect.modern:
            await self.request("resources/subscribe", {"uri": uri})
            return
        self._tasks.start_soon(self._follow, uri, one)
        await one.settled.wait()
        if not one.is_honored:
            raise RpcError(INVALID_PARAMS, "its updates are not told")

    async def unsubscribe(self, uri: str) -> None:
        """Hear of no more updates of a resource.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        one = self._subscriptions.pop(uri, None)
        if one is None:
            return
        one.scope.cancel()
        if not self._agreement.dialect.modern:
            await self.request("resources/unsubscribe", {"uri": uri})

    async def set_log_level(self, level: str) -> None:
        """Ask a server of the handshake era for the log messages from this level on.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        if level != self._log_level and "logging" in self._agreement.capabilities:
            self._log_level = level
            if not self._agreement.dialect.modern:
                await self.request("logging/setLevel", {"level": level})

    async def _take_up(self) -> None:
        """Tell a server that began anew what it had been told, and ask what it has now."""
        if not self._agreement.dialect.modern:
            # What it refuses now it would refuse at the next request as well.
            with suppress(McpError, AishError):
                if self._log_level is not None:
                    await self.request("logging/setLevel", {"level": self._log_level})
                for uri in tuple(self._subscriptions):
                    await self.request("resources/subscribe", {"uri": uri})
        self._ask_anew()

    def _ask_anew(self) -> None:
        """Changes may have been missed: take each list for changed."""
        for capability in self._terms.follows:
            if capability in self._agreement.capabilities:
                self._terms.on_note(LIST_CHANGES[capability], {})

    async def _follow(self, uri: str, one: "_Subscription") -> None:
        """Keep a subscription to a resource of a server of the stateless era."""
        with one.scope:
            await self._keep_listening(anyio.Event(), {"resourceSubscriptions": [uri]})
        one.settled.set()

    def _watch(self) -> None:
        self._heard = anyio.Event()
        wanted = [one for one in self._terms.follows if self._agreement.announces(one)]
        if wanted or self._channel.has_session:
            self._tasks.start_soon(self._listen, self._heard, wanted)
        else:
            self._heard.set()

    async def _listen(self, heard: anyio.Event, wanted: Sequence[str]) -> None:
        lists: JsonObject = {f"{capability}ListChanged": True for capability in wanted}
        if self._terms.stays and self._agreement.dialect.modern:
            self._listening.cancel()
            self._listening = anyio.CancelScope()
            with self._listening:
                await self._keep_listening(heard, lists)
        else:
            # If the stream cannot be opened, the server is asked when needed. The adapter remembers
            # what a replay did not find.
            with suppress(McpError, AishError):
                try:
                    await self._channel.listen(self._agreement.dialect, heard, lists)
                except UnreachableError as error:
                    self._unreachable(error)
        heard.set()

    async def _keep_listening(self, heard: anyio.Event, wanted: JsonObject) -> None:
        """Listen, and again where the stream ends, after 1, 2, 4 … 60 seconds."""
        delay = FIRST_DELAY
        while True:
            began = anyio.current_time()
            try:
                await self._channel.listen(self._agreement.dialect, heard, wanted)
            except RpcError:
                return  # it does not offer that
            except UnreachableError as error:
                self._unreachable(error)
            except (TransportError, AishError):
                pass
            if anyio.current_time() - began > LONGEST_DELAY:
                delay = FIRST_DELAY
            self._missed = True
            await anyio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _unreachable(self, error: UnreachableError) -> None:
        """Nobody is there: who brings servers up again hears of it at once."""
        if not self._terms.restarts:
            self._terms.on_gone(error.message)

    def _note(self, method: str, params: JsonObject) -> None:
        if method != ACKNOWLEDGED:
            self._terms.on_note(method, params)
            return
        if self._missed:
            self._missed = False
            self._ask_anew()
        uris = json_object(params.get("notifications")).get("resourceSubscriptions")
        for uri, one in self._subscriptions.items():
            if isinstance(uris, list) and uri in uris:
                one.is_honored = True
                one.settled.set()


def _input_requests(result: JsonObject) -> dict[str, JsonObject]:
    """What a stateless server asks for, by its keys."""
    wanted = json_object(result.get("inputRequests"))
    return {key: json_object(value) for key, value in wanted.items()}


def _row_count(page: JsonObject) -> int:
    return sum(
        len(rows) for key, rows in page.items() if key in LISTINGS and isinstance(rows, list)
    )


def _shortened(page: JsonObject, room: int) -> JsonObject:
    """A page truncated to the number of rows that are wanted."""
    return {
        key: rows[:room] if key in LISTINGS and isinstance(rows, list) else rows
        for key, rows in page.items()
    }
