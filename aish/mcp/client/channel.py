"""Sends requests in the dialect of an era over a transport, and handles all messages in between.

Numbers requests, adds `_meta` and headers, passes progress to its call, answers requests of the
server, and sends cancellations. Does not know tools or negotiation.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from aish import __version__
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Progress
from aish.mcp.client.server_requests import (
    ELICITING,
    NO_CALL,
    Answers,
    Call,
    InFlight,
    OnProgress,
    Replay,
)
from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    REFUSED_BY_USER,
    HttpStatusError,
    LeftError,
    Noted,
    RpcError,
    RpcResponse,
    ServerRequest,
    TransportError,
)
from aish.mcp.protocol.mirrored_headers import standard_headers
from aish.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    HANDSHAKE,
    LOG_LEVEL_KEY,
    LOG_MESSAGE,
    VERSION_KEY,
)
from aish.mcp.transports.transport import Headers, Outgoing, Transport

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter

CLIENT_INFO: JsonObject = {"name": "aish", "version": __version__}
MAX_ASKED = 16
"""Requests of a server that are answered at the same time while it has a request of ours; more are
left unanswered."""
MAX_PROGRESS = 1000
CANCEL_SECONDS = 0.5
LAST_WORDS_SECONDS = 0.2
"""In replay, for how long a call that comes to nothing waits for what it had made us do."""
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
_OVER = "the call that this was asked for is over"


@frozen
class RequestForm:
    """Form of requests: a revision, and whether it is of the stateless era."""

    version: str
    modern: bool = False


BEFORE_AGREEMENT = RequestForm(HANDSHAKE[0])


class Channel:
    """Messages of a server; several requests may be pending at the same time."""

    def __init__(
        self,
        transport: Transport,
        answers: Answers,
        tasks: TaskGroup,
        on_note: Callable[[str, JsonObject], None],
        adapter: "CassetteAdapter | None" = None,
        origin: str = "",
    ) -> None:
        self._transport = transport
        self._answers = answers
        self._tasks = tasks
        self._on_note = on_note
        self._number = 0
        self._running: dict[int, InFlight] = {}
        self._unowned = InFlight(NO_CALL)
        self._asking: dict[tuple[type, str | int], anyio.CancelScope] = {}
        self._version: str | None = None
        self._replay: Replay | None = None
        if adapter is not None and adapter.replays:
            self._replay = Replay(adapter, origin, self._take)

    @property
    def over_http(self) -> bool:
        return self._transport.over_http

    async def open(self) -> None:
        """Connect to the server, for the first time or again.

        Raises:
            TransportError: the server cannot be reached.
        """
        self._version = None
        await self._transport.open(self._hear)

    async def close(self) -> None:
        if self._replay is not None:
            self._replay.end()
        await self._transport.close()

    async def ask(
        self, method: str, params: JsonObject, dialect: RequestForm, call: Call = NO_CALL
    ) -> JsonObject:
        """The result of a request.

        Raises:
            RpcError: the server refused it.
            TransportError: no answer came.
            AishError: a replay does not hold what the owner of the call answered.
        """
        modern = dialect.modern
        self._number += 1
        number = self._number
        meta: dict[str, Any] = dict(call.trace)
        if call.on_progress is not None:
            meta["progressToken"] = number
        if modern:
            meta[VERSION_KEY] = dialect.version
            meta[CLIENT_KEY] = CLIENT_INFO
            meta[CAPABILITIES_KEY] = self._answers.capabilities(call.owner)
            if call.log_level is not None:
                meta[LOG_LEVEL_KEY] = call.log_level
        headers = _headers(method, params, dialect) if self.over_http else ()
        outgoing = Outgoing(
            number, method, {**params, "_meta": meta} if meta else params, (*headers, *call.headers)
        )
        self._running[number] = running = InFlight(call, method in ELICITING)
        answer: RpcResponse | None = None
        try:
            answer = await self._exchange(outgoing, running)
        except HttpStatusError as error:
            raise (error.rpc.about(method) if modern and error.rpc else error) from error
        except anyio.get_cancelled_exc_class():
            if method != "initialize" and not (modern and self.over_http):
                await self._cancel(number)
            raise
        finally:
            del self._running[number]
            if answer is None or call.owner is not None:
                running.abandon()
        if call.owner is not None and running.missed is not None:
            # In a replay: what its owner answered leads to another result than the recorded one.
            raise running.missed
        if answer.error is not None:
            raise answer.error.about(method)
        return answer.result

    async def _exchange(self, outgoing: Outgoing, running: InFlight) -> RpcResponse:
        if self._replay is None:
            return await self._transport.exchange(outgoing)
        try:
            answer = await self._transport.exchange(outgoing)
        except LeftError:
            # The wait was given up at once; in the recording, the server's requests had time to
            # begin.
            with anyio.move_on_after(LAST_WORDS_SECONDS):
                await running.all_answered()
            raise
        # The answer came at once; in the recording, the server had its own answers first.
        await running.all_answered()
        self._replay.on_answer(outgoing.method)
        return answer

    async def tell(self, method: str, dialect: RequestForm) -> None:
        """Send a notification; it is not a failure if the server does not accept it."""
        self._version = dialect.version
        # Nothing depends on a notification: a real refusal comes with the next request.
        with suppress(HttpStatusError):
            await self._transport.send(messages.notification(method), self._version_header())

    @property
    def has_session(self) -> bool:
        return self._transport.has_session

    async def listen(
        self, dialect: RequestForm, on_open: Callable[[], None], wanted: JsonObject
    ) -> float | None:
        """Receive unsolicited messages until the stream ends, as `Transport.listen` does.

        `wanted` says which ones, to a server of the stateless era.
        """
        if not dialect.modern:
            return await self._transport.listen(on_open)
        on_open()
        await self.ask("subscriptions/listen", {"notifications": wanted}, dialect)
        return None

    def _version_header(self) -> Headers:
        return (("mcp-protocol-version", self._version),) if self._version else ()

    async def _cancel(self, number: int) -> None:
        if self._replay is not None:
            return
        body = messages.notification(CANCELLED, {"requestId": number, "reason": "no longer wanted"})
        # A server that cannot be notified has stopped already.
        with anyio.move_on_after(CANCEL_SECONDS, shield=True), suppress(TransportError):
            await self._transport.send(body, self._version_header())

    def _hear(self, message: ServerRequest | Noted, number: int | None) -> None:
        """Handle an unsolicited message; `number` is the request it came with, if known."""
        if self._replay is None or not self._replay.holds_back(message):
            self._take(message, number)

    def _take(self, message: ServerRequest | Noted, number: int | None) -> None:
        if isinstance(message, ServerRequest):
            running = self._request_of(number) or self._unowned
            if running.asked < MAX_ASKED:
                running.asked += 1
                scope = anyio.CancelScope()
                running.answering.add(scope)
                if running.call.owner is not None:
                    self._asking[type(message.id), message.id] = scope
                self._tasks.start_soon(self._answer, message, running, scope)
        elif message.method == PROGRESS:
            self._progress(message.params)
        elif message.method == CANCELLED:
            self._cancel_request(message.params)
        elif message.method == LOG_MESSAGE:
            self._log(message.params, number)
        else:
            self._on_note(message.method, message.params)

    def _log(self, params: JsonObject, number: int | None) -> None:
        """Pass a log message only to the request that it belongs to.

        Where the wire does not say which one that is, all that run have to be of one client, which
        wants them for each.
        """
        running = self._running.get(number) if number is not None else None
        calls = [request.call for request in ((running,) if running else self._running.values())]
        owners = {call.owner.client for call in calls if call.owner is not None}
        listeners = [call.on_log for call in calls if call.owner is not None]
        if not owners:
            self._on_note(LOG_MESSAGE, params)
        elif len(owners) == 1 and None not in listeners and listeners[-1] is not None:
            listeners[-1](params)

    def _cancel_request(self, params: JsonObject) -> None:
        id = params.get("requestId")
        scope = self._asking.pop((type(id), id), None) if isinstance(id, str | int) else None
        if scope is not None:
            scope.cancel()

    def _request_of(self, number: int | None) -> InFlight | None:
        """The request with this number, else the newest that has a sampler, or that may elicit.

        Of requests that have an owner it has to be the number, unless they all have the same one.
        """
        if number is not None and number in self._running:
            return self._running[number]
        newest = tuple(reversed(self._running.values()))
        owned = [running for running in newest if running.call.owner is not None]
        if owned:
            owners = {running.call.owner.client for running in owned if running.call.owner}
            return owned[0] if number is None and len(owners) == 1 else None
        sampling = (running for running in newest if running.call.sample is not None)
        return next(sampling, None) or next((one for one in newest if one.elicits), None)

    async def _answer(
        self, asked: ServerRequest, running: InFlight, scope: anyio.CancelScope
    ) -> None:
        body = messages.refusal(asked.id, RpcError(REFUSED_BY_USER, _OVER))
        key = type(asked.id), asked.id
        try:
            with scope:
                tell = self._teller(asked)
                answers = self._answers
                result = await answers.answer_on_the_way(asked.method, asked.params, running, tell)
                body = messages.reply(asked.id, result)
        except RpcError as error:
            body = messages.refusal(asked.id, error)
        finally:
            running.answering.discard(scope)
            is_owned = running.call.owner is not None
            is_taken_back = is_owned and self._asking.get(key) is not scope
            if not is_taken_back:
                self._asking.pop(key, None)
        # The server that asked may be gone. The adapter remembers what a replay did not find.
        with suppress(TransportError):
            try:
                if not is_taken_back:
                    await self._transport.send(body, self._version_header())
            except AishError as error:
                running.missed = error
        running.asked -= 1
        running.answered.set()
        running.answered = anyio.Event()

    def _teller(self, asked: ServerRequest) -> OnProgress:
        """Tells the server of the progress of its request, if it gave a token for that."""
        token = messages.json_object(asked.params.get("_meta")).get("progressToken")
        if isinstance(token, bool) or not isinstance(token, str | int):
            return lambda _: None
        left = MAX_PROGRESS

        async def send(body: bytes) -> None:
            with suppress(TransportError):
                await self._transport.send(body, self._version_header())

        def tell(params: JsonObject) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                fields: JsonObject = {**params, "progressToken": token}
                self._tasks.start_soon(send, messages.notification(PROGRESS, fields))

        return tell

    def _progress(self, params: JsonObject) -> None:
        token, progress = params.get("progressToken"), _number(params.get("progress"))
        try:
            running = self._running.get(int(str(token)))
        except ValueError:
            return
        if running is None or running.call.on_progress is None or progress is None:
            return
        if running.call.time is not None:
            running.call.time.note_progress(progress)
        running.progress_seen += 1
        if running.progress_seen > MAX_PROGRESS:
            return
        total, text = _number(params.get("total")), params.get("message")
        running.call.on_progress(Progress(progress, total, text if isinstance(text, str) else None))


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _headers(method: str, params: JsonObject, dialect: RequestForm) -> Headers:
    if method == "initialize":
        return ()
    version = ("mcp-protocol-version", dialect.version)
    return (version, *standard_headers(method, params)) if dialect.modern else (version,)
