"""The sessions of clients over HTTP, by random ids, and the streams they are told on (H12, H16).

A session belongs to the client that began it. What is told on its streams is kept for a while, so
that a client whose connection broke gets the rest of a stream on another one. Knows no HTTP: a
reader is a queue of events.
"""

import re
import secrets
from collections.abc import Callable, Sequence

import anyio

from aish.core.frozen import slotted
from aish.core.json import JsonObject
from aish.net.listen.routes import EventQueue, ServerEvent
from aish.serve.clients import Proof
from aish.serve.hub import Hub
from aish.serve.session import Session

KEPT_EVENTS = 256
_KEPT_TEXT = 1 << 20
_EVENT_ID = re.compile(r"(\d{1,9})-(\d{1,15})", re.ASCII)


class NoRoomError(Exception):
    """There are as many sessions as there may be, and each of them is used."""


@slotted
class _Kept:
    """An event that was told on a stream, in the order of the session."""

    stream: int
    number: int
    event: ServerEvent


def _do_nothing() -> None:
    """Nobody has to hear that a stream is not read."""


class SessionStream:
    """One way to a client: that of one request, or (number 0) of what belongs to none.

    It has at most one reader; without one, what is told is kept.
    """

    def __init__(self, owner: "HttpSession", number: int) -> None:
        self.on_unread: Callable[[], None] = _do_nothing
        """Hears that the reader is gone."""
        self._owner = owner
        self._number = number
        self._queue: EventQueue | None = None
        self._told = -1

    @property
    def is_read(self) -> bool:
        """Whether there is a reader."""
        return self._queue is not None

    def put(self, message: str, key: str = "") -> None:
        """Tell a message; one with the same key that was not read yet is replaced by it."""
        number, event = self._owner.keep(self._number, message, key)
        if self._queue is not None:
            self._told = number
            self._queue.put(event)

    def attach(self, queue: EventQueue, after: int | None = None) -> None:
        """Let this queue be the reader, instead of another one; it begins with what was kept.

        That is what followed the event `after`, or what no reader was told.
        """
        if self._queue is not None:
            self._queue.close()
        self._queue = queue
        self._owner.readers += 1
        start = self._told if after is None else after
        for kept in self._owner.kept(self._number, start):
            self._told = max(self._told, kept.number)
            queue.put(kept.event)

    def detach(self, queue: EventQueue) -> None:
        """This reader is gone."""
        self._owner.readers -= 1
        self._owner.touch()
        if self._queue is queue:
            self._queue = None
            self.on_unread()

    def end(self) -> None:
        """Nothing follows; the reader ends after what it has not read yet."""
        if self._queue is not None:
            self._queue.close()


