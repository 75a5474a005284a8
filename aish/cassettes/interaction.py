"""What a cassette holds: exchanges in the order of the run, and the head (C1, C3, C9).

Bodies are bytes here; whether a file holds them as text or as base64 is the file's business. An
exchange that is not HTTP has a uri such as `mcp+stdio://<alias>` and a status of 200.
"""

from collections.abc import Mapping
from dataclasses import field

from aish.core.frozen import frozen

VERSION = 1

NO_ANSWER, NO_ANSWER_REASON = 599, "No Answer"
"""Status and reason where not even the head of an answer came; `broken` says why."""

Headers = tuple[tuple[str, str], ...]


@frozen
class Request:
    """What was sent."""

    method: str
    uri: str
    headers: Headers = ()
    body: bytes = b""


@frozen
class Chunk:
    """One piece of a streamed body: its length in bytes, and when it came after the request.

    `after` is the number of an interaction that had been asked by then and has to be asked before
    this piece is played, for what a server says unasked; 0 where that does not matter.
    """

    size: int
    seconds: float
    after: int = 0


@frozen
class Response:
    """What came back; `broken` says how the exchange broke off, if it did."""

    status: int = 200
    reason: str = "OK"
    headers: Headers = ()
    body: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    broken: str | None = None

    @property
    def is_headless(self) -> bool:
        """Whether the exchange broke off before the head of an answer came."""
        known = (self.status, self.reason) == (NO_ANSWER, NO_ANSWER_REASON)
        return known and self.broken is not None

    def pieces(self) -> tuple[tuple[bytes, float], ...]:
        """The body as it came: each piece with its time; in one piece where no cuts are known."""
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
    """A request and its answer."""

    request: Request
    response: Response


@frozen
class Head:
    """What a recording says about itself; everything in it that is not repeatable by itself."""

    complete: bool
    run: str
    clock: str
    env: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION


@frozen
class Cassette:
    """A file's content; `head` is None where another program recorded it."""

    head: Head | None
    interactions: tuple[Interaction, ...]
