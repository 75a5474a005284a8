"""Sessions of clients over HTTP, by random ids, and their streams.

A session belongs to the client that began it. Messages of a stream are kept for a while, so that a
client whose connection broke can read the rest on another one. Knows no HTTP: a reader is a queue
of events.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import slotted
from aish.core.json import JsonObject
from aish.core.protocols import Clock
from aish.mcp.protocol.messages import json_object
from aish.net.listen.routes import EventQueue, ServerEvent
from aish.serve.clients import OF_ISSUER, AuthenticatedClient
from aish.serve.hub import Hub
from aish.serve.session import ClientSession
from aish.system.files import open_own, private_folder, write_private

KEPT_EVENTS = 256
_KEPT_TEXT = 1 << 20
_EVENT_ID = re.compile(r"(\d{1,9})-(\d{1,15})", re.ASCII)


class TooManySessionsError(Exception):
    """The session limit is reached, and no session is idle."""


@slotted
class _Kept:
    """An event that was sent on a stream, in the order of the session."""

    stream: int
    number: int
    event: ServerEvent


def _do_nothing() -> None:
    """Ignore that a stream is not read."""


class SessionStream:
    """A stream to a client: that of one request, or number 0 for messages of no request.

    It has at most one reader; without one, messages are kept.
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
        return self._queue is not None

    def put(self, message: str, key: str = "") -> None:
        """Queue a message; it replaces an unread one with the same key."""
        number, event = self._owner.keep(self._number, message, key)
        if self._queue is not None:
            self._told = number
            self._queue.put(event)

    def attach(self, queue: EventQueue, after: int | None = None) -> None:
        """Make this queue the reader instead of another one; it begins with the kept messages.

        These are the ones after the event `after`, or all that no reader got.
        """
        if self._queue is not None:
            self._queue.close()
        self._queue = queue
        self._owner.readers += 1
        start = self._told if after is None else after
        for event in self._owner.events_after(self._number, start):
            self._told = max(self._told, event.number)
            queue.put(event.event)

    def detach(self, queue: EventQueue) -> None:
        """Detach a reader that has disconnected."""
        self._owner.readers -= 1
        self._owner.touch()
        if self._queue is queue:
            self._queue = None
            self.on_unread()

    def end(self) -> None:
        """End the stream; the reader ends after the messages that it has not read."""
        if self._queue is not None:
            self._queue.close()


