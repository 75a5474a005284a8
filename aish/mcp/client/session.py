"""A session with one server of either era: sends requests, returns results.

Retries `input_required`, and starts a new session when a session or a process was lost. Knows tools
only as JSON.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ProtocolChoice
from aish.core.errors import AishError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.channel import BEFORE_AGREEMENT, Channel
from aish.mcp.client.negotiate import Agreement, handshake, negotiate
from aish.mcp.client.server_requests import ELICITING, NO_CALL, Answers, Call, InFlight
from aish.mcp.protocol.messages import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LISTINGS,
    MAX_LISTED,
    HttpStatusError,
    LeftError,
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
MAX_RESTARTS = 3
"""Restarts of a child since its last answer; then it is given up."""
ENDED_AGAIN = "the server ended again after it was restarted"
MAX_PAGES = 100
_LONGEST_PAUSE = 60.0
LISTEN_SECONDS = 0.5
"""Some servers send the head of a stream only with its first event."""


class Backoff:
    """The pauses before attempts to reach a server again: 1, 2, 4 … 60 seconds.

    They begin anew after a `reset`, and where an attempt has led to 60 seconds with the server.
    """

    def __init__(self, first: float = 1.0) -> None:
        self._first = self._next = first
        self._began = inf

    def begin(self) -> None:
        self._began = anyio.current_time()

    def pause(self) -> float:
        if anyio.current_time() - self._began >= _LONGEST_PAUSE:
            self.reset()
        pause, self._next, self._began = self._next, min(2 * self._next, _LONGEST_PAUSE), inf
        return pause

    def reset(self) -> None:
        self._next = self._first


@frozen
class Terms:
    """Settings for opening a session, and the listeners of its events.

    `origin` is the server's address up to its path, as a cassette names it. What a process has is
    lost with it; any other server is reached again as often as needed.
    """

    protocol: ProtocolChoice
    answers: Answers
    probe_seconds: float
    notice: Callable[[str, str], None]
    on_note: Callable[[str, JsonObject], None]
    """Takes the method and the params of a notification that belongs to no request."""
    on_new_session: Callable[[str, JsonObject], Awaitable[None]]
    """Takes the method and the params of the request that a new session is begun for."""
    on_gone: Callable[[str], None]
    """Takes why a server is lost that is not reached for again."""
    adapter: "CassetteAdapter | None" = None
    origin: str = ""
    is_process: bool = False
    restarts: bool = True
    """A process that has ended is started again here; else its owner does that."""

    @property
    def stays(self) -> bool:
        return not self.restarts

    @property
    def follows(self) -> Sequence[str]:
        return tuple(LIST_CHANGES) if self.stays else ("tools",)


@slotted
class _Subscription:
    """A wish to hear of the updates of one resource."""

    scope: anyio.CancelScope
    settled: anyio.Event = field(default_factory=anyio.Event)
    is_honored: bool = False


class ServerSession:
    """Session of a server; several requests may be pending at the same time."""

    def __init__(self, transport: Transport, terms: Terms, tasks: TaskGroup) -> None:
        self._terms = terms
        self._tasks = tasks
        self._channel = Channel(
            transport, terms.answers, tasks, self._note, terms.adapter, terms.origin
        )
        self._agreement = Agreement(BEFORE_AGREEMENT, "", {})
        self._lost = False
        self._restarts = 0
        self._backoff, self._listening_backoff = Backoff(), Backoff()
        self._beginning = anyio.Lock()
        self._heard = anyio.Event()
        self._left_out: set[str] = set()
        self._subscriptions: dict[str, _Subscription] = {}
        self._log_level: str | None = None
        self._listening = anyio.CancelScope()
        self._missed = False

    @property
    def agreement(self) -> Agreement:
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
        await self._channel.close()

    async def request(self, method: str, params: JsonObject, call: Call = NO_CALL) -> JsonObject:
        """The result of a request, including its rounds of input.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        sent, running = params, InFlight(call, method in ELICITING)
        if self._agreement.dialect.modern:
            if answers := json_object(call.continuation.get("inputResponses")):
                call.check_answer(self._terms.answers.alias, answers)
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
        """All pages of a listing, a bounded number of them and of their rows.

        Raises:
            McpError: the server refused or could not be reached.
        """
        pages: list[JsonObject] = []
        cursors: set[str] = set()
        params: JsonObject = {}
        room = MAX_LISTED
        while True:
            page = await self.request(method, params)
            rows = _row_count(page)
            pages.append(page if rows <= room else _shorten_page(page, room))
            cursor = page.get("nextCursor")
            more = isinstance(cursor, str) and bool(cursor) and cursor not in cursors
            if rows <= room and not more:
                return pages
            if rows >= room:
                self._leave_out(method, f"{MAX_LISTED:,} {method.removesuffix('/list')}")
                return pages
            if len(pages) == MAX_PAGES:
                self._leave_out(method, f"{MAX_PAGES} pages of `{method}`")
                return pages
            room -= rows
            cursors.add(str(cursor))
            params = {"cursor": cursor}

    def _leave_out(self, method: str, most: str) -> None:
        """Report once per listing that it was truncated, however often it is requested."""
        if method not in self._left_out:
            self._left_out.add(method)
            text = f"it lists more than {most}: the rest is left out"
            self._terms.notice("too_many_pages", text)

    async def _inputs(self, result: JsonObject, running: InFlight) -> JsonObject:
        """Return what a retry sends: the answers, and the server's own state unchanged."""
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
            if self._terms.is_process and not self._terms.restarts:
                self._terms.on_gone(error.message)
                raise
            # The server did not receive the request, so sending it again does not repeat it.
            self._lost = True
        except ServerEndedError:
            self._lost = True
            raise
        except HttpStatusError as error:
            if error.status != BAD_REQUEST or not await self._is_forgotten():
                raise
            self._lost = True
        await self._begin_again()
        await self._terms.on_new_session(method, params)
        return await self._ask(method, params, call)

    async def _ask(self, method: str, params: JsonObject, call: Call) -> JsonObject:
        # Another call may have restarted it meanwhile: the new process is not the one that ended.
        restarts = self._restarts
        try:
            answer = await self._channel.ask(method, params, self._agreement.dialect, call)
        except RpcError:
            self._note_answer(method)
            raise
        except UnreachableError as error:
            self._unreachable(error)
            raise
        except ServerEndedError as error:
            if self._terms.is_process and not self._terms.restarts:
                self._terms.on_gone(error.message)
            elif min(restarts, self._restarts) >= MAX_RESTARTS:
                self._terms.on_gone(f"{error.message}, again after it was restarted")
            raise
        self._note_answer(method)
        return answer

    def _note_answer(self, method: str) -> None:
        if method in ELICITING:
            self._restarts = 0
            self._backoff.reset()

    async def _is_forgotten(self) -> bool:
        """Ask whether a server that refused a request does not even take a ping of its session."""
        if not (self._terms.stays and self._channel.has_session):
            return False
        try:
            await self._channel.ask("ping", {}, self._agreement.dialect)
        except RpcError:
            return False
        except HttpStatusError as error:
            return error.status == BAD_REQUEST or isinstance(error, SessionLostError)
        return False

    async def _begin_again(self) -> None:
        """Create a new session or process, once for all callers that wait for it."""
        async with self._beginning:
            if not self._lost:
                return
            if self._terms.is_process:
                await self._count_restart()
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

    async def _count_restart(self) -> None:
        if self._restarts >= MAX_RESTARTS:
            self._terms.on_gone(ENDED_AGAIN)
            raise NotSentError(ENDED_AGAIN)
        if self._restarts and not self._is_replayed:
            await anyio.sleep(self._backoff.pause())
        self._restarts += 1
        self._terms.notice("server_restarted", "the server was lost; connecting to it again")

    async def wait_until_listening(self) -> None:
        if not self._is_replayed:
            with anyio.move_on_after(LISTEN_SECONDS):
                await self._heard.wait()

    @property
    def _is_replayed(self) -> bool:
        return self._terms.adapter is not None and self._terms.adapter.replays

    async def subscribe(self, uri: str) -> None:
        """Hear of updates of a resource from now on, after a restart of the server too.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        if uri in self._subscriptions:
            return
        self._subscriptions[uri] = subscription = _Subscription(anyio.CancelScope())
        try:
            await self._subscribe(uri, subscription)
        except BaseException:
            subscription.scope.cancel()
            del self._subscriptions[uri]
            raise

    async def _subscribe(self, uri: str, subscription: _Subscription) -> None:
        if not self._agreement.dialect.modern:
            await self.request("resources/subscribe", {"uri": uri})
            return
        self._tasks.start_soon(self._follow, uri, subscription)
        await subscription.settled.wait()
        if not subscription.is_honored:
            raise RpcError(INVALID_PARAMS, "its updates are not told")

    async def unsubscribe(self, uri: str) -> None:
        """Hear of no more updates of a resource.

        Raises:
            McpError: the server refused it or could not be reached.
        """
        subscription = self._subscriptions.pop(uri, None)
        if subscription is None:
            return
        subscription.scope.cancel()
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
        """Restore log level and subscriptions at a restarted server, and list again."""
        if not self._agreement.dialect.modern:
            # What it refuses now it would refuse at the next request as well.
            with suppress(McpError, AishError):
                if self._log_level is not None:
                    await self.request("logging/setLevel", {"level": self._log_level})
                for uri in tuple(self._subscriptions):
                    await self.request("resources/subscribe", {"uri": uri})
        self._ask_anew()

    def _ask_anew(self) -> None:
        for capability in self._terms.follows:
            if capability in self._agreement.capabilities:
                self._terms.on_note(LIST_CHANGES[capability], {})

    async def _follow(self, uri: str, subscription: "_Subscription") -> None:
        with subscription.scope:
            filters: JsonObject = {"resourceSubscriptions": [uri]}
            await self._keep_listening(lambda: None, filters, Backoff())
        subscription.settled.set()

    def _watch(self) -> None:
        self._heard = anyio.Event()
        wanted = [one for one in self._terms.follows if self._agreement.announces(one)]
        if wanted or self._channel.has_session:
            self._tasks.start_soon(self._listen, self._heard, wanted)
        else:
            self._heard.set()

    async def _listen(self, heard: anyio.Event, capabilities: Sequence[str]) -> None:
        def on_open() -> None:
            heard.set()
            # A server of the stateless era says itself that it is heard again.
            if not self._agreement.dialect.modern:
                self._ask_missed()

        self._listening.cancel()
        with anyio.CancelScope() as self._listening:
            lists: JsonObject = {f"{capability}ListChanged": True for capability in capabilities}
            await self._keep_listening(on_open, lists, self._listening_backoff)
        heard.set()

    async def _keep_listening(
        self, on_open: Callable[[], None], filters: JsonObject, backoff: Backoff
    ) -> None:
        """Listen, and again where the stream ends, unless the server offers none."""
        is_over = False
        while not is_over:
            wish = None
            backoff.begin()
            try:
                wish = await self._channel.listen(self._agreement.dialect, on_open, filters)
            except (RpcError, LeftError, AishError):
                return  # it does not offer that, or a replay does not hold it
            except (SessionLostError, ServerEndedError):
                is_over = True
            except HttpStatusError as error:
                if not (error.is_passing or self._agreement.dialect.modern):
                    return
            except UnreachableError as error:
                self._unreachable(error)
            except TransportError:
                pass
            if wish is not None:
                backoff.reset()
            self._missed = True
            await anyio.sleep(max(wish or 0.0, backoff.pause()))
        # Where changes may be missed, the next request begins the session again.
        if self._terms.stays and not self._terms.is_process:
            self._lost = True
            with suppress(McpError):  # `on_gone` was told
                await self._begin_again()

    def _ask_missed(self) -> None:
        if self._missed and self._terms.stays:
            self._ask_anew()
        self._missed = False

    def _unreachable(self, error: UnreachableError) -> None:
        """Report at once that the server cannot be reached, so that it is started again."""
        if not self._terms.restarts:
            self._terms.on_gone(error.message)

    def _note(self, method: str, params: JsonObject) -> None:
        if method != ACKNOWLEDGED:
            self._terms.on_note(method, params)
            return
        self._ask_missed()
        uris = json_object(params.get("notifications")).get("resourceSubscriptions")
        for uri, subscription in self._subscriptions.items():
            if isinstance(uris, list) and uri in uris:
                subscription.is_honored = True
                subscription.settled.set()


def _input_requests(result: JsonObject) -> dict[str, JsonObject]:
    requests = json_object(result.get("inputRequests"))
    return {key: json_object(value) for key, value in requests.items()}


def _row_count(page: JsonObject) -> int:
    return sum(
        len(rows) for key, rows in page.items() if key in LISTINGS and isinstance(rows, list)
    )


def _shorten_page(page: JsonObject, room: int) -> JsonObject:
    return {
        key: rows[:room] if key in LISTINGS and isinstance(rows, list) else rows
        for key, rows in page.items()
    }
