"""Questions of other programs, to which a person or another one of them responds.

They are not about tool calls, and do not affect the run, which continues meanwhile. A person
answers them like other questions; the response is then `{"approved": …}`, with the person's `note`
if there is one.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Final, Literal

import anyio

from aish.core.events import AskEnd, AskEnded, AskReceived, rfc3339
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.core.protocols import Approver, Clock
from aish.engine.environment import RunHandle
from aish.features.approvals.questions import approval_question, as_asked
from aish.features.control.run_state import RunState
from aish.journal.questions import RecordedQuestion, answer_to_program, program_question_as_call
from aish.net.listen.http_error import HttpError, body_error
from aish.net.listen.routes import ConnectionState
from aish.policy.gate import THE_USER
from aish.policy.questions import QuestionEnd
from aish.system.task_group import task_group

SECONDS: Final = 60.0
"""How long a question is open, unless it says otherwise."""
_MOST_SECONDS: Final = 3600
LONGEST_TITLE = 200
LONGEST_TEXT = 20_000
# Each holds a connection, and there has to be room for whoever responds.
_MOST_OPEN = 8
_MOST_PAST = 1000
_ID_BYTES = 16
_KEYS = ("title", "text", "data", "timeout")


@frozen
class AskedQuestion:
    title: str
    text: str
    data: JsonValue
    seconds: float


@slotted
class _PendingAsk:
    over: anyio.Event
    ended: AskEnded | None = None

    @property
    def said(self) -> str | None:
        """The end in words, for a person who was asked too."""
        if self.ended is None:
            return None
        end = answer_to_program(self.ended)
        return QuestionEnd(end.answer, end.by, end.way, end.note).said


class Asks:
    """The questions of other programs in one run: those that are open, and the latest of others."""

    def __init__(self, handle: RunHandle, state: RunState, clock: Clock) -> None:
        self._emit = handle.emit
        self._approver = handle.approver
        self._state = state
        self._clock = clock
        self._asks: OrderedDict[str, _PendingAsk] = OrderedDict()

    async def ask(
        self, asked: AskedQuestion, by: str, connection: ConnectionState
    ) -> tuple[str, JsonValue]:
        """Ask, and wait for the response; returns the id of the question, and the response.

        Raises:
            HttpError: nobody responded in time, or the run has ended.
        """
        if self._state.is_finished:
            raise HttpError(409, "finished", "the run has ended")
        if sum(ask.ended is None for ask in self._asks.values()) >= _MOST_OPEN:
            message = f"{_MOST_OPEN} questions wait for a response already"
            raise HttpError(503, "busy", message, headers={"retry-after": "5"})
        id, ask = token_hex(_ID_BYTES), _PendingAsk(anyio.Event())
        self._asks[id] = ask
        if len(self._asks) > _MOST_PAST:
            old = next((id for id, ask in self._asks.items() if ask.ended is not None), None)
            if old is not None:
                del self._asks[old]
        expires = rfc3339(self._clock.now() + asked.seconds)
        received = AskReceived(id, asked.title, asked.text, asked.data, by, expires)
        try:
            self._emit(received)
            async with task_group() as tasks:
                if self._approver is not None and self._approver.attended:
                    tasks.start_soon(self._ask_at, self._approver, received, ask)
                with anyio.move_on_after(asked.seconds) as scope:
                    await _first_of(ask.over, connection.gone, connection.closing)
                self._settle(id, ask, "expired" if scope.cancelled_caught else "withdrawn")
                tasks.cancel_scope.cancel()
        finally:
            # Whatever ended the wait: nobody is told of a response any more.
            self._settle(id, ask, "withdrawn")
        assert ask.ended is not None, "it was just settled"
        if ask.ended.end == "answered":
            return id, ask.ended.response
        if ask.ended.end == "expired":
            raise HttpError(504, "unanswered", f"nobody responded within {asked.seconds:g} s")
        raise HttpError(409, "finished", "the run has ended, and nobody responded")

    async def _ask_at(self, terminal: Approver, received: AskReceived, ask: _PendingAsk) -> None:
        async def is_open() -> bool:  # ruff: ignore[unused-async] - the type of those that wait
            return ask.ended is None

        view = approval_question("", RecordedQuestion(0.0, program_question_as_call(received)))
        question = replace(as_asked(view), is_open=is_open, answered=lambda: ask.said)
        answer = await terminal.ask(question)
        if ask.ended is None:
            self.answer(received.request_id, "deny" if answer == "no" else "approve", THE_USER)

    def is_open(self, id: str) -> bool:
        ask = self._asks.get(id)
        return ask is not None and ask.ended is None

    def answer(
        self,
        id: str,
        answer: Literal["approve", "deny"],
        by: str,
        way: str = "terminal",
        note: str = "",
    ) -> None:
        """Answer an open question with yes or no, as a question about a call is answered."""
        fields: dict[str, JsonValue] = {"approved": answer == "approve"}
        self.respond(id, {**fields, "note": note} if note else fields, by, way)

    def respond(self, id: str, response: JsonValue, by: str, way: str = "api") -> None:
        """Respond to a question; of several responses the first one counts.

        Raises:
            HttpError: there is no such question, or it is not open any more.
        """
        ask = self._asks.get(id)
        if ask is None:
            raise HttpError(404, "unknown_question", "this run has no question with this id")
        match ask.ended and ask.ended.end:
            case "answered":
                raise HttpError(409, "decided", "somebody has responded before")
            case "expired":
                raise HttpError(410, "expired", "nobody responded in time")
            case "withdrawn":
                raise HttpError(410, "withdrawn", "nobody waits for a response any more")
            case None:
                self._settle(id, ask, "answered", response, by, way)
                ask.over.set()

    def _settle(
        self,
        id: str,
        ask: _PendingAsk,
        end: AskEnd,
        response: JsonValue = None,
        by: str = "",
        way: str = "api",
    ) -> None:
        if ask.ended is not None:
            return
        ask.ended = AskEnded(id, end, response, by, way)
        if not self._state.is_finished:
            self._emit(ask.ended)


def parse_question(body: JsonValue) -> AskedQuestion:
    """The question in a body.

    Raises:
        HttpError: it is not one.
    """
    if not isinstance(body, Mapping):
        raise body_error("the body is not an object")
    if unknown := [key for key in body if key not in _KEYS]:
        raise body_error(f"a question has {backticked(_KEYS)}, and not {backticked(unknown[:5])}")
    title, text = body.get("title", ""), body.get("text", "")
    if not isinstance(title, str) or len(title) > LONGEST_TITLE:
        raise body_error(f"`title` is not a text of at most {LONGEST_TITLE} characters")
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise body_error(f"`text` is not a text of at most {LONGEST_TEXT:,} characters")
    if not (title or text):
        raise body_error("a question needs a `title` or a `text`")
    seconds = body.get("timeout", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise body_error("`timeout` is not a number of seconds")
    if not 0 < seconds <= _MOST_SECONDS or math.isnan(seconds):
        raise body_error(f"`timeout` is not above 0 and at most {_MOST_SECONDS:,} seconds")
    return AskedQuestion(title, text, body.get("data"), float(seconds))


def parse_response(body: JsonValue) -> tuple[str, JsonValue]:
    """The id of a question and the response to it, in a body.

    Raises:
        HttpError: it has not just these.
    """
    if not isinstance(body, Mapping) or set(body) != {"request_id", "response"}:
        raise body_error("the body is not an object with `request_id` and `response`")
    id = body["request_id"]
    if not isinstance(id, str):
        raise body_error("`request_id` is not a text")
    return id, body["response"]


async def _first_of(*events: anyio.Event) -> None:
    async with task_group() as tasks:

        async def until(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(until, event)