class HttpSession:
    """A session of the handshake era over HTTP."""

    def __init__(
        self, hub: Hub, proof: Proof, peer: JsonObject, touch: Callable[[str], None]
    ) -> None:
        client = proof.client
        self.id = secrets.token_hex(16)
        self.client = client.name
        self.proof = proof
        self.used = anyio.current_time()
        """When its last request or stream ended, by the clock of the event loop."""
        self.readers = 0
        self.session = Session(hub, client.name, peer, self._tell, client.tools)
        self.stream = SessionStream(self, 0)
        """What belongs to no request."""
        self._touch = touch
        self._streams: dict[int, SessionStream] = {0: self.stream}
        self._numbers = 0
        self._events = 0
        self._kept: dict[tuple[int, str | int], _Kept] = {}
        self._kept_text = 0

    @property
    def is_used(self) -> bool:
        """Whether a request of it is being answered, or a stream is open."""
        return self.readers > 0 or not self.session.is_idle

    def touch(self) -> None:
        """It was used just now."""
        self.used = anyio.current_time()
        self._touch(self.id)

    def open_stream(self) -> SessionStream:
        """The stream of a request."""
        self._numbers += 1
        found = self._streams[self._numbers] = SessionStream(self, self._numbers)
        return found

    def end_stream(self, stream: SessionStream) -> None:
        """The request of a stream is answered; what was told stays for a while."""
        stream.on_unread = _do_nothing
        stream.end()
        self._streams = {number: one for number, one in self._streams.items() if one is not stream}

    def resume(self, last: str, queue: EventQueue) -> SessionStream:
        """Let a client read on behind the event with this id, or from what it was not told.

        A stream that has ended gives what is kept of it, and ends.
        """
        found = _EVENT_ID.fullmatch(last)
        if found is None:
            self.stream.attach(queue)
            return self.stream
        number, after = int(found[1]), int(found[2])
        stream = self._streams.get(number)
        has_ended = stream is None
        if stream is None:
            stream = SessionStream(self, number)
        stream.attach(queue, after)
        if has_ended:
            queue.close()
        return stream

    def keep(self, stream: int, message: str, key: str) -> tuple[int, ServerEvent]:
        """Number an event, and keep it as long as there is room, in place of one with its key.

        What has a key makes room first: no notice of a call pushes out the result of another.
        """
        self._events += 1
        event = ServerEvent(message, id=f"{stream}-{self._events}", key=key)
        place = stream, key or self._events
        self._let_go(place)
        self._kept[place] = _Kept(stream, self._events, event)
        self._kept_text += len(message)
        while len(self._kept) > KEPT_EVENTS or (
            self._kept_text > _KEPT_TEXT and len(self._kept) > 1
        ):
            oldest = next(iter(self._kept))
            self._let_go(next((one for one in self._kept if isinstance(one[1], str)), oldest))
        return self._events, event

    def _let_go(self, place: tuple[int, str | int]) -> None:
        if (old := self._kept.pop(place, None)) is not None:
            self._kept_text -= len(old.event.data)

    def kept(self, stream: int, after: int) -> Sequence[_Kept]:
        """What is kept of a stream, behind an event."""
        kept = self._kept.values()
        return [one for one in kept if one.stream == stream and one.number > after]

    def end(self) -> None:
        """It is over: what runs is cancelled, and its streams end."""
        self.session.close()
        for stream in tuple(self._streams.values()):
            stream.end()

    def _tell(self, message: bytes) -> None:
        self.stream.put(message.decode("ascii"))


class HttpSessions:
    """All sessions over HTTP, the longest unused first."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._limits = hub.settings.limits
        self._sessions: dict[str, HttpSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, id: str, client: str) -> HttpSession | None:
        """The session with this id, if it is this client's."""
        found = self._sessions.get(id)
        if found is None or found.client != client:
            return None
        found.touch()
        return found

    def make(self, proof: Proof, peer: JsonObject) -> HttpSession:
        """A session that is still in no table: `add` it once its handshake has succeeded."""
        return HttpSession(self._hub, proof, peer, self._touched)

    def add(self, session: HttpSession) -> None:
        """Take in a session, in the place of one that nobody uses if there are too many.

        Raises:
            NoRoomError: all of them are used.
            AuditError: that it has begun could not be written down.
        """
        if len(self._sessions) >= self._limits.sessions:
            unused = [one for one in self._sessions.values() if not one.is_used]
            if not unused:
                raise NoRoomError
            own = (one for one in unused if one.client == session.client)
            self.end(next(own, unused[0]))
        self._hub.opened(session.session.caller)
        self._sessions[session.id] = session

    def end(self, session: HttpSession) -> None:
        """End a session; its id is unknown from now on."""
        if self._sessions.pop(session.id, None) is not None:
            session.end()
            self._hub.closed(session.session.caller)

    def end_unproven(self) -> None:
        """End the sessions of those whose token is another one now, or gone."""
        for session in tuple(self._sessions.values()):
            if not self._hub.clients.holds(session.proof):
                self.end(session)

    async def expire(self) -> None:
        """End the sessions that nobody has used for too long, until this is cancelled."""
        idle = self._limits.idle
        while True:
            now, wait = anyio.current_time(), idle
            for session in tuple(self._sessions.values()):
                if session.is_used:
                    continue
                if session.used + idle > now:
                    wait = session.used + idle - now
                    break
                self.end(session)
            await anyio.sleep(wait)

    def close(self) -> None:
        """End all sessions."""
        for session in tuple(self._sessions.values()):
            self.end(session)

    def _touched(self, id: str) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self._sessions[id] = session
