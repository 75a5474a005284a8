"""The cassette adapter of MCP; imported only by runs that have a cassette.

Records and replays what is not HTTP: child processes, packs, and 2024's HTTP+SSE.

An interaction is one message of the client and all that followed it, a line each: what the server
sent meanwhile, the answer, and what it sent then, until the next message of the client. The real
transport is opened at the first live message, so never in replay.

Messages over transports other than HTTP, as a cassette holds them: JSON lines, and failures.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup

from aish.cassettes.format.interaction import CassetteMissError, Exchange, Request, Response
from aish.cassettes.format.rpc import Said, message_of, peek
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.recorder import LEFT, CassetteRecorder
from aish.core.frozen import slotted
from aish.core.json import JsonObject
from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    HttpStatusError,
    LeftError,
    McpError,
    NotAMessageError,
    Noted,
    NotSentError,
    RpcResponse,
    ServerEndedError,
    ServerRequest,
    TransportError,
    UnreachableError,
    json_object,
)
from aish.mcp.transports.http import OpenHttp
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, Transport, hears_already

_CLASSES = {
    cls.__name__: cls for cls in (TransportError, ServerEndedError, NotSentError, UnreachableError)
}
_STATUS = re.compile(r"HTTP (\d{3})(?:: )?(.*)", re.DOTALL)


def readable(message: object) -> bytes:
    """A message on one line, its Unicode as a person reads it."""
    separators = (",", ":")
    text = json.dumps(message, ensure_ascii=False, separators=separators, default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8.
        return json.dumps(message, separators=separators, default=_plain).encode()


def message_json(message: ServerRequest | Noted) -> JsonObject:
    """An unsolicited message of the server, as it was sent."""
    number = {"id": message.id} if isinstance(message, ServerRequest) else {}
    return {"jsonrpc": "2.0", **number, "method": message.method, "params": message.params}


def answer_json(answer: RpcResponse, number: int) -> JsonObject:
    """The answer to the client's request with this number."""
    if answer.error is None:
        return {"jsonrpc": "2.0", "id": number, "result": answer.result}
    error: dict[str, Any] = {"code": answer.error.code, "message": answer.error.message}
    if answer.error.data is not None:
        error["data"] = answer.error.data
    return {"jsonrpc": "2.0", "id": number, "error": error}


def in_words(error: McpError) -> str:
    """A failure as text for `Response.broken`."""
    kind = HttpStatusError if isinstance(error, HttpStatusError) else type(error)
    return f"{kind.__name__}: {error.message}"


def failure_of(words: str) -> TransportError:
    """The failure that was recorded; a plain one if another program recorded it."""
    name, _, message = words.partition(": ")
    if name == HttpStatusError.__name__ and (match := _STATUS.fullmatch(message)):
        return HttpStatusError(int(match[1]), match[2])
    cls = _CLASSES.get(name)
    return TransportError(words) if cls is None else cls(message)


