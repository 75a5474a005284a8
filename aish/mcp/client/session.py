"""A session with one server of either era: sends requests, returns results.

Retries `input_required`, and starts a new session when a session or a process was lost. Knows tools
only as JSON.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ProtocolChoice
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.mcp.client.channel import BEFORE_AGREEMENT, Channel
from aish.mcp.client.negotiate import Agreement, handshake, negotiate
from aish.mcp.client.server_requests import (
    ELICITING,
    NO_CALL,
    TOOLS_CHANGED,
    Answers,
    Call,
    InFlight,
)
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    LISTINGS,
    MAX_LISTED,
    McpError,
    NotSentError,
    RpcError,
    ServerEndedError,
    SessionLostError,
    json_object,
)
from aish.mcp.transports.transport import Transport

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter

MAX_INPUT_ROUNDS = 10
MAX_RESTARTS = 1
ENDED_AGAIN = "the server ended again after it was restarted"
MAX_PAGES = 100
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
    on_tools_changed: Callable[[], None]
    on_new_session: Callable[[str, JsonObject], Awaitable[None]]
    """Takes the method and the params of the request that a new session is begun for."""
    on_gone: Callable[[str], None]
    """Takes why a server is lost that is not reached for again."""
    adapter: "CassetteAdapter | None" = None
    origin: str = ""
    restarts: bool = True
    """Whether a server that was lost is reached for once more here; else its owner does that."""


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
        sent, running = {**params, **call.continuation}, InFlight(call, method in ELICITING)
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

    async def _greet(self) -> None:
        await self._channel.open()
        if not self._agreement.dialect.modern:
            capabilities = self._terms.answers.capabilities()
            version = self._agreement.dialect.version
            await handshake(self._channel, version, capabilities)

    def _count_restart(self) -> None:
        if self._restarts >= MAX_RESTARTS:
            self._terms.on_gone(ENDED_AGAIN)
            raise ServerEndedError(ENDED_AGAIN)
        self._restarts += 1
        self._terms.notice("server_restarted", "the server was lost and is reached again")

    async def listening(self) -> None:
        """Wait, but not for long, until no unsolicited message of the server can be missed."""
        if self._terms.adapter is not None and self._terms.adapter.replays:
            return
        with anyio.move_on_after(LISTEN_SECONDS):
            await self._heard.wait()

    def _watch(self) -> None:
        self._heard = anyio.Event()
        if self._agreement.announces_tools or self._channel.has_session:
            self._tasks.start_soon(self._listen, self._heard)
        else:
            self._heard.set()

    async def _listen(self, heard: anyio.Event) -> None:
        # If the stream cannot be opened, the server is asked when needed. The adapter remembers
        # what a replay did not find.
        with suppress(McpError, AishError):
            await self._channel.listen(self._agreement.dialect, heard)
        heard.set()

    def _note(self, method: str) -> None:
        if method == TOOLS_CHANGED:
            self._terms.on_tools_changed()


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
