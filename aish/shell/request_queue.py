"""The requests of other programs to a session, which wait for their turn."""

from collections import deque
from collections.abc import Awaitable, Callable

import anyio

from aish.core.errors import AishError, UsageError
from aish.core.json import JsonObject

Work = Callable[[], Awaitable[JsonObject]]
MOST_REQUESTS = 100
"""How many requests of other programs may wait for their turn."""


class SessionRequest:
    """A wish of another program, fulfilled between two lines; `result` waits for it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._answer: JsonObject | None = None
        self._error: AishError = UsageError("interrupted: the session has stopped it")
        self._done = anyio.Event()

    def end(self, answer: JsonObject | AishError | None) -> None:
        """End the request with its answer; `None` if it was interrupted."""
        if isinstance(answer, AishError):
            self._error = answer
        else:
            self._answer = answer
        self._done.set()

    async def result(self) -> JsonObject:
        """The answer.

        Raises:
            AishError: there is none.
        """
        await self._done.wait()
        if self._answer is None:
            raise self._error
        return self._answer


class RequestQueue:
    """Requests of other programs, done one after the other, between the lines of the person.

    `wake` makes the session look for them.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[SessionRequest] = deque()
        self._closed = False

    def put(self, work: Work) -> SessionRequest:
        """Append work to the queue.

        Raises:
            UsageError: too much is waiting, or the session has ended.
        """
        if self._closed:
            raise UsageError("the session has ended")
        if len(self._waiting) >= MOST_REQUESTS:
            hint = "wait until the session has done some of them"
            raise UsageError(f"{MOST_REQUESTS} requests are waiting already", hint=hint)
        request = SessionRequest(work)
        self._waiting.append(request)
        self._wake()
        return request

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> SessionRequest | None:
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        self._closed = True
        while self._waiting:
            self._waiting.popleft().end(UsageError("the session has ended"))