def _plain(value: object) -> object:
    """Converts values that a pack may use in an answer to the plain types of JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else str(value)


CALL = "tools/call"
PATIENCE = 2.0
"""Seconds that a failure waits for what had been asked before it when it was recorded."""


@slotted
class _Running:
    take: Exchange
    method: str


class RecordedTransport:
    """A recorded transport; several exchanges may be pending at the same time."""

    over_http = False
    has_session = False
    listen = staticmethod(hears_already)

    def __init__(
        self,
        recorder: CassetteRecorder,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._uri = uri
        self._make = make
        self._tasks = tasks
        self._on_noise = on_noise
        self._inbox: Inbox = _nobody
        self._inner: Transport | None = None
        self._is_open = False
        self._opening = anyio.Lock()
        self._running: dict[int, _Running] = {}
        self._last: Exchange | None = None
        self._kept: list[bytes] = []
        self._asked_live: set[str | int] = set()
        self._newest = 0

    async def open(self, inbox: Inbox) -> None:
        """Prepare; the server is connected at the first message that goes live."""
        self._inbox = inbox
        self._is_open = False

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        """The answer to a request, recorded or replayed."""
        body = messages.request(outgoing.number, outgoing.method, outgoing.params)
        request = self._request(body)
        peeked = peek(request)
        if self._is_replayed and peeked.is_volatile and not self._recorder.holds(request):
            raise LeftError
        held = self._find_response(request, peeked)
        if held is not None:
            return await self._play(held, outgoing.number)
        self._end_last()
        take = self._recorder.begin("mcp", request)
        if take is None:
            return await (await self._reach()).exchange(outgoing)
        return await self._record(take, outgoing)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or an answer to the server, recorded or replayed."""
        request = self._request(body)
        peeked = peek(request)
        if peeked.method == "notifications/cancelled":
            if self._inner is not None and self._is_open:
                await self._inner.send(body, headers)
            return
        # A live request waits for an answer, whatever the cassette holds.
        if peeked.method or peeked.id not in self._asked_live:
            held = self._find_response(request, peeked)
            if held is not None:
                _raise_failure(held)
                return
        take = self._recorder.begin("mcp", request)
        try:
            await (await self._reach()).send(body, headers)
        except BaseException as error:
            _break(take, error)
            raise
        if take is not None:
            take.end()

    async def close(self) -> None:
        try:
            if self._inner is not None:
                await self._inner.close()
        finally:
            self._end_last()

    def noise(self, line: str) -> None:
        """Keep output of the server that is not a message, and report it."""
        self._keep(line.replace("\n", " ").encode("utf-8", "replace"), None)
        self._on_noise(line)

    @property
    def _is_replayed(self) -> bool:
        return self._recorder.way("mcp") == "replay"

    def _request(self, body: bytes) -> Request:
        return Request("POST", self._uri, body=readable(json.loads(body)))

    def _find_response(self, request: Request, peeked: Said) -> Response | None:
        try:
            return self._recorder.recorded("mcp", request, fresh=peeked.is_fresh)
        except CassetteMissError:
            if not self._recorder.rules.lenient:
                raise
            return Response(body=peeked.refusal() if peeked.is_request else b"")

    async def _reach(self) -> Transport:
        async with self._opening:
            if self._inner is None:
                self._inner = self._make()
            if not self._is_open:
                await self._inner.open(self._hear)
                self._is_open = True
        return self._inner

    async def _record(self, take: Exchange, outgoing: Outgoing) -> RpcResponse:
        number = outgoing.number
        self._running[number] = _Running(take, outgoing.method)
        self._newest = take.number
        for line in self._kept:
            take.chunk(line)
        self._kept.clear()
        try:
            answer = await (await self._reach()).exchange(outgoing)
        except BaseException as error:
            if self._newest > take.number:
                # A server that ends ends the requests made meanwhile, and must do so again in
                # replay.
                take.chunk(b"\n", after=self._newest)
            _break(take, error)
            raise
        finally:
            del self._running[number]
        take.chunk(readable(answer_json(answer, number)) + b"\n")
        take.answered = True
        self._end_last()
        self._last = take
        return answer

    def _end_last(self) -> None:
        """End the last exchange: later messages of the server belong to another one."""
        last, self._last = self._last, None
        if last is not None:
            last.end()

    def _hear(self, message: ServerRequest | Noted, number: int | None) -> None:
        """Handle an unsolicited live message."""
        owner = self._owner(message) if number is None else number
        if isinstance(message, ServerRequest):
            self._asked_live.add(message.id)
        self._keep(readable(message_json(message)), owner)
        self._inbox(message, owner)

    def _keep(self, line: bytes, owner: int | None) -> None:
        newest = next(reversed(self._running.values()), None)
        running = newest if owner is None else self._running.get(owner)
        take = self._last if running is None else running.take
        if take is None:
            self._kept.append(line + b"\n")
        else:
            take.chunk(line + b"\n")

    def _owner(self, message: ServerRequest | Noted) -> int | None:
        """The exchange that a message belongs to: by its token, else the newest call."""
        if isinstance(message, Noted) and message.method == "notifications/progress":
            token = str(message.params.get("progressToken"))
            return next((number for number in self._running if str(number) == token), None)
        calls = [number for number, request in self._running.items() if request.method == CALL]
        return calls[-1] if calls else None

    async def _play(self, held: Response, number: int) -> RpcResponse:
        """The recorded answer, after the messages recorded before it."""
        began = anyio.current_time()
        lines = _lines(held)
        for index, (line, seconds) in enumerate(lines):
            await self._wait(began + seconds)
            answer = self._play_line(line, number)
            if answer is not None:
                if rest := lines[index + 1 :]:
                    self._tasks.start_soon(self._play_rest, rest, began)
                return answer
        if held.broken == LEFT and self._recorder.rules.paced:
            await anyio.sleep_forever()
        if held.broken == LEFT:
            raise LeftError
        if earlier := max((chunk.after for chunk in held.chunks), default=0):
            with anyio.move_on_after(PATIENCE):
                await self._recorder.wait_for_request(earlier)
        _raise_failure(held)
        raise TransportError("the cassette has no answer to this")

    async def _play_rest(self, lines: list[tuple[bytes, float]], began: float) -> None:
        for line, seconds in lines:
            await self._wait(began + seconds)
            self._play_line(line, None)

    async def _wait(self, until: float) -> None:
        if self._recorder.rules.paced:
            await anyio.sleep_until(until)

    def _play_line(self, line: bytes, number: int | None) -> RpcResponse | None:
        try:
            batch = messages.decode(line)
        except NotAMessageError:
            self._on_noise(line.decode("utf-8", "replace"))
            return None
        for message in batch:
            if isinstance(message, RpcResponse):
                return message
            self._inbox(message, number)
        return None


