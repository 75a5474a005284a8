"""What a client of the control API does, without I/O: the same for blocking and async clients.

An operation is a generator. It yields what is to be sent, read or waited for, and is sent the
result, or has the failure thrown into it; what it returns is the result of the call. Retries,
reconnections, deadlines and waits are decided here, once. `client` and `async_client` only carry
out what is yielded.
"""

import inspect
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, TypeVar, get_args
from urllib.parse import quote, urlencode

from aish.control.answers import (
    Answer,
    Approvals,
    EventPage,
    Reply,
    RunEnd,
    RunValue,
    Session,
    Status,
)
from aish.control.errors import (
    BY_STATUS,
    ApiError,
    ConnectionLostError,
    NotListeningError,
    RunEndedError,
    SilentError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from aish.core.errors import UsageError, did_you_mean
from aish.core.events import EVENT_TYPES, Exit
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.features.approvals.questions import ApprovalQuestion
from aish.journal.reader import value_of
from aish.wire.sse import Caps, SseReader

T = TypeVar("T")

SECONDS: Final = 30.0
"""How long the answer to a request may take."""
WAIT_SECONDS: Final = 60.0
"""How long a wait takes at most, unless it is told otherwise."""
PREFIX: Final = "/api/v1"
_OK: Final = 200
# What a proxy, or a server that is full, says before the request has reached anybody.
_UNAVAILABLE: Final = frozenset({502, 503})
_LONGEST_SAID: Final = 500
_LONGEST_EVENT: Final = 256 << 20
_CAPS: Final = Caps(_LONGEST_EVENT, _LONGEST_EVENT, 1 << 62)
# The server writes a comment each 15 seconds where nothing happens.
_PING_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 3 * _PING_SECONDS
_SLACK_SECONDS: Final = 0.25
_FINISHED: Final = "run.finished"


@frozen
class Request:
    """A request as data; `seconds` is how long nothing may be received."""

    method: str
    path: str
    body: JsonObject | None = None
    headers: Mapping[str, str] | None = None
    seconds: float = SECONDS

    @property
    def content(self) -> bytes | None:
        """The body as bytes."""
        return None if self.body is None else json_text(self.body).encode()


@frozen
class Send:
    """Send a request, and give its whole answer: a `Reply`."""

    request: Request


@frozen
class Open:
    """Send a request, and give its answer as an `Opened`, whose body is read later."""

    request: Request


@frozen
class Opened:
    """An answer whose body is still to be read."""

    status: int
    handle: Any  # the response of the one library or the other


@frozen
class Read:
    """Give the next bytes of a body; none at its end."""

    handle: Any


@frozen
class Close:
    """Close an answer that was opened."""

    handle: Any


@frozen
class Pause:
    """Let time pass."""

    seconds: float


Action = Send | Open | Read | Close | Pause
Program = Generator[Action, Any, T]
"""An operation; every action has a result of its own type."""


@frozen
class Retries:
    """How often a read, or a connection that was refused, is tried again, and after how long.

    `ended_run` gives the events after a number of a run that has ended and listens no more; `None`
    if it has not ended, or nobody knows.
    """

    most: int
    delay: float
    ended_run: "Callable[[int], EndedRun | None]"


@frozen
class EndedRun:
    """What the journal of a run that has ended says: events, and its `run.finished`."""

    events: Sequence[JsonObject]
    finished: JsonObject


class Deadline:
    """The end of a wait; one without seconds has none."""

    def __init__(self, seconds: float | None, what: str) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._seconds = seconds
        self._what = what

    @property
    def left(self) -> float:
        """How many seconds are left."""
        return float("inf") if self._end is None else self._end - time.monotonic()

    def require(self) -> None:
        """Check that it has not passed.

        Raises:
            WaitTimeoutError: it has.
        """
        if self.left <= 0:
            raise WaitTimeoutError(f"{self._what} within {self._seconds:g} s")

    def bounded(self, seconds: float) -> float:
        """So many seconds, or as many as are left."""
        return max(0.001, min(seconds, self.left))


def describe(method: Callable[..., object], operation: Callable[..., Program[Any]]) -> None:
    """Let a method of a client tell `help` what it does, takes and returns."""
    own = inspect.signature(operation)
    parameters = list(own.parameters.values())
    parameters[0] = parameters[0].replace(name="self", annotation=inspect.Parameter.empty)
    (*_, result) = get_args(own.return_annotation)
    method.__name__, method.__doc__ = operation.__name__, operation.__doc__
    signature = own.replace(parameters=parameters, return_annotation=result)
    setattr(method, "__signature__", signature)  # ruff: ignore[set-attr-with-constant] - no type checker knows it


def status(retries: Retries, /) -> Program[Status]:
    """State, steps, figures, and the ids of open questions."""
    return _as(Status, (yield from found(retries, f"{PREFIX}/status")))


def events(retries: Retries, /, after: int | None = None) -> Program[EventPage]:
    """At most 1,000 events after a number; without one, from the oldest that are kept.

    Raises:
        GoneError: events after this number are not kept.
    """
    return _as(EventPage, (yield from found(retries, _events_path(after))))


def approvals(retries: Retries, /) -> Program[Approvals]:
    """The open questions, and the latest that have ended."""
    return _as(Approvals, (yield from found(retries, f"{PREFIX}/approvals")))


def approval(retries: Retries, /, id: str) -> Program[ApprovalQuestion]:
    """One question, with all arguments of its call.

    Raises:
        NotFoundError: this run has no question with this id.
    """
    return _as(ApprovalQuestion, (yield from found(retries, _approval_path(id))))


def answer(
    retries: Retries, /, question: ApprovalQuestion, answer: Answer, note: str = ""
) -> Program[ApprovalQuestion]:
    """Answer a question as it was read: an answer is for the call of its digest.

    Raises:
        ConflictError: somebody has answered before.
        GoneError: it has expired, or was withdrawn.
        RejectedError: the call is not the one that was read, or `always` is not offered.
    """
    body: JsonObject = {"answer": answer, "digest": question.digest, "note": note}
    path = _approval_path(question.id)
    return _as(ApprovalQuestion, (yield from changed(retries, "POST", path, body)))


def approve(
    retries: Retries, /, question: ApprovalQuestion, note: str = ""
) -> Program[ApprovalQuestion]:
    """Let the call of a question be made, once; fails as `answer` does."""
    return answer(retries, question, "approve", note)


def deny(
    retries: Retries, /, question: ApprovalQuestion, note: str = ""
) -> Program[ApprovalQuestion]:
    """Let the call of a question not be made; the model is told `note`. Fails as `answer` does."""
    return answer(retries, question, "deny", note)


def session(retries: Retries, /) -> Program[Session]:
    """The conversations with models, in the order of time."""
    return _as(Session, (yield from found(retries, f"{PREFIX}/session")))


def performance(retries: Retries, /) -> Program[JsonObject]:
    """Figures of the run and its process: how long tools and models take, memory, time."""
    return (yield from found(retries, f"{PREFIX}/performance"))


def values(retries: Retries, /) -> Program[Mapping[str, RunValue]]:
    """What can be changed in the live run, by its path."""
    body = yield from found(retries, f"{PREFIX}/values")
    listed = body.get("values")
    if not isinstance(listed, Mapping):
        raise unexpected("`values` is missing")
    return {path: _run_value(path, one) for path, one in listed.items()}


def value(retries: Retries, path: str, /) -> Program[RunValue]:
    """One of them, such as `limits.turns`.

    Raises:
        NotFoundError: there is no such value.
    """
    return _run_value(path, (yield from found(retries, _value_path(path))))


def change_value(
    retries: Retries, path: str, value: JsonValue, /, *, was: JsonValue
) -> Program[RunValue]:
    """Change a value, if it is still what it `was`.

    Raises:
        ConflictError: it is another one now.
        NotFoundError: there is no such value.
        RejectedError: it cannot have this value.
    """
    body: JsonObject = {"value": value, "was": was}
    return _run_value(path, (yield from changed(retries, "PUT", _value_path(path), body)))


def command(retries: Retries, command: str, /, **fields: JsonValue) -> Program[JsonObject]:
    """Give a command with the fields that belong to it: `command("event", name="deployed")`.

    Raises:
        RejectedError: there is no such command here, or it has other fields.
    """
    body: JsonObject = {"command": command, **fields}
    return (yield from changed(retries, "POST", f"{PREFIX}/commands", body))


def stop(retries: Retries, /) -> Program[JsonObject]:
    """End the run as Ctrl-C does, with exit code 130."""
    return command(retries, "stop")


def cancel(retries: Retries, /) -> Program[JsonObject]:
    """End the run as SIGTERM does, with exit code 143."""
    return command(retries, "cancel")


def ask(
    retries: Retries,
    title: str,
    /,
    text: str = "",
    data: JsonValue = None,
    *,
    timeout: float = WAIT_SECONDS,
) -> Program[JsonValue]:
    """Ask a question of one's own, which another program responds to; returns the response.

    It is the event `ask_received`, whose `request_id` is what `respond` takes.

    Raises:
        UnansweredError: nobody responded in that time.
        ConflictError: the run ended before.
    """
    body: JsonObject = {"title": title, "text": text, "data": data, "timeout": timeout}
    seconds = timeout + SECONDS
    answered = yield from changed(retries, "POST", f"{PREFIX}/ask", body, seconds)
    return answered.get("response")


def respond(retries: Retries, request_id: str, response: JsonValue, /) -> Program[None]:
    """Respond to a question of another program.

    Raises:
        ConflictError: somebody has responded before.
        GoneError: it has expired.
        NotFoundError: there is no such question.
    """
    body: JsonObject = {"request_id": request_id, "response": response}
    yield from changed(retries, "POST", f"{PREFIX}/ask/respond", body)


def wait_for_server(retries: Retries, /, timeout: float | None = WAIT_SECONDS) -> Program[Status]:
    """Wait until somebody listens at the address; returns the status of the run.

    Raises:
        WaitTimeoutError: nobody did in that time.
    """
    deadline = Deadline(timeout, "nobody listened")
    while True:
        try:
            request = Request("GET", f"{PREFIX}/status", seconds=deadline.bounded(SECONDS))
            reply: Reply = yield Send(request)
        except (NotListeningError, ConnectionLostError):
            deadline.require()
        else:
            if reply.status not in _UNAVAILABLE:
                return _as(Status, _object(reply))
            deadline.require()
        yield Pause(deadline.bounded(retries.delay))


def wait_for_event(
    retries: Retries,
    /,
    kind: str,
    matching: Callable[[JsonObject], bool] | None = None,
    *,
    after: int | None = None,
    timeout: float | None = WAIT_SECONDS,
) -> Program[JsonObject]:
    """Wait for an event of a type for which `matching` is true, and return it.

    Also one that has happened already counts, so nothing is missed between two calls. To wait for
    one that follows, give the number of an event as `after`: `after=event["seq"]`.

    Raises:
        UsageError: there is no such type.
        WaitTimeoutError: it did not happen in that time.
        RunEndedError: the run ended without it.
        GoneError: events after the number `after` are not kept.
    """
    if kind not in EVENT_TYPES.values():
        hint = did_you_mean(kind, EVENT_TYPES.values())
        raise UsageError(f"no event has the type `{for_line(kind)}`", hint=hint)
    deadline = Deadline(timeout, f"no event `{kind}`")
    stream = EventReader(retries, after)
    try:
        while (event := (yield from stream.next(deadline))) is not None:
            if event["type"] == kind and (matching is None or matching(event)):
                return event
        raise _ended(stream)
    finally:
        yield from stream.close()


def wait_for_approval(
    retries: Retries,
    /,
    matching: Callable[[ApprovalQuestion], bool] | None = None,
    *,
    timeout: float | None = WAIT_SECONDS,
) -> Program[ApprovalQuestion]:
    """Wait for an open question for which `matching` is true, and return it.

    Raises:
        WaitTimeoutError: nothing was asked in that time.
        RunEndedError: the run ended without it.
    """
    deadline = Deadline(timeout, "no call waited for an answer")
    stream = EventReader(retries, None)
    try:
        yield from stream.open(deadline)
        if stream.finished is not None:
            raise _ended(stream)
        try:
            question = yield from _next_question(retries, stream, matching, deadline)
        except NotListeningError:
            # The state is gone with the run; what is left of the stream says how it ended.
            question = None
            yield from stream.skip(deadline)
        if question is None:
            raise _ended(stream)
        return question
    finally:
        yield from stream.close()


def wait_for_value(
    retries: Retries,
    path: str,
    wanted: JsonValue | Callable[[JsonValue], bool],
    /,
    *,
    timeout: float | None = WAIT_SECONDS,
) -> Program[JsonValue]:
    """Wait until a value is the one that is wanted, or one for which a function is true.

    Raises:
        NotFoundError: there is no such value.
        WaitTimeoutError: it was not in that time.
        RunEndedError: the run ended before.
    """
    deadline = Deadline(timeout, f"`{path}` did not become what was waited for")
    stream = EventReader(retries, None)
    try:
        try:
            return (yield from _next_value(retries, stream, path, wanted, deadline))
        except NotListeningError:
            # The state is gone with the run; what is left of the stream says how it ended.
            yield from stream.skip(deadline)
            raise _ended(stream) from None
    finally:
        yield from stream.close()


def wait_for_end(retries: Retries, /, *, timeout: float | None = WAIT_SECONDS) -> Program[RunEnd]:
    """Wait until the run ends or pauses, and return how.

    Raises:
        WaitTimeoutError: it did not in that time.
        NotListeningError: it listens no more, and its folder is not known (`of_run`).
    """
    deadline = Deadline(timeout, "the run did not end")
    stream = EventReader(retries, None)
    try:
        yield from stream.skip(deadline)
    finally:
        yield from stream.close()
    assert stream.finished is not None, "the stream ends with this event"
    return _run_end(stream.finished)


def _next_value(
    retries: Retries,
    stream: "EventReader",
    path: str,
    wanted: JsonValue | Callable[[JsonValue], bool],
    deadline: Deadline,
) -> Program[JsonValue]:
    """The first value that is wanted, from now on."""
    # What was set before does not count: it may be another one now.
    while (page := (yield from events(retries, stream.after))).events:
        deadline.require()
        stream.after = page.next
    yield from stream.open(deadline)
    now = yield from value(retries, path)
    if _is_wanted(now.value, wanted):
        return now.value
    while (event := (yield from stream.next(deadline))) is not None:
        is_set = event["type"] == "value.set" and event.get("path") == path
        if is_set and _is_wanted(event.get("value"), wanted):
            return event.get("value")
    raise _ended(stream)


def _next_question(
    retries: Retries,
    stream: "EventReader",
    matching: Callable[[ApprovalQuestion], bool] | None,
    deadline: Deadline,
) -> Program[ApprovalQuestion | None]:
    """The first open question, by the state and a stream that is open; `None` at its end."""
    # What is asked from here on is in the stream, what was asked before is in the state.
    state = yield from approvals(retries)
    for question in state.pending:
        if matching is None or matching(question):
            return question
    known = {question.id for question in (*state.pending, *state.decided)}
    while (event := (yield from stream.next(deadline))) is not None:
        id = event.get("id")
        if event["type"] != "approval.asked" or not isinstance(id, str) or id in known:
            continue
        known.add(id)
        question = yield from approval(retries, id)
        if question.is_open and (matching is None or matching(question)):
            return question
    return None


class EventReader:
    """The events of a run in order, over as many connections as that takes.

    After a lost connection it continues behind the last event that it gave, so nothing is lost and
    nothing comes twice. The stream ends with `run.finished`, which is then in `finished`.
    """

    def __init__(self, retries: Retries, after: int | None) -> None:
        self.after = after
        self.finished: JsonObject | None = None
        self._retries = retries
        self._handle: Any = None
        self._limit = 0.0
        self._failures = 0
        self._reader = SseReader(_CAPS)
        self._events: deque[JsonObject] = deque()

    def open(self, deadline: Deadline) -> Program[None]:
        """Connect, unless it is connected: from here on no event is missed.

        Raises:
            NotListeningError: nobody listens.
            ApiError: the server refused it; a `GoneError` if events are not kept.
            WaitTimeoutError: the deadline has passed.
        """
        while self._handle is None and self.finished is None:
            self._limit = deadline.bounded(_SILENCE_SECONDS)
            headers = {"Accept": "text/event-stream"}
            if self.after is not None:
                headers["Last-Event-ID"] = str(self.after)
            path = _events_path(self.after)
            try:
                opened: Opened = yield Open(Request("GET", path, None, headers, self._limit))
            except (NotListeningError, ConnectionLostError) as error:
                # A journal may be long: it is read at first, and before this is given up.
                is_asked = self._failures in {0, self._retries.most}
                ended = self._retries.ended_run(self.after or 0) if is_asked else None
                if ended is not None:
                    self._events.extend(ended.events)
                    self.finished = ended.finished
                    return
                deadline.require()
                yield from self._after_failure(error, deadline)
                continue
            if opened.status == _OK:
                self._handle, self._reader = opened.handle, SseReader(_CAPS)
                return
            reply = yield from _rest(opened)
            if opened.status not in _UNAVAILABLE:
                raise _api_error(reply)
            deadline.require()
            yield from self._after_failure(_api_error(reply), deadline)

    def next(self, deadline: Deadline) -> Program[JsonObject | None]:
        """The next event; `None` at the end of the run. Fails as `open` does."""
        while not self._events:
            if self.finished is not None:
                return None
            deadline.require()
            yield from self.open(deadline)
            if self._handle is None:
                continue
            # How long nothing may come is fixed where a connection is opened.
            if deadline.left < _PING_SECONDS and self._limit > deadline.left + _SLACK_SECONDS:
                yield from self.close()
                continue
            try:
                data: bytes = yield Read(self._handle)
            except ConnectionLostError as error:
                yield from self.close()
                deadline.require()
                if not isinstance(error, SilentError):
                    yield from self._after_failure(error, deadline)
                continue
            if data:
                self._failures = 0
                self._take(data)
            else:
                yield from self.close()
                said = "the stream of events ended before the run"
                yield from self._after_failure(ConnectionLostError(said), deadline)
        event = self._events.popleft()
        if event["type"] == _FINISHED:
            self.finished = event
        return event

    def skip(self, deadline: Deadline) -> Program[None]:
        """Read to the end of the run. Fails as `open` does."""
        while (yield from self.next(deadline)) is not None:
            pass

    def close(self) -> Program[None]:
        """Close the connection; `next` opens another one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            yield Close(handle)

    def _take(self, data: bytes) -> None:
        for one in self._reader.feed(data):
            event = _json(one.data.encode())
            if not isinstance(event, Mapping):
                raise unexpected("an event is not an object")
            number = event.get("seq")
            if not isinstance(number, int) or not isinstance(event.get("type"), str):
                raise unexpected("an event has no number or no type")
            self.after = number
            self._events.append(event)

    def _after_failure(self, error: Exception, deadline: Deadline) -> Program[None]:
        """Pause before another try, or raise the error if there were too many."""
        self._failures += 1
        if self._failures > self._retries.most:
            raise error
        yield Pause(deadline.bounded(self._retries.delay))


def found(retries: Retries, path: str) -> Program[JsonObject]:
    """What a path tells; tried again, also after a connection was lost."""
    tries = 0
    while True:
        try:
            reply: Reply = yield Send(Request("GET", path))
            if reply.status not in _UNAVAILABLE or tries >= retries.most:
                return _object(reply)
        except (NotListeningError, ConnectionLostError):
            if tries >= retries.most:
                raise
        tries += 1
        yield Pause(retries.delay)


def changed(
    retries: Retries, method: str, path: str, body: JsonObject, seconds: float = SECONDS
) -> Program[JsonObject]:
    """What a change leads to; only a refused connection is tried again."""
    tries = 0
    while True:
        try:
            reply: Reply = yield Send(Request(method, path, body, None, seconds))
        except NotListeningError:
            if tries >= retries.most:
                raise
        else:
            return _object(reply)
        tries += 1
        yield Pause(retries.delay)


def _object(reply: Reply) -> JsonObject:
    if reply.status != _OK:
        raise _api_error(reply)
    value = _json(reply.body)
    if not isinstance(value, Mapping):
        raise unexpected("it is not an object")
    return value


def _as(kind: type[T], value: JsonValue) -> T:
    try:
        return value_of(kind, value)
    except ValueError as error:
        raise unexpected(str(error)) from error


def _run_value(path: str, value: JsonValue) -> RunValue:
    return _as(RunValue, {**(value if isinstance(value, Mapping) else {}), "path": path})


def _is_wanted(value: JsonValue, wanted: JsonValue | Callable[[JsonValue], bool]) -> bool:
    if callable(wanted):
        return wanted(value)
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _json(body: bytes) -> JsonValue:
    try:
        return strict_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise unexpected("it is not valid JSON") from error


def unexpected(why: str) -> UnexpectedAnswerError:
    """The error about an answer that is not one of this API."""
    said = f"the answer is not one of the control API: {shorten(for_line(why), _LONGEST_SAID)}"
    return UnexpectedAnswerError(said, hint="check the address")


def _api_error(reply: Reply) -> ApiError:
    """The error in an answer; a proxy's has no document of ours."""
    kind = BY_STATUS.get(reply.status, ApiError)
    try:
        document = strict_json(reply.body.decode())
    except (ValueError, RecursionError):
        document = None
    error = document.get("error") if isinstance(document, Mapping) else None
    if not isinstance(error, Mapping):
        return kind(reply.status, "http", f"the server answered with status {reply.status}")
    code, message, hint = (error.get(key) for key in ("code", "message", "hint"))
    said = shorten(for_line(str(message)), _LONGEST_SAID)
    shown = shorten(for_line(hint), _LONGEST_SAID) if isinstance(hint, str) else None
    return kind(reply.status, for_line(str(code)), said, shown)


def _rest(opened: Opened) -> Program[Reply]:
    """An answer that was opened, whole."""
    body = bytearray()
    try:
        while data := (yield Read(opened.handle)):
            body += data
    finally:
        yield Close(opened.handle)
    return Reply(opened.status, bytes(body))


def _run_end(event: JsonObject) -> RunEnd:
    return RunEnd(str(event.get("status")), _as(Exit, event.get("exit")), event)


def _ended(stream: EventReader) -> RunEndedError:
    assert stream.finished is not None, "the stream ends with this event"
    end = _run_end(stream.finished)
    said = f"the run has ended: exit {end.exit.code} ({end.exit.name})"
    return RunEndedError(said, stream.finished)


def _events_path(after: int | None) -> str:
    query = "" if after is None else f"?{urlencode({'after': after})}"
    return f"{PREFIX}/events{query}"


def _value_path(path: str) -> str:
    return f"{PREFIX}/values/{quote(path, safe='')}"


def _approval_path(id: str) -> str:
    return f"{PREFIX}/approvals/{quote(id, safe='')}"
