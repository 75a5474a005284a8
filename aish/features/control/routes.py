"""The paths of the control API, below `/api/v1`.

Imported at the first connection. Every answer is read from the state of the run, which holds masked
values only; what can be done is what the handle of the run offers.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final, Literal, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from aish.core.errors import AishError, JournalLostError
from aish.core.events import ApprovalAnswer, ValueSet, plain, rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import backticked
from aish.core.text import for_line, safe_utf8
from aish.engine.environment import RunHandle
from aish.engine.run_values import SettableValue
from aish.features.approvals.questions import LONGEST_NOTE, ApprovalQuestion
from aish.features.control.asks import Asks, parse_question, parse_response
from aish.features.control.commands import obey
from aish.features.control.past_events import PastEvents
from aish.features.control.run_state import ControlledRun
from aish.net.listen.access import Peer
from aish.net.listen.http_error import HttpError, body_error
from aish.net.listen.routes import (
    EventStreamResponse,
    Route,
    connection_of,
    json_body,
    json_response,
)
from aish.policy.questions import OpenQuestion, PastQuestion, QuestionEnd
from aish.system.user import name_of_user

_PREFIX = "/api/v1"
_MOST_READERS = 48
_LEAST_DIGEST = 12
_DIGEST = re.compile(r"[0-9a-f]{12,64}\Z")
_STREAM = "text/event-stream"
_NUMBER = re.compile(r"[0-9]{1,15}\Z", re.ASCII)

PersonAnswer = Literal["approve", "deny", "always"]
Way = Literal["api", "command", "page"]
"""From where an answer comes, as its sender says; a word in the journal, and no credential."""

_DECIDED: Final[Mapping[ApprovalAnswer, str]] = {
    "approve": "approved",
    "always": "approved",
    "deny": "denied",
}


class Api:
    """The handlers of a run."""

    def __init__(self, run: ControlledRun, handle: RunHandle) -> None:
        self.run = run
        self.state = run.state
        self.handle = handle
        self.secrets = run.secrets
        self.past = PastEvents(run.state, run.journal)
        self.asks = Asks(handle, run.state, run.clock)
        self.changed: set[str] = set()
        """The paths of values that were changed over this API."""
        self._questions = handle.questions
        self._values = handle.values

    def routes(self) -> Sequence[Route]:
        """All paths of a run's API."""
        return [
            Route(f"{_PREFIX}/status", ("GET",), "read", self.status),
            Route(f"{_PREFIX}/session", ("GET",), "read", self.session),
            Route(f"{_PREFIX}/performance", ("GET",), "read", self.performance),
            Route(f"{_PREFIX}/events", ("GET",), "read", self.events),
            Route(f"{_PREFIX}/approvals", ("GET",), "read", self.approvals),
            Route(f"{_PREFIX}/approvals/{{id}}", ("GET",), "read", self.approval),
            Route(f"{_PREFIX}/approvals/{{id}}", ("POST",), "answer", self.answer),
            Route(f"{_PREFIX}/values", ("GET",), "read", self.values),
            Route(f"{_PREFIX}/values/{{path}}", ("GET",), "read", self.value),
            Route(f"{_PREFIX}/values/{{path}}", ("PUT",), "write", self.put_value),
            Route(f"{_PREFIX}/commands", ("POST",), "write", self.command),
            Route(f"{_PREFIX}/sources/forget", ("POST",), "answer", self.forget_sources),
            Route(f"{_PREFIX}/ask", ("POST",), "write", self.ask),
            Route(f"{_PREFIX}/ask/respond", ("POST",), "answer", self.respond),
        ]

    async def status(self, _request: Request, _peer: Peer) -> Response:
        """`GET /status`: the whole run in short."""
        return json_response(self.state.status())

    async def session(self, _request: Request, _peer: Peer) -> Response:
        """`GET /session`: the conversation."""
        return json_response(self.state.conversation.plain())

    async def performance(self, _request: Request, _peer: Peer) -> Response:
        """`GET /performance`: figures of the run and its process."""
        return json_response(await self.figures())

    async def figures(self) -> JsonObject:
        return await self.state.statistics.figures(self.state.seconds)

    async def events(self, request: Request, _peer: Peer) -> Response:
        """`GET /events`: events after a number, as JSON or as an open stream."""
        is_stream = _STREAM in request.headers.get("accept", "")
        since = request.query_params.get("after")
        if is_stream:
            since = request.headers.get("last-event-id") or since
        if since is not None and not _NUMBER.match(since):
            message = "`after` is the number of an event"
            raise HttpError(422, "invalid_value", message)
        after = None if since is None else int(since)
        if is_stream:
            if self.past.streams >= _MOST_READERS:
                # Or else they would take all connections, and nobody could answer.
                message = f"{_MOST_READERS} readers follow the events already"
                raise HttpError(503, "busy", message, headers={"retry-after": "5"})
            stream = await self.past.stream(after)
            return EventStreamResponse(stream, stream.stop)
        page = await self.past.page(after)
        return json_response({"events": page.events, "next": page.next})

    async def approvals(self, _request: Request, _peer: Peer) -> Response:
        """`GET /approvals`: open questions and those that have ended."""
        return json_response(self.state.questions())

    async def approval(self, request: Request, _peer: Peer) -> Response:
        """`GET /approvals/ID`: one question, with all of its arguments."""
        return json_response(self._question(request.path_params["id"]))

    async def answer(self, request: Request, peer: Peer) -> Response:
        """`POST /approvals/ID`: answer a question; of several answers the first one counts."""
        id = request.path_params["id"]
        answer = parse_answer(await json_body(request))
        # Found after all that waits: from here on nobody else answers.
        asked = self._questions.get(id) or self._questions.past(id)
        if asked is None and self.asks.is_open(id) and (of_program := self.state.question(id)):
            _require_digest(of_program, answer)
            if answer.answer == "always":
                raise _no_always()
            note = safe_utf8(answer.note)
            self.asks.answer(id, answer.answer, name_of(peer), answer.way, note)
            return json_response(self._question(id))
        if asked is None:
            raise self._not_asked(id)
        self._require_open(asked, asked.end)
        _require_digest(asked, answer)
        always = asked.question.always if isinstance(asked, OpenQuestion) else None
        if answer.answer == "always" and always is None:
            raise _no_always()
        end = QuestionEnd(answer.answer, name_of(peer), answer.way, safe_utf8(answer.note))
        try:
            self._require_open(asked, self._questions.settle(id, end))
        except JournalLostError as error:
            message = f"the answer does not count: {error.message}"
            hint = "end the run and make room: its questions stay open, and `--resume` continues it"
            raise HttpError(507, "not_written", message, hint=hint) from error
        return json_response(self._question(id))

    async def values(self, _request: Request, _peer: Peer) -> Response:
        """`GET /values`: what may be changed, with its values now."""
        rows = {path: {"value": one.get(), "type": one.type} for path, one in self._values.items()}
        return json_response({"values": rows})

    async def value(self, request: Request, _peer: Peer) -> Response:
        """`GET /values/PATH`: one of them."""
        return json_response(self._value_to_json(request.path_params["path"]))

    async def put_value(self, request: Request, peer: Peer) -> Response:
        """`PUT /values/PATH`: change one, if it is what the sender takes it for."""
        path = request.path_params["path"]
        value = self._find_value(path)
        body = await json_body(request)
        if not isinstance(body, Mapping) or set(body) != {"value", "was"}:
            raise body_error("the body is not an object with `value` and `was`")
        # Nothing waits from here on: `was` is compared with what is changed.
        was = value.get()
        if not is_same(was, body["was"]):
            message = f"the value is {json_text(was)} now"
            raise HttpError(409, "changed", self.secrets.mask(message))
        self.set_values({path: body["value"]}, name_of(peer))
        return json_response(self._value_to_json(path))

    def set_values(self, wanted: Mapping[str, JsonValue], by: str) -> None:
        """Change these values: all of them, or none.

        Raises:
            HttpError: one of them cannot be that, or there is no such value.
        """
        self.require_live()
        values = {path: self._find_value(path) for path in wanted}
        was = {path: value.get() for path, value in values.items()}
        path = ""
        try:
            for path, value in wanted.items():
                values[path].check(value)
            for path, value in wanted.items():
                values[path].set(value)
        except ValueError as error:
            for other in takewhile(lambda other_path: other_path != path, wanted):
                values[other].set(was[other])
            message = f"`{path}` cannot be set: {error}"
            raise HttpError(422, "invalid_value", self.secrets.mask(message)) from error
        self.changed.update(values)
        for changed, now in values.items():
            self.handle.emit(ValueSet(changed, now.get(), was[changed], by))

    def _find_value(self, path: str) -> SettableValue:
        value = self._values.get(path)
        if value is None:
            hint = f"values: {backticked(self._values)}"
            raise HttpError(404, "unknown_value", "there is no such value", hint=hint)
        return value

    def _value_to_json(self, path: str) -> JsonValue:
        value = self._find_value(path)
        return {"path": path, "value": value.get(), "type": value.type}

    async def command(self, request: Request, peer: Peer) -> Response:
        """`POST /commands`: one of the table of commands."""
        done = await self.obey(await json_body(request), name_of(peer))
        return json_response(self.secrets.mask_json(done))

    async def obey(self, body: JsonValue, by: str) -> JsonObject:
        """Do what a body of `POST /commands` asks for, and return the answer.

        Raises:
            HttpError: it is no command, it does not fit, or it cannot be done.
        """
        self.require_live()
        return await obey(body, self.handle, by)

    async def forget_sources(self, request: Request, peer: Peer) -> Response:
        """`POST /sources/forget`: what a client of a server has read counts no more.

        It lifts what holds calls, as an answer does, so it is no command.
        """
        self.require_live()
        body = await json_body(request)
        client = body.get("client") if isinstance(body, Mapping) and len(body) == 1 else None
        if not isinstance(client, str):
            raise body_error("the body is not an object with the name of a `client`")
        forget = self.handle.forget_sources
        if forget is None:
            raise HttpError(422, "wrong_subject", "only a server has clients")
        try:
            sources = forget(client, name_of(peer))
        except AishError as error:
            raise HttpError(422, "refused", error.message, hint=error.hint) from error
        return json_response({"client": client, "sources": list(sources)})

    async def ask(self, request: Request, peer: Peer) -> Response:
        """`POST /ask`: ask a question, and wait for the response."""
        asked = parse_question(await json_body(request))
        by, connection = name_of(peer), connection_of(request.scope)
        id, response = await self.asks.ask(asked, by, connection)
        return json_response({"request_id": id, "response": self.secrets.mask_json(response)})

    async def respond(self, request: Request, peer: Peer) -> Response:
        """`POST /ask/respond`: respond to a question."""
        id, response = parse_response(await json_body(request))
        self.asks.respond(id, response, name_of(peer))
        return json_response({"request_id": id})

    def require_live(self) -> None:
        """Check that the run can still be changed.

        Raises:
            HttpError: it has ended.
        """
        if self.state.is_finished:
            raise HttpError(409, "finished", "the run has ended")

    def _question(self, id: str) -> JsonValue:
        question = self.state.question(id)
        if question is None:
            raise _unknown()
        return plain(question)

    def _not_asked(self, id: str) -> HttpError:
        """Why a question that nobody waits for takes no answer; the run may have seen it end."""
        question = self.state.question(id)
        if question is None:
            return _unknown()
        answer = question.answer
        if answer is not None and question.state in {"approved", "denied"}:
            return self._question_decided_error(question.state, answer.by, answer.way, answer.note)
        if question.state == "expired":
            return HttpError(410, "expired", "the question has expired: nobody answered")
        return _question_gone_error()

    def _question_decided_error(self, done: str, by: str, way: str, note: str) -> HttpError:
        note_text = f": {for_line(note)}" if note else ""
        message = f"the question is already {done}, by {for_line(by)} ({for_line(way)}){note_text}"
        return HttpError(409, "decided", self.secrets.mask(message))

    def _require_open(self, asked: OpenQuestion | PastQuestion, end: QuestionEnd | None) -> None:
        left = self._questions.seconds_left(asked)
        if end is None and (left is None or left > 0):
            return
        if end is not None and end.answer in _DECIDED:
            raise self._question_decided_error(_DECIDED[end.answer], end.by, end.way, end.note)
        if end is not None and end.answer == "withdrawn":
            raise _question_gone_error()
        until = "" if asked.expires is None else f" it was open until {rfc3339(asked.expires)}, and"
        raise HttpError(410, "expired", f"the question has expired:{until} nobody answered")


