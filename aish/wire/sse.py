"""Server-sent events of models and of MCP servers: bytes in, a list of events out.

Lines end at CRLF, LF or CR and at nothing else, so bytes are split and text is decoded per event.
Line ends are made LF first; what then has no complete event in it waits, at a cost that does not
grow with what already waits.
"""

from typing import Final

from aish.core.frozen import frozen
from aish.wire.errors import LimitError

MAX_LINE: Final = 1024 * 1024
MAX_EVENT: Final = 4 * MAX_LINE
MAX_RESPONSE: Final = 64 * MAX_LINE

_BOM: Final = b"\xef\xbb\xbf"
_IGNORED_FIELDS: Final = frozenset({b"id", b"retry"})

UNFRAMED: Final = b"\n"
"""Stands for the event name of a line that is not a field: no real name contains a line end."""

LONGEST_PAUSE: Final = 9
"""Digits; what has more is no pause that anybody waits for."""


@frozen
class Caps:
    """The most bytes of a line, of the data of an event, and of the whole body."""

    line: int
    event: int
    response: int


CAPS: Final = Caps(MAX_LINE, MAX_EVENT, MAX_RESPONSE)

Frame = tuple[bytes, bytes | None]
"""The data of an event and its name, where it has one; or a line and `UNFRAMED`."""


@frozen
class SseEvent:
    """Server-sent event; bytes that are not UTF-8 are replaced.

    `id` and `retry` (milliseconds), to continue from, as far as it brings them.
    """

    data: str
    event: str | None = None
    id: str | None = None
    retry: int | None = None