def _lines(held: Response) -> list[tuple[bytes, float]]:
    """The lines of a recorded answer, each with its time."""
    lines: list[tuple[bytes, float]] = []
    rest, seconds = b"", 0.0
    for piece, seconds in held.pieces():
        *whole, rest = (rest + piece).split(b"\n")
        lines += ((line, seconds) for line in whole if line.strip())
    return [*lines, (rest, seconds)] if rest.strip() else lines


def _break(take: Exchange | None, error: BaseException) -> None:
    """End an exchange that failed or was cancelled."""
    if take is not None:
        take.end(broken=in_words(error) if isinstance(error, McpError) else LEFT)


def _raise_failure(held: Response) -> None:
    if held.broken not in {None, LEFT}:
        raise failure_of(held.broken or "")


def _nobody(message: ServerRequest | Noted, number: int | None) -> None:
    """Ignore messages before `open`."""


_STDERR = "STDERR"


class RunCassetteAdapter:
    def __init__(self, recorder: CassetteRecorder) -> None:
        self._recorder = recorder

    @property
    def replays(self) -> bool:
        return self._recorder.way("mcp") == "replay"

    @property
    def hurries(self) -> bool:
        return not self._recorder.rules.paced and self._recorder.way("mcp") in {"replay", "extend"}

    def on_played(self, told: Callable[[], None]) -> None:
        """Register `told` to be called after each exchange that is replayed."""
        self._recorder.on_played.append(told)

    def next_list(self, origin: str) -> int | None:
        """The number of the next recorded exchange, if it is a server's tool list."""
        entry = self._recorder.next_unused()
        if entry is None:
            return None
        number, request = entry
        message = message_of(request.body) or {}
        is_list = message.get("method") == "tools/list"
        is_first = "cursor" not in json_object(message.get("params"))
        here = f"{self._recorder.cassette_uri(origin)}/"
        return number if is_list and is_first and f"{request.uri}/".startswith(here) else None

    @property
    def open_http(self) -> OpenHttp:
        """Wraps the httpx transport of a server for the cassette."""
        return lambda make: cassette_transport(self._recorder, "mcp", make)

    def wrap(
        self,
        uri: str,
        make: Callable[[], Transport],
        tasks: TaskGroup,
        on_noise: Callable[[str], None],
    ) -> "RecordedTransport":
        """A transport other than HTTP, wrapped by the adapter; `make` creates the real one."""
        return RecordedTransport(self._recorder, uri, make, tasks, on_noise)

    def last_words(self, uri: str, said: str) -> str:
        """Return what a failed server wrote to stderr: now, or in the recording."""
        request = Request(_STDERR, uri)
        if self._recorder.holds(request) and self._recorder.way("mcp") in {"replay", "extend"}:
            exchange = self._recorder.recorded("mcp", request, fresh=True)
            if exchange is not None:
                return exchange.body.decode("utf-8", "replace")
        take = self._recorder.begin("mcp", request)
        if take is not None:
            take.chunk(said.encode("utf-8", "replace"))
            take.end()
        return said
