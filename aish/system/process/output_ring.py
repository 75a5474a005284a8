"""The last output of a process: two streams in one ring, counted in bytes, cut between characters.

A stream's bytes count once they are whole characters, so that none is ever cut by the other stream
or by the ring's own limit. Bytes that are no UTF-8 count as they come. Secrets are masked
before: an offset may lie within one, and the two streams may be mixed.
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from aish.core.frozen import frozen, slotted
from aish.system.secrets.secrets import SHORTEST, Secrets, StreamMask

Stream = Literal["stdout", "stderr"]
LIMIT = 1 << 20
# What a piece costs beside its bytes: one-byte pieces of two streams must not fill the memory.
_OVERHEAD = 128
_PIECE = 1 << 16
_LONGEST_CHARACTER = 4
_LONGEST_LINE = 1 << 14
_TOO_SHORT_TO_HOLD = SHORTEST // 2 - 1
"""Characters that are shown although a secret may begin with them: somebody may wait for them."""
# Bytes of UTF-8: those within a character, and the first ones of characters of two, three, four.
_INSIDE, _FIRST_OF_TWO, _LAST_FIRST = 0x80, 0xC0, 0xF7
_FIRST_OF_MORE = (_FIRST_OF_TWO, 0xE0, 0xF0)


@slotted
class _Piece:
    stream: Stream
    start: int
    data: bytearray

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@frozen
class RingText:
    """Output as text, with the offset to continue from and the number of lost bytes."""

    text: str
    next: int
    dropped: int


class OutputRing:
    """Keeps the last output, without `secrets`; `total` counts all of it, as it is kept."""

    def __init__(self, limit: int = LIMIT, secrets: Secrets | None = None) -> None:
        self._limit = limit
        self._secrets = Secrets() if secrets is None else secrets
        self._masks: dict[Stream, StreamMask] = {
            "stdout": StreamMask(self._secrets),
            "stderr": StreamMask(self._secrets),
        }
        self._pieces: deque[_Piece] = deque()
        self._size = 0
        self._rest: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self.total = 0

    def add(self, stream: Stream, data: bytes) -> None:
        """Keep some output; the beginning of a character waits for its rest."""
        rest = self._rest[stream]
        whole = rest + data if rest else data
        missing = _count_partial_bytes(whole)
        self._rest[stream] = whole[len(whole) - missing :] if missing else b""
        self._keep(
            stream, self._mask_data(stream, whole[: len(whole) - missing] if missing else whole)
        )

    def end(self, stream: Stream) -> None:
        """A stream has ended: what waited for its rest is kept as it is."""
        rest, self._rest[stream] = self._rest[stream], b""
        self._keep(stream, self._mask_data(stream, rest))
        self._keep(stream, self._masks[stream].flush().encode("utf-8", "surrogateescape"))

    def text(self, since: int, most: int) -> RingText:
        """The output from an offset on, at most about `most` bytes of it.

        What is left out begins and ends with a line where it can: nobody would recognize half of a
        secret.
        """
        start = self._within(since)
        if since < self._oldest:
            start = self._line_end(start, start + _LONGEST_LINE, last=False) or start
        if self.total - start > most:
            most = (
                self._line_end(start + most // 2, start + most, last=True) or start + most
            ) - start
        parts: list[str] = []
        place, left, stream = start, most, "stdout"
        for piece in self._from(start):
            if left <= 0:
                break
            data = _from_character(bytes(piece.data[max(start - piece.start, 0) :]))
            first, available = piece.end - len(data), len(data)
            data = _to_character(data, left)
            if piece.stream != stream:
                new_line = "" if not parts or parts[-1].endswith("\n") else "\n"
                parts.append(f"{new_line}[{piece.stream}]\n")
                stream = piece.stream
            parts.append(data.decode("utf-8", "replace"))
            place = first + len(data)
            left = left - len(data) if len(data) == available else 0
        return RingText("".join(parts), place, max(start - since, 0) if since < self._oldest else 0)

    def _line_end(self, start: int, stop: int, *, last: bool) -> int | None:
        """The offset behind the first or the last end of a line between two offsets."""
        end = None
        for piece in self._from(start):
            if piece.start >= stop:
                break
            find = piece.data.rfind if last else piece.data.find
            place = find(b"\n", max(start - piece.start, 0), stop - piece.start)
            if place >= 0:
                end = piece.start + place + 1
                if not last:
                    break
        return end

    def line_start(self, lines: int, since: int) -> int:
        """The offset from `since` on at which the last `lines` lines begin."""
        start = self._within(since)
        if lines <= 0:
            return self.total
        left = lines
        for piece in reversed(self._pieces):
            if piece.end <= start:
                break
            end = len(piece.data)
            if piece.end == self.total and piece.data.endswith(b"\n"):
                end -= 1  # the end of the last line begins no other
            while (offset := piece.data.rfind(b"\n", max(start - piece.start, 0), end)) >= 0:
                left -= 1
                if left == 0:
                    return piece.start + offset + 1
                end = offset
        return start

    def has(self, text: bytes, since: int) -> bool:
        """Return true if a stream has this exact text at an offset."""
        start = self._within(since)
        streams: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        for piece in self._from(start):
            streams[piece.stream] += piece.data[max(start - piece.start, 0) :]
        return any(text in stream for stream in streams.values())

    @property
    def _oldest(self) -> int:
        return self._pieces[0].start if self._pieces else self.total

    def _within(self, since: int) -> int:
        return min(max(since, self._oldest), self.total)

    def _from(self, start: int) -> Iterator[_Piece]:
        return (piece for piece in self._pieces if piece.end > start)

    def _mask_data(self, stream: Stream, data: bytes) -> bytes:
        """Return what can be kept by now: the beginning of a secret waits for its rest."""
        if not self._secrets:
            return data
        mask = self._masks[stream]
        output = mask.feed(data.decode("utf-8", "surrogateescape"))
        return (output + mask.release(_TOO_SHORT_TO_HOLD)).encode("utf-8", "surrogateescape")

    def _keep(self, stream: Stream, data: bytes) -> None:
        if not data:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.stream == stream and len(last.data) < _PIECE:
            last.data += data
            self._size += len(data)
        else:
            self._pieces.append(_Piece(stream, self.total, bytearray(data)))
            self._size += len(data) + _OVERHEAD
        self.total += len(data)
        while self._size > self._limit:
            self._drop(self._size - self._limit)

    def _drop(self, size: int) -> None:
        first = self._pieces[0]
        if size >= len(first.data):
            self._pieces.popleft()
            self._size -= len(first.data) + _OVERHEAD
            return
        edge = bytes(first.data[size : size + _LONGEST_CHARACTER])
        gone = size + len(edge) - len(_from_character(edge))
        del first.data[:gone]
        first.start += gone
        self._size -= gone


def _is_inside(byte: int) -> bool:
    """Return true if a byte of UTF-8 continues a character."""
    return _INSIDE <= byte < _FIRST_OF_TWO


def _from_character(data: bytes) -> bytes:
    """The bytes from the first beginning of a character on."""
    for place in range(min(_LONGEST_CHARACTER, len(data))):
        if not _is_inside(data[place]):
            return data[place:]
    return data


def _to_character(data: bytes, most: int) -> bytes:
    """The first bytes, up to the end of a character; at least one."""
    if len(data) <= most:
        return data
    cut = data[:most]
    if whole := cut[: len(cut) - _count_partial_bytes(cut)]:
        return whole
    end = 1
    while end < min(_LONGEST_CHARACTER, len(data)) and _is_inside(data[end]):
        end += 1
    return data[:end]


def _count_partial_bytes(data: bytes) -> int:
    """Count the bytes at the end that begin a character whose rest is missing."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if not _is_inside(byte):
            length = 1 + sum(byte >= first for first in _FIRST_OF_MORE)
            return back if byte <= _LAST_FIRST and length > back else 0
    return 0
