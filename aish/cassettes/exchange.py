"""An exchange while it is recorded (C3): its head, its pieces and their times, its end."""

from collections.abc import Callable

from aish.cassettes.interaction import Chunk, Headers, Interaction, Request, Response


class Exchange:
    """One exchange while it is recorded; ending it twice is no harm.

    `number` is its place in the order of the run, counted from 1.
    """

    def __init__(
        self,
        request: Request,
        number: int,
        now: Callable[[], float],
        on_end: Callable[["Exchange"], None],
    ) -> None:
        self.number = number
        self.interaction = Interaction(request, Response())
        self._now = now
        self._on_end = on_end
        self._began = now()
        self._chunks: list[Chunk] = []
        self._parts: list[bytes] = []
        self._ended = False
        self.answered = False
        """Whether the answer is whole, though more may be said after it."""

    @property
    def ended(self) -> bool:
        """Whether the answer is over."""
        return self._ended

    def chunk(self, data: bytes, after: int = 0) -> None:
        """A piece of the answer has come; `after` as in `Chunk`."""
        if data and not self._ended:
            self._parts.append(data)
            self._chunks.append(Chunk(len(data), max(0.0, self._now() - self._began), after))

    def head(self, status: int, reason: str, headers: Headers) -> None:
        """The head of the answer has come."""
        response = Response(status, reason, headers)
        self.interaction = Interaction(self.interaction.request, response)

    def end(self, *, broken: str | None = None) -> None:
        """The answer is over; `broken` says how it broke off, if it did."""
        if self._ended:
            return
        self.interaction = self.so_far(broken)
        self._ended = True
        self._on_end(self)

    def so_far(self, broken: str | None = None) -> Interaction:
        """The exchange as it would be if its answer were over now."""
        if self._ended:
            return self.interaction
        head = self.interaction.response
        body, chunks = b"".join(self._parts), tuple(self._chunks)
        whole = Response(head.status, head.reason, head.headers, body, chunks, broken)
        return Interaction(self.interaction.request, whole)