@frozen
class PersonsAnswer:
    """The body of an answer; `digest` begins that of the call which was shown, empty for any."""

    answer: PersonAnswer
    digest: str
    note: str
    way: Way


def parse_answer(body: JsonValue) -> PersonsAnswer:
    """The answer in a body.

    Raises:
        HttpError: it is not one.
    """
    if not isinstance(body, Mapping):
        raise body_error("the body is not an object")
    if unknown := [key for key in body if key not in {"answer", "digest", "note", "way"}]:
        raise body_error(f"the body has unknown keys: {backticked(unknown[:5])}")
    answer, digest = body.get("answer"), body.get("digest")
    note, way = body.get("note"), body.get("way", "api")
    if answer not in get_args(PersonAnswer):
        raise body_error(f"`answer` is one of {backticked(get_args(PersonAnswer))}")
    if way not in get_args(Way):
        raise body_error(f"`way` is one of {backticked(get_args(Way))}")
    if note is not None and not isinstance(note, str):
        raise body_error("`note` is not a text")
    if note is not None and len(note) > LONGEST_NOTE:
        raise body_error(f"`note` has more than {LONGEST_NOTE:,} characters")
    if digest is None and answer != "deny":
        raise body_error("`digest` is missing: an approval is for the call of one digest")
    if digest is not None and not (isinstance(digest, str) and _DIGEST.match(digest.lower())):
        raise body_error(f"`digest` is not {_LEAST_DIGEST} to 64 hex digits")
    begins = "" if digest is None else digest.lower()
    return PersonsAnswer(cast("PersonAnswer", answer), begins, note or "", cast("Way", way))


def name_of(peer: Peer) -> str:
    """The sender of a request: the name of its token, or of the user of the socket."""
    return peer.name if peer.uid is None else name_of_user(peer.uid)


def is_same(value: JsonValue, other: JsonValue) -> bool:
    """Compare two plain values: 1 and 1.0 are equal, 1 and `true` are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _require_digest(
    asked: OpenQuestion | PastQuestion | ApprovalQuestion, answer: PersonsAnswer
) -> None:
    if not asked.digest.startswith(answer.digest):
        message = f"the call has another digest than `{answer.digest}`"
        hint = "read the call again before it is answered"
        raise HttpError(422, "other_digest", message, hint=hint)


def _no_always() -> HttpError:
    message = "`always` is not offered for this call: no rule would approve exactly it"
    return HttpError(422, "not_offered", message, hint="answer `approve`")


def _unknown() -> HttpError:
    return HttpError(404, "unknown_question", "this run has no question with this id")


def _question_gone_error() -> HttpError:
    message = "the question was withdrawn: its call was cancelled, or its run has finished"
    return HttpError(410, "withdrawn", message)
