"""Server-sent events as MCP uses them: with ids and pauses to go on from, and long lines.

The reader of the model wire (`wire.sse`) is built for many small events per second, knows neither
ids nor pauses and stops at lines of 1 MiB, which one picture in a tool's result exceeds.
"""

from aish.core.frozen import frozen
from aish.mcp.protocol.lines import Lines

MAX_STREAM = 256 * 1024 * 1024
LONGEST_PAUSE = 9
"""Digits; what has more is no pause that anybody waits for."""
BOM = b"\xef\xbb\xbf"


@frozen
class ServerEvent:
    """One event; `id` and `retry` (milliseconds) as far as it brings them."""

    data: str
    event: str | None = None
    id: str | None = None
    retry: int | None = None


class EventReader:
    """Bytes in, events out; `overrun` says that a line or the stream was over its cap."""

    def __init__(self) -> None:
        self._lines = Lines(keep_empty=True)
        self._fields: dict[bytes, list[bytes]] = {}
        self._size = 0

    @property
    def overrun(self) -> bool:
        """Whether something had to be dropped."""
        return self._lines.dropped > 0 or self._size > MAX_STREAM

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that a piece completes."""
        if not self._size:
            chunk = chunk.removeprefix(BOM)
        self._size += len(chunk)
        return [
            event for line in self._lines.feed(chunk) if (event := self._line(line)) is not None
        ]

    def close(self) -> list[ServerEvent]:
        """The event that the end of the stream completes."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> ServerEvent | None:
        line = line.removesuffix(b"\r")
        if line:
            name, _, value = line.partition(b":")
            self._fields.setdefault(name, []).append(value.removeprefix(b" "))
            return None
        fields, self._fields = self._fields, {}
        return _event(fields) if fields else None


def _event(fields: dict[bytes, list[bytes]]) -> ServerEvent | None:
    def last(name: bytes) -> str | None:
        values = fields.get(name)
        return values[-1].decode("utf-8", "replace") if values else None

    pause = last(b"retry") or ""
    plain = pause.isascii() and pause.isdigit() and len(pause) <= LONGEST_PAUSE
    retry = int(pause) if plain else None
    number = last(b"id")
    if b"data" not in fields and retry is None and number is None:
        return None
    data = b"\n".join(fields.get(b"data", ())).decode("utf-8", "replace")
    return ServerEvent(data, last(b"event") or None, number or None, retry)
