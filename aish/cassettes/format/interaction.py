"""The content of a cassette: exchanges in the order of the run, and the head.

Bodies are bytes here; the file format decides between text and base64. An exchange that is not HTTP
has a uri such as `mcp+stdio://<alias>` and a status of 200. `Exchange` is one while it is recorded;
interactions that wait for others refer to them by number, which is adjusted for another cassette.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.frozen import frozen

VERSION = 1

LARGEST = 256 * 1024 * 1024
"""Bytes that a cassette may have, what its aliases stand for included."""

NO_ANSWER, NO_ANSWER_REASON = 599, "No Answer"
"""Status and reason where not even the head of an answer came; `broken` says why."""

Headers = tuple[tuple[str, str], ...]


@frozen
class Request:
    """The request of an exchange."""

    method: str
    uri: str
    headers: Headers = ()
    body: bytes = b""


@frozen
class Chunk:
    """A chunk of a streamed body: its length in bytes, and its time since the request.

    `after` is the number of an interaction whose request must have been sent before this chunk is
    played, for unsolicited server messages; 0 if that does not matter.
    """

    size: int
    seconds: float
    after: int = 0


@frozen
class Response:
    """The response of an exchange; `broken` says how it broke off, if it did."""

    status: int = 200
    reason: str = "OK"
    headers: Headers = ()
    body: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    broken: str | None = None

    @property
    def is_headless(self) -> bool:
        """True if the exchange broke off before the head of a response arrived."""
        known = (self.status, self.reason) == (NO_ANSWER, NO_ANSWER_REASON)
        return known and self.broken is not None

    def pieces(self) -> tuple[tuple[bytes, float], ...]:
        """The chunks of the body, each with its time; a single one if no chunks are known."""
        if not self.chunks:
            return ((self.body, 0.0),) if self.body else ()
        pieces = []
        start = 0
        for chunk in self.chunks:
            pieces.append((self.body[start : start + chunk.size], chunk.seconds))
            start += chunk.size
        return tuple(pieces)


@frozen
class Interaction:
    """A request and its response."""

    request: Request
    response: Response


@frozen
class RecordingMetadata:
    """The metadata of a recording, which contains all that is not repeatable by itself."""

    complete: bool
    run: str
    clock: str
    env: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION


@frozen
class Cassette:
    """A file's content; `head` is None if another program recorded it."""

    head: RecordingMetadata | None
    interactions: tuple[Interaction, ...]


class CassetteFileError(UsageError):
    """A cassette file that cannot be read or written; nothing was contacted."""

    code = "invalid_cassette"


class CassetteMissError(AishError):
    """In replay, a request is not in the cassette; the message has the diff."""

    exit_code = ExitCode.CASSETTE
    code = "cassette_miss"


class Exchange:
    """An exchange while it is recorded; ending it twice is harmless.

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
        """True if the response has ended."""
        return self._ended

    def chunk(self, data: bytes, after: int = 0) -> None:
        """A chunk of the response has arrived; `after` as in `Chunk`."""
        if data and not self._ended:
            self._parts.append(data)
            self._chunks.append(Chunk(len(data), max(0.0, self._now() - self._began), after))

    def head(self, status: int, reason: str, headers: Headers) -> None:
        """The head of the response has arrived."""
        response = Response(status, reason, headers)
        self.interaction = Interaction(self.interaction.request, response)

    def end(self, *, broken: str | None = None) -> None:
        """The response has ended; `broken` says how it broke off, if it did."""
        if self._ended:
            return
        self.interaction = self.so_far(broken)
        self._ended = True
        self._on_end(self)

    def so_far(self, broken: str | None = None) -> Interaction:
        """The exchange as if its response had ended now."""
        if self._ended:
            return self.interaction
        head = self.interaction.response
        body, chunks = b"".join(self._parts), tuple(self._chunks)
        whole = Response(head.status, head.reason, head.headers, body, chunks, broken)
        return Interaction(self.interaction.request, whole)


def in_order(kept: Sequence[Interaction | Exchange | None]) -> tuple[Interaction, ...]:
    """All interactions in order, with references adjusted to their current numbers."""
    there = [place for place, item in enumerate(kept) if item is not None]
    numbers = {place + 1: number for number, place in enumerate(there, 1)}
    interactions = (
        one.interaction if isinstance(one, Exchange) else one for one in kept if one is not None
    )
    if len(there) == len(kept):
        return tuple(interactions)
    return tuple(with_numbers(interaction, numbers) for interaction in interactions)


def with_numbers(one: Interaction, numbers: Mapping[int, int]) -> Interaction:
    """The interaction in another cassette, with references replaced by the other `numbers`."""
    if not any(chunk.after for chunk in one.response.chunks):
        return one
    chunks = tuple(
        replace(chunk, after=numbers.get(chunk.after, 0)) if chunk.after else chunk
        for chunk in one.response.chunks
    )
    return replace(one, response=replace(one.response, chunks=chunks))
