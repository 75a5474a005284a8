"""Questions of other programs, which one of them asks and another one responds to (A3).

They are not about tool calls, and decide nothing of the run: it goes on meanwhile.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from secrets import token_hex
from typing import Final

import anyio

from aish.core.events import AskEnd, AskEnded, AskReceived, rfc3339
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.core.protocols import Clock, Emit
from aish.features.control.run_state import RunState
from aish.net.listen.http_error import HttpError
from aish.net.listen.routes import ConnectionState
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
    """The body of a question."""

    title: str
    text: str
    data: JsonValue
    seconds: float


@slotted
class _Ask:
    """A question: open until it has an `end`."""

    over: anyio.Event
    end: AskEnd | None = None
    response: JsonValue = None
    by: str = ""


class Asks:
    """The questions of other programs in one run: those that are open, and the latest of others."""

    def __init__(self, emit: Emit, state: RunState, clock: Clock) -> None:
        self._emit = emit
        self._state = state
        self._clock = clock
        self._asks: OrderedDict[str, _Ask] = OrderedDict()

    async def ask(
        self, asked: AskedQuestion, by: str, connection: ConnectionState
    ) -> tuple[str, JsonValue]:
        """Ask, and wait for the response; returns the id of the question, and the response.

        Raises:
            HttpError: nobody responded in time, or the run has ended.
        """
        if self._state.is_finished:
            raise HttpError(409, "finished", "the run has ended")
        if sum(ask.end is None for ask in self._asks.values()) >= _MOST_OPEN:
            message = f"{_MOST_OPEN} questions wait for a response already"
            raise HttpError(503, "busy", message, headers={"retry-after": "5"})
        id, ask = token_hex(_ID_BYTES), _Ask(anyio.Event())
        self._asks[id] = ask
        self._forget_old()
        expires = rfc3339(self._clock.now() + asked.seconds)
        try:
            self._emit(AskReceived(id, asked.title, asked.text, asked.data, by, expires))
            with anyio.move_on_after(asked.seconds) as scope:
                await _first_of(ask.over, connection.gone, connection.closing)
            self._settle(id, ask, "expired" if scope.cancelled_caught else "withdrawn")
        finally:
            # Whatever ended the wait: nobody is told of a response any more.
            self._settle(id, ask, "withdrawn")
        if ask.end == "answered":
            return id, ask.response
        if ask.end == "expired":
            raise HttpError(504, "unanswered", f"nobody responded within {asked.seconds:g} s")
        raise HttpError(409, "finished", "the run has ended, and nobody responded")

    def respond(self, id: str, response: JsonValue, by: str) -> None:
        """Respond to a question; of several responses the first one counts.

        Raises:
            HttpError: there is no such question, or it is not open any more.
        """
        ask = self._asks.get(id)
        if ask is None:
            raise HttpError(404, "unknown_question", "this run has no question with this id")
        match ask.end:
            case "answered":
                raise HttpError(409, "decided", "somebody has responded before")
            case "expired":
                raise HttpError(410, "expired", "nobody responded in time")
            case "withdrawn":
                raise HttpError(410, "withdrawn", "nobody waits for a response any more")
            case None:
                ask.response, ask.by = response, by
                self._settle(id, ask, "answered")
                ask.over.set()

    def _settle(self, id: str, ask: _Ask, end: AskEnd) -> None:
        if ask.end is not None:
            return
        ask.end = end
        if not self._state.is_finished:
            self._emit(AskEnded(id, end, ask.response, ask.by))

    def _forget_old(self) -> None:
        if len(self._asks) <= _MOST_PAST:
            return
        old = next((id for id, ask in self._asks.items() if ask.end is not None), None)
        if old is not None:
            del self._asks[old]


def asked_question(body: JsonValue) -> AskedQuestion:
    """The question in a body.

    Raises:
        HttpError: it is not one.
    """
    if not isinstance(body, Mapping):
        raise _invalid("the body is not an object")
    if unknown := [key for key in body if key not in _KEYS]:
        raise _invalid(f"a question has {backticked(_KEYS)}, and not {backticked(unknown[:5])}")
    title, text = body.get("title", ""), body.get("text", "")
    if not isinstance(title, str) or len(title) > LONGEST_TITLE:
        raise _invalid(f"`title` is not a text of at most {LONGEST_TITLE} characters")
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise _invalid(f"`text` is not a text of at most {LONGEST_TEXT:,} characters")
    if not (title or text):
        raise _invalid("a question needs a `title` or a `text`")
    seconds = body.get("timeout", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid("`timeout` is not a number of seconds")
    if not 0 < seconds <= _MOST_SECONDS or math.isnan(seconds):
        raise _invalid(f"`timeout` is not above 0 and at most {_MOST_SECONDS:,} seconds")
    return AskedQuestion(title, text, body.get("data"), float(seconds))


def given_response(body: JsonValue) -> tuple[str, JsonValue]:
    """The id of a question and the response to it, in a body.

    Raises:
        HttpError: it has not just these.
    """
    if not isinstance(body, Mapping) or set(body) != {"request_id", "response"}:
        raise _invalid("the body is not an object with `request_id` and `response`")
    id = body["request_id"]
    if not isinstance(id, str):
        raise _invalid("`request_id` is not a text")
    return id, body["response"]


async def _first_of(*events: anyio.Event) -> None:
    async with task_group() as tasks:

        async def until(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(until, event)


def _invalid(message: str) -> HttpError:
    return HttpError(422, "invalid_body", message)