class HttpSession:
    """A session of the handshake era over HTTP."""

    def __init__(
        self,
        hub: Hub,
        proof: AuthenticatedClient,
        peer: JsonObject,
        touch: Callable[["HttpSession"], bool],
        id: str | None = None,
    ) -> None:
        self.id = id or secrets.token_hex(16)
        self.client = proof.client.name
        self.proof = proof
        self.used = anyio.current_time()
        """When its last request or stream ended, by the clock of the event loop."""
        self.readers = 0
        self.session = ClientSession(hub, proof, peer, self._tell)
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
        """True if a request of the session is being answered, or a stream is open."""
        return self.readers > 0 or not self.session.is_idle

    def touch(self) -> bool:
        """Note that the session was just used; return false if another process has ended it."""
        self.used = anyio.current_time()
        return self._touch(self)

    def follow(self, proof: AuthenticatedClient, peer: JsonObject) -> None:
        """Use another token of the client, possibly with other scopes, from now on."""
        self.proof = proof
        self.session.follow(proof, peer)

    def open_stream(self) -> SessionStream:
        self._numbers += 1
        stream = self._streams[self._numbers] = SessionStream(self, self._numbers)
        return stream

    def end_stream(self, stream: SessionStream) -> None:
        """End a stream whose request is answered; its messages stay readable for a while."""
        stream.on_unread = _do_nothing
        stream.end()
        self._streams = {number: one for number, one in self._streams.items() if one is not stream}

    def resume(self, last: str, queue: EventQueue) -> SessionStream:
        """Resume reading after the event with this id, or with the messages not sent yet.

        A stream that has ended yields its kept messages and ends.
        """
        match = _EVENT_ID.fullmatch(last)
        if match is None:
            self.stream.attach(queue)
            return self.stream
        number, after = int(match[1]), int(match[2])
        stream = self._streams.get(number)
        has_ended = stream is None
        if stream is None:
            stream = SessionStream(self, number)
        stream.attach(queue, after)
        if has_ended:
            queue.close()
        return stream

    def keep(self, stream: int, message: str, key: str) -> tuple[int, ServerEvent]:
        """Number an event and keep it while there is room, replacing one with the same key.

        Events with a key are dropped first, so that no notification displaces the result of another
        call.
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
            self._let_go(next((entry for entry in self._kept if isinstance(entry[1], str)), oldest))
        return self._events, event

    def _let_go(self, place: tuple[int, str | int]) -> None:
        if (old := self._kept.pop(place, None)) is not None:
            self._kept_text -= len(old.event.data)

    def events_after(self, stream: int, after: int) -> Sequence[_Kept]:
        """Return the kept events of a stream after an event."""
        events = self._kept.values()
        return [event for event in events if event.stream == stream and event.number > after]

    def end(self) -> None:
        """Cancel running requests and end the streams."""
        self.session.close()
        for stream in tuple(self._streams.values()):
            stream.end()

    def _tell(self, message: bytes) -> None:
        self.stream.put(message.decode("ascii"))


class SessionStore:
    """Files of the open sessions, which continue after a restart or in another process.

    The name of a file follows from the session's id; its time is when the session was last used.
    """

    def __init__(self, state: Path, clock: Clock, idle: float) -> None:
        self._folder = private_folder(state / "sessions")
        self._clock = clock
        self._idle = idle
        self._used: dict[str, int] = {}
        """When this process has used each session last."""

    def keep(self, session: HttpSession) -> None:
        """Write the file of a session that begins or continues here.

        Raises:
            OSError: it could not be written.
        """
        content = {**_owner(session.proof), **session.session.agreement}
        with suppress(FileExistsError):
            write_private(self._path(session.id), json.dumps(content).encode("ascii"))
        self.touch(session.id, is_new=True)

    def touch(self, id: str, *, is_new: bool = False) -> bool:
        """Note that a session is used; return false if another process has ended it."""
        if not is_new and id not in self._used:
            return True
        self._used[id] = now = int(self._clock.now() * 1e9)
        try:
            os.utime(f"{self._folder}/{_file_name(id)}", ns=(now, now))
        except FileNotFoundError:
            return False
        return True

    def find(self, id: str, proof: AuthenticatedClient) -> JsonObject | None:
        """Return the handshake of an open session of this client."""
        try:
            with os.fdopen(open_own(self._path(id)), "rb") as file:
                used = os.fstat(file.fileno()).st_mtime
                record = json_object(json.loads(file.read()))
        except (OSError, ValueError, UsageError):
            return None
        is_own = _owner(proof).items() <= record.items()
        return record if is_own and self._clock.now() - used < self._idle else None

    def drop(self, id: str) -> None:
        self._used.pop(id, None)
        self._path(id).unlink(missing_ok=True)

    def expire(self, id: str) -> None:
        """Delete a session, unless another process has used it since."""
        with suppress(FileNotFoundError):
            if self._path(id).stat().st_mtime_ns <= self._used.pop(id, 0):
                self.drop(id)

    def clean(self) -> None:
        """Delete sessions that were unused for too long."""
        now = self._clock.now()
        for path in tuple(self._folder.iterdir()):
            with suppress(FileNotFoundError):
                if now - path.lstat().st_mtime >= self._idle:
                    path.unlink()

    def _path(self, id: str) -> Path:
        return self._folder / _file_name(id)


def _file_name(id: str) -> str:
    return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()


def _owner(proof: AuthenticatedClient) -> JsonObject:
    client = proof.client
    if client.name.startswith(OF_ISSUER):  # each request says anew what its token is good for
        return {"client": client.name}
    return {"client": client.name, "key": proof.key, "tools": list(client.tools)}


class HttpSessions:
    """All sessions over HTTP, the longest unused first."""

    def __init__(self, hub: Hub, store: SessionStore) -> None:
        self._hub = hub
        self._store = store
        self._limits = hub.settings.limits
        self._sessions: dict[str, HttpSession] = {}

    def find(self, id: str, proof: AuthenticatedClient, peer: JsonObject) -> HttpSession | None:
        """Return the session with this id, if it belongs to this client."""
        session = self._sessions.get(id)
        if session is None or session.client != proof.client.name:
            return None
        if not session.touch():
            self.end(session)
            return None
        if session.proof != proof:
            session.follow(proof, peer)
        return session

    def restore_session(
        self, id: str, proof: AuthenticatedClient, peer: JsonObject
    ) -> HttpSession | None:
        """Return a session that another process began with this client; `add` it afterwards."""
        agreement = self._store.find(id, proof)
        if agreement is None:
            return None
        session = HttpSession(self._hub, proof, peer, self._note_use, id)
        if session.session.take_over(agreement):
            return session
        session.end()
        return None

    def make(self, proof: AuthenticatedClient, peer: JsonObject) -> HttpSession:
        """Make a session; `add` it once its handshake has succeeded."""
        return HttpSession(self._hub, proof, peer, self._note_use)

    def add(self, session: HttpSession) -> None:
        """Add a session, in place of an idle one if there are too many.

        Raises:
            TooManySessionsError: none is idle.
            AuditError: its beginning could not be recorded.
        """
        if len(self._sessions) >= self._limits.sessions:
            unused = [session for session in self._sessions.values() if not session.is_used]
            if not unused:
                raise TooManySessionsError
            own = (candidate for candidate in unused if candidate.client == session.client)
            self.end(next(own, unused[0]))
        self._hub.open_session(session.session.caller)
        self._sessions[session.id] = session
        try:
            self._store.keep(session)
        except OSError as error:
            text = f"a session ends with this process, as it cannot be kept: {error.strerror}"
            self._hub.tell("warning", "session_not_kept", text)

    def end(self, session: HttpSession) -> None:
        """End a session; its id becomes unknown."""
        self._store.drop(session.id)
        self._close(session)

    def _close(self, session: HttpSession) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            session.end()
            self._hub.close_session(session.session.caller)

    def end_unproven(self) -> None:
        """End the sessions whose token was changed or revoked."""
        for session in tuple(self._sessions.values()):
            if not self._hub.clients.holds(session.proof):
                self.end(session)

    async def expire(self) -> None:
        """End sessions that were idle for too long, until this is cancelled."""
        idle = self._limits.idle
        while True:
            self._store.clean()
            now, wait = anyio.current_time(), idle / 2
            for session in tuple(self._sessions.values()):
                if session.is_used:
                    self._store.touch(session.id)
                elif session.used + idle > now:
                    wait = min(wait, session.used + idle - now)
                    break
                else:
                    self._store.expire(session.id)
                    self._close(session)
            await anyio.sleep(wait)

    def close(self) -> None:
        """End all sessions here; their clients may continue them after a restart."""
        for session in tuple(self._sessions.values()):
            if session.is_used:
                self._store.touch(session.id)
            self._close(session)

    def _note_use(self, session: HttpSession) -> bool:
        if self._sessions.get(session.id) is not session:
            return True
        self._sessions[session.id] = self._sessions.pop(session.id)
        return self._store.touch(session.id)