class SseReader:
    """Reads the body of a response in pieces of any size.

    The last event needs no blank line after it: `close` gives it. `frames` and those
    after it are the same for many small events per second, without ids and pauses.
    """

    __slots__ = ("_between", "_caps", "_check_at", "_cr", "_head", "_started", "_total", "_waiting")

    def __init__(self, caps: Caps = CAPS) -> None:
        self._caps = caps
        self._head = b""
        self._started = False
        self._cr = False
        self._between = False
        self._waiting = bytearray()
        self._check_at = caps.line
        self._total = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes.

        Raises:
            LimitError: a line, an event or the response is over its cap.
        """
        self._count(chunk)
        return self._events(self._whole_events(chunk))

    def settle(self) -> list[SseEvent]:
        """The event that only a CR at the end of the last chunk kept waiting."""
        settled = self._take_whole(b"\n") if self._cr else b""
        self._cr = False
        return self._events(settled)

    def close(self) -> list[SseEvent]:
        """The event that the end of the body completes.

        Raises:
            LimitError: as with `feed`.
        """
        return [*self.settle(), *self._events(self._rest())]

    def frames(self, chunk: bytes) -> list[Frame]:
        """Like `feed`, but not decoded, and with the lines that are not fields."""
        self._count(chunk)
        lines = chunk.replace(b"\r\n", b"\n") if b"\r" in chunk else chunk
        if self._between and lines.endswith(b"\n\n") and b"\r" not in lines:
            return _blocks(lines)  # whole events and nothing before them: nearly always
        return _blocks(self._whole_events(chunk))

    def flush_frames(self) -> list[Frame]:
        """The event that only a CR at the end of the last chunk kept waiting."""
        if not self._cr:
            return []
        self._cr = False
        return _blocks(self._take_whole(b"\n"))

    def last_frames(self) -> list[Frame]:
        """The event that the end of the body cut short, as far as it came."""
        rest = self._rest()
        return _block(rest) if rest else []

    def _count(self, chunk: bytes) -> None:
        self._total += len(chunk)
        if self._total > self._caps.response:
            raise LimitError(f"the response is over {self._caps.response >> 20} MiB")

    def _rest(self) -> bytes:
        rest = self._head + bytes(self._waiting)
        self._waiting.clear()
        self._head = b""
        return rest

    def _events(self, text: bytes) -> list[SseEvent]:
        found = [_event(block, self._caps) for block in text.split(b"\n\n") if block]
        return [event for event in found if event is not None]

    def _whole_events(self, chunk: bytes) -> bytes:
        """The events that are complete now, with LF for every line end; the rest waits."""
        if not self._started:
            chunk = self._after_bom(chunk)
        if self._cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        whole = self._take_whole(chunk)
        self._between = self._started and not self._cr and not self._waiting
        return whole

    def _take_whole(self, chunk: bytes) -> bytes:
        waiting = self._waiting
        seen = max(0, len(waiting) - 1)
        waiting += chunk
        if waiting.find(b"\n\n", seen) < 0:
            if len(waiting) > self._check_at:
                self._check_waiting()
            return b""
        end = waiting.rfind(b"\n\n") + 2
        whole = bytes(waiting[:end])
        del waiting[:end]
        self._check_at = self._caps.line
        return whole

    def _after_bom(self, chunk: bytes) -> bytes:
        """Drop one byte order mark, which may come in pieces."""
        head = self._head + chunk
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = b""
        self._started = True
        return head.removeprefix(_BOM)

    def _with_lf(self, chunk: bytes) -> bytes:
        """The chunk with LF for every line end; a CR at its end is held back."""
        if self._cr and chunk:
            chunk = b"\r" + chunk
            self._cr = False
        if chunk.endswith(b"\r"):
            self._cr = True
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_waiting(self) -> None:
        """Apply the caps to an incomplete event, and drop its comments."""
        *whole, partial = bytes(self._waiting).split(b"\n")
        _check_caps([*whole, partial], self._caps)
        kept = [line for line in whole if not line.startswith(b":")]
        self._waiting[:] = b"\n".join([*kept, partial])
        self._check_at = len(self._waiting) + self._caps.line // 4


def _blocks(chunk: bytes) -> list[Frame]:
    """The events in text that ends with a blank line."""
    if chunk.startswith(b"data: ") and len(chunk) <= MAX_LINE:
        if chunk.find(b"\n") == len(chunk) - 2:
            return [(chunk[6:-2], None)]
        plain = chunk[6:-2].split(b"\n\ndata: ")
        if chunk.count(b"\n") == 2 * len(plain):  # no event has a second line: nearly always
            return [(data, None) for data in plain]
    return [frame for block in chunk.split(b"\n\n") for frame in _block(block)]


def _block(block: bytes) -> list[Frame]:
    """The event between two blank lines."""
    frames: list[Frame] = []
    lines = block.split(b"\n")
    if len(block) > MAX_LINE:
        _check_caps(lines, CAPS)
    data: list[bytes] = []
    event: bytes | None = None
    for line in lines:
        name, colon, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ") or None
        elif name and name not in _IGNORED_FIELDS:
            frames.append((line, UNFRAMED))
        elif not name and not colon:
            _dispatch(frames, data, event)
            data, event = [], None
    _dispatch(frames, data, event)
    return frames


def _dispatch(frames: list[Frame], data: list[bytes], event: bytes | None) -> None:
    if data:
        frames.append((b"\n".join(data), event))


def _check_caps(lines: list[bytes], caps: Caps) -> None:
    if max(map(len, lines)) > caps.line:
        raise LimitError(f"a line of the stream is over {caps.line >> 20} MiB")
    if sum(len(line) for line in lines if line.startswith(b"data")) > caps.event:
        raise LimitError(f"an event of the stream is over {caps.event >> 20} MiB")


def _event(block: bytes, caps: Caps) -> SseEvent | None:
    """The event with these lines, if it has any content."""
    lines = block.split(b"\n")
    if len(block) > caps.line:
        _check_caps(lines, caps)
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields.setdefault(name, []).append(value.removeprefix(b" "))

    def last(name: bytes) -> str:
        return fields[name][-1].decode("utf-8", "replace") if name in fields else ""

    pause, id = last(b"retry"), last(b"id")
    plain = pause.isascii() and pause.isdigit() and len(pause) <= LONGEST_PAUSE
    if b"data" not in fields and not plain and not id:
        return None
    data = b"\n".join(fields.get(b"data", ())).decode("utf-8", "replace")
    return SseEvent(data, last(b"event") or None, id or None, int(pause) if plain else None)
