"""Operations of a client of the control API, one async method for each.

`http_exchange` and `event_stream` decide about retries, reconnections and deadlines. `Client` runs
the same methods over a blocking exchange.
"""

from collections.abc import Callable, Mapping
from urllib.parse import quote

from aish.control.answers import Answer, Approvals, EventPage, RunEnd, RunValue, Session, Status
from aish.control.errors import ConnectionLostError, NotListeningError
from aish.control.event_stream import AsyncEventStream, events_path, run_ended
from aish.control.http_exchange import (
    PREFIX,
    SECONDS,
    UNAVAILABLE,
    WAIT_SECONDS,
    Deadline,
    OutgoingRequest,
    answer_error,
    decode,
    json_object,
)
from aish.control.older_names import OlderNames
from aish.core.errors import UsageError, did_you_mean
from aish.core.events import EVENT_TYPES
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.features.approvals.questions import ApprovalQuestion


class Operations(OlderNames):
    """The operations of the control API, over an exchange."""

    async def status(self) -> Status:
        """Return state, steps, figures, and the ids of open questions."""
        return decode(Status, await self._exchange.get(f"{PREFIX}/status"))

    async def events(self, after: int | None = None) -> EventPage:
        """Return at most 1,000 events after a number, by default from the oldest kept one.

        Raises:
            GoneError: events after this number are not kept.
        """
        return decode(EventPage, await self._exchange.get(events_path(after)))

    async def approvals(self) -> Approvals:
        """Return the open questions, and the latest closed ones."""
        return decode(Approvals, await self._exchange.get(f"{PREFIX}/approvals"))

    async def approval(self, id: str) -> ApprovalQuestion:
        """Return a question with all arguments of its call.

        Raises:
            NotFoundError: this run has no question with this id.
        """
        return decode(ApprovalQuestion, await self._exchange.get(_approval_path(id)))

    async def answer(
        self, question: ApprovalQuestion, answer: Answer, note: str = ""
    ) -> ApprovalQuestion:
        """Answer a question as it was read: the answer is for the call with its digest.

        Raises:
            ConflictError: it is already answered.
            GoneError: it has expired, or was withdrawn.
            RejectedError: the call is not the one that was read, or `always` is not offered.
        """
        body: JsonObject = {"answer": answer, "digest": question.digest, "note": note}
        path = _approval_path(question.id)
        return decode(ApprovalQuestion, await self._exchange.call("POST", path, body))

    async def approve(self, question: ApprovalQuestion, note: str = "") -> ApprovalQuestion:
        """Approve the call of a question, once; raises as `answer` does."""
        return await self.answer(question, "approve", note)

    async def deny(self, question: ApprovalQuestion, note: str = "") -> ApprovalQuestion:
        """Deny the call of a question, and tell the model `note`; raises as `answer` does."""
        return await self.answer(question, "deny", note)

    async def session(self) -> Session:
        """Return the conversations with models, in chronological order."""
        return decode(Session, await self._exchange.get(f"{PREFIX}/session"))

    async def performance(self) -> JsonObject:
        """Return figures of the run and its process: durations, memory, time."""
        return await self._exchange.get(f"{PREFIX}/performance")

    async def values(self) -> Mapping[str, RunValue]:
        """Return the values that can be changed in the live run, by their paths."""
        body = await self._exchange.get(f"{PREFIX}/values")
        listed = body.get("values")
        if not isinstance(listed, Mapping):
            raise answer_error("`values` is missing")
        return {path: _run_value(path, value) for path, value in listed.items()}

    async def value(self, path: str, /) -> RunValue:
        """Return a single value, such as `limits.turns`.

        Raises:
            NotFoundError: there is no such value.
        """
        return _run_value(path, await self._exchange.get(_value_path(path)))

    async def change_value(self, path: str, value: JsonValue, /, *, was: JsonValue) -> RunValue:
        """Change a value if it still equals `was`.

        Raises:
            ConflictError: it has changed meanwhile.
            NotFoundError: there is no such value.
            RejectedError: it cannot have this value.
        """
        body: JsonObject = {"value": value, "was": was}
        return _run_value(path, await self._exchange.call("PUT", _value_path(path), body))

    async def command(self, command: str, /, **fields: JsonValue) -> JsonObject:
        """Send a command with its fields: `command("event", name="deployed")`.

        Raises:
            RejectedError: there is no such command here, or it has other fields.
        """
        body: JsonObject = {"command": command, **fields}
        return await self._exchange.call("POST", f"{PREFIX}/commands", body)

    async def stop(self) -> JsonObject:
        """End the run as Ctrl-C does, with exit code 130."""
        return await self.command("stop")

    async def cancel(self) -> JsonObject:
        """End the run as SIGTERM does, with exit code 143."""
        return await self.command("cancel")

    async def ask(
        self,
        title: str,
        /,
        text: str = "",
        data: JsonValue = None,
        *,
        timeout: float = WAIT_SECONDS,
    ) -> JsonValue:
        """Ask a question of your own, which another program responds to, and return the response.

        The question is the event `ask_received`, whose `request_id` `respond` takes.

        Raises:
            UnansweredError: nobody responded in that time.
            ConflictError: the run ended before.
        """
        body: JsonObject = {"title": title, "text": text, "data": data, "timeout": timeout}
        seconds = timeout + SECONDS
        answered = await self._exchange.call("POST", f"{PREFIX}/ask", body, seconds)
        return answered.get("response")

    async def respond(self, request_id: str, response: JsonValue, /) -> None:
        """Respond to a question of another program.

        Raises:
            ConflictError: it already has a response.
            GoneError: it has expired.
            NotFoundError: there is no such question.
        """
        body: JsonObject = {"request_id": request_id, "response": response}
        await self._exchange.call("POST", f"{PREFIX}/ask/respond", body)

    async def wait_for_server(self, timeout: float | None = WAIT_SECONDS) -> Status:
        """Wait until a run listens at the address, and return its status.

        Raises:
            WaitTimeoutError: none did in that time.
        """
        deadline = Deadline(timeout, "nobody listened")
        while True:
            try:
                request = OutgoingRequest(
                    "GET", f"{PREFIX}/status", seconds=deadline.limit_wait(SECONDS)
                )
                reply = await self._exchange.send(request)
            except (NotListeningError, ConnectionLostError):
                deadline.require()
            else:
                if reply.status not in UNAVAILABLE:
                    return decode(Status, json_object(reply))
                deadline.require()
            await self._exchange.pause(deadline)

    async def wait_for_event(
        self,
        kind: str,
        matching: Callable[[JsonObject], bool] | None = None,
        *,
        after: int | None = None,
        timeout: float | None = WAIT_SECONDS,
    ) -> JsonObject:
        """Wait for an event of a type for which `matching` is true, and return it.

        Past events count too, so that nothing is missed between two calls. To wait for a later one,
        pass the number of an event as `after`: `after=event["seq"]`.

        Raises:
            UsageError: there is no such type.
            WaitTimeoutError: it did not happen in that time.
            RunEndedError: the run ended without it.
            GoneError: events after the number `after` are not kept.
        """
        if kind not in EVENT_TYPES.values():
            hint = did_you_mean(kind, EVENT_TYPES.values())
            raise UsageError(f"no event has the type `{for_line(kind)}`", hint=hint)
        async with self._stream(after, timeout, f"no event `{kind}`") as stream:
            async for event in stream:
                if event["type"] == kind and (matching is None or matching(event)):
                    return event
            raise run_ended(stream)

    async def wait_for_approval(
        self,
        matching: Callable[[ApprovalQuestion], bool] | None = None,
        *,
        timeout: float | None = WAIT_SECONDS,
    ) -> ApprovalQuestion:
        """Wait for an open question for which `matching` is true, and return it.

        Raises:
            WaitTimeoutError: nothing was asked in that time.
            RunEndedError: the run ended without it.
        """
        async with self._stream(None, timeout, "no call waited for an answer") as stream:
            question = None
            if stream.finished is None:
                try:
                    question = await self._next_question(stream, matching)
                except NotListeningError:
                    # The state is gone with the run; the rest of the stream says how it ended.
                    await stream.read_to_end()
            if question is None:
                raise run_ended(stream)
            return question

    async def wait_for_value(
        self,
        path: str,
        wanted: JsonValue | Callable[[JsonValue], bool],
        /,
        *,
        timeout: float | None = WAIT_SECONDS,
    ) -> JsonValue:
        """Wait until a value equals this one, or a function is true for it.

        Raises:
            NotFoundError: there is no such value.
            WaitTimeoutError: it was not in that time.
            RunEndedError: the run ended before.
        """
        deadline = Deadline(timeout, f"`{path}` did not become what was waited for")
        stream = AsyncEventStream(self._exchange, None, deadline)
        try:
            # What was set before does not count: it may be another one now.
            while (page := await self.events(stream.after)).events:
                deadline.require()
                stream.after = page.next
            return await self._next_value(stream, path, wanted)
        except NotListeningError:
            # The state is gone with the run; the rest of the stream says how it ended.
            await stream.read_to_end()
            raise run_ended(stream) from None
        finally:
            await stream.close()

    async def wait_for_end(self, *, timeout: float | None = WAIT_SECONDS) -> RunEnd:
        """Wait until the run ends or pauses, and return its end.

        Raises:
            WaitTimeoutError: it did not in that time.
            NotListeningError: it no longer listens, and its folder is unknown (see `of_run`).
        """
        async with self._stream(None, timeout, "the run did not end") as stream:
            return await stream.read_to_end()

    def _stream(self, after: int | None, timeout: float | None, what: str) -> AsyncEventStream:
        return AsyncEventStream(self._exchange, after, Deadline(timeout, what))

    async def _next_value(
        self, stream: AsyncEventStream, path: str, expected: JsonValue | Callable[[JsonValue], bool]
    ) -> JsonValue:
        async with stream:
            now = await self.value(path)
            if _is_wanted(now.value, expected):
                return now.value
            async for event in stream:
                is_set = event["type"] == "value.set" and event.get("path") == path
                if is_set and _is_wanted(event.get("value"), expected):
                    return event.get("value")
            raise run_ended(stream)

    async def _next_question(
        self, stream: AsyncEventStream, matching: Callable[[ApprovalQuestion], bool] | None
    ) -> ApprovalQuestion | None:
        """Return the first open question, from the state or a stream; `None` at its end."""
        # What is asked from here on is in the stream, what was asked before is in the state.
        state = await self.approvals()
        for question in state.pending:
            if matching is None or matching(question):
                return question
        known = {question.id for question in (*state.pending, *state.decided)}
        async for event in stream:
            id = event.get("id")
            if event["type"] != "approval.asked" or not isinstance(id, str) or id in known:
                continue
            known.add(id)
            question = await self.approval(id)
            if question.is_open and (matching is None or matching(question)):
                return question
        return None


def _run_value(path: str, value: JsonValue) -> RunValue:
    return decode(RunValue, {**(value if isinstance(value, Mapping) else {}), "path": path})


def _is_wanted(value: JsonValue, expected: JsonValue | Callable[[JsonValue], bool]) -> bool:
    if callable(expected):
        return expected(value)
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _value_path(path: str) -> str:
    return f"{PREFIX}/values/{quote(path, safe='')}"


def _approval_path(id: str) -> str:
    return f"{PREFIX}/approvals/{quote(id, safe='')}"
