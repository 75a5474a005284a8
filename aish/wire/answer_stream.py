"""Reads a response with status 200 on any wire: events or one JSON value, whatever frames them.

A status of 200 may carry an error as JSON. `AnswerStream` reads the bytes; the wire's own class
says what a value means.
"""

from typing import Any, Final, Literal

from aish.core.messages import Delta
from aish.wire.errors import (
    EmptyStreamError,
    IncompleteStreamError,
    LimitError,
    UnreadableStreamError,
)
from aish.wire.in_band import StrayLines, in_band_error, not_a_stream
from aish.wire.json_text import (
    DONE,
    BrokenJsonError,
    Mask,
    excerpt,
    is_cut,
    json_values,
    raw_decode,
)
from aish.wire.sse import MAX_EVENT, UNFRAMED, Frame, SseReader

_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = (b"data", b"event", b"id", b"retry")
_PINGS: Final = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_MARKER: Final = DONE.encode()
_PINGED: Final = ("ping_as_data", "pings come framed as data")


class AnswerStream:
    """Base of the decoders; use one for each try.

    `mask` takes the secrets out of what errors and notices show of an answer, before it is cut.
    """

    __slots__ = ("_body", "_closing", "_head", "_kind", "_mask", "_reader", "_stray", "done",
                 "limit", "progress")  # fmt: skip

    reads_on = False
    """Whether what follows the end is read too."""

    def __init__(self, mask: Mask) -> None:
        self.progress = 0
        """How often something of the answer has come: a text, a call, counts or the end."""
        self.done = False
        """Whether the last event was seen: what follows is not worth waiting for."""
        self.limit: int | None = None
        """The most tokens that the answer may have, as far as the request says."""
        self._mask = mask
        self._reader = SseReader()
        self._stray = StrayLines(mask)
        self._kind: Literal["unknown", "events", "json"] = "unknown"
        self._closing = False
        self._head = b""
        self._body = bytearray()

    # What a wire defines.

    @property
    def complete(self) -> bool:
        """True if the answer is complete, so that the end of the connection is no loss."""
        raise NotImplementedError

    @property
    def counted(self) -> bool:
        """True if token counts have come."""
        raise NotImplementedError

    @property
    def _begun(self) -> bool:
        """True if anything of an answer has come."""
        raise NotImplementedError

    @property
    def _whole(self) -> bool:
        """True if an answer came in one piece, not as a stream."""
        raise NotImplementedError

    def _notice(self, code: str, text: str) -> None:
        raise NotImplementedError

    def _take_object(self, value: dict[str, Any]) -> None:
        """Take an event, or a whole answer."""
        raise NotImplementedError

    def _take_deltas(self) -> list[Delta]:
        """The deltas since the last call."""
        raise NotImplementedError

    def _last_deltas(self) -> list[Delta]:
        """The rest of the answer, `Finish` last, once nothing more comes."""
        raise NotImplementedError

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas in a piece of the body, with text merged.

        Raises:
            StreamError: the endpoint reports an error, or sends something other than an answer.
        """
        if self.done and not self.reads_on:
            return []
        if self._kind != "events":
            chunk = self._look(chunk) if self._kind == "unknown" else chunk
            if self._kind == "json":
                self.progress += bool(chunk.strip())
                self._body += chunk
                if len(self._body) > MAX_EVENT:
                    raise LimitError(f"the answer is over {MAX_EVENT >> 20} MiB")
                return []
        try:
            self._take_frames(self._reader.frames(chunk))
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None
        return self._take_deltas()

    def close(self) -> list[Delta]:
        """The end of the body: the rest of the answer, `Finish` last.

        Raises:
            StreamError: the answer is incomplete.
        """
        try:
            if self._kind == "json":
                self._end_json(self._body.decode("utf-8", "replace"))
            else:
                self._end_events()
            return self._last_deltas()
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None

    def _look(self, chunk: bytes) -> bytes:
        """Determine the type of the body by its first byte that is not a space."""
        head = self._head + chunk
        text = b"" if _BOM.startswith(head) else head.removeprefix(_BOM).lstrip()
        if text:
            self._kind = "json" if text[:1] in {b"{", b"["} else "events"
        else:
            self._head = head[: len(_BOM)]
        return text

    def _take_frames(self, frames: list[Frame]) -> None:
        for data, event in frames:
            if event is UNFRAMED or event == b"error" or (value := parse_value(data)) is None:
                self._take_odd(data, event)
            else:
                self._take_value(_with_type(value, event))
            if self.done and not self.reads_on:
                return

    def _take_value(self, value: Any) -> None:
        if value == DONE:
            self._take_marker()
        elif isinstance(value, dict):
            self._take_object(value)
        elif value is None:
            self._notice(*_PINGED)
        elif isinstance(value, list):  # Gemini wraps an error in one
            for inner in value:
                self._take_value(inner)
        else:
            self._refuse(f"an event is no object: {excerpt(str(value), self._mask)}")

    def _take_marker(self) -> None:
        """Take `[DONE]`."""
        self.done = True

    def _take_odd(self, data: bytes, event: bytes | None) -> None:
        """Process an event that reports an error, or is not one JSON value."""
        if event is UNFRAMED:
            self._take_stray(data)
            return
        text = data.decode("utf-8", "replace").strip()
        if event == b"error":
            raise in_band_error(parse_value(data) or text, self._mask)
        if not text or event in _PINGS:
            return
        if text.startswith(":"):
            self._notice("comment_as_data", "comments come framed as data")
            return
        if text.lower().encode() in _PINGS:
            self._notice(*_PINGED)
            return
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError:
            self._refuse(f"an event is no JSON: {excerpt(text, self._mask)}")

    def _take_stray(self, line: bytes) -> None:
        if self._closing and any(field.startswith(line) for field in _FIELDS):
            return
        if self.complete:
            self._notice("unframed_text", "text without a frame after the answer")
        else:
            self._stray.add(line)

    def _refuse(self, message: str) -> None:
        """Unreadable data is an error, but only a notice after the answer."""
        if not self.complete:
            raise UnreadableStreamError(message)
        self._notice("unreadable_event", message)

    def _end_events(self) -> None:
        if not self.done or self.reads_on:
            self._take_frames(self._reader.flush_frames())
        if not self.done or self.reads_on:
            self._closing = True
            try:
                self._take_frames(self._reader.last_frames())
            except UnreadableStreamError:
                raise IncompleteStreamError("the stream ended inside an event") from None
        if error := self._stray.error(begun=self._begun):
            raise error
        if not (self.done or self._begun):
            raise EmptyStreamError("the answer is empty")

    def _end_json(self, text: str) -> None:
        """Read a body that is one answer, whatever follows it."""
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError as error:
            if self.complete or self._whole:
                self._notice("unframed_text", "text without a frame after the answer")
            elif is_cut(error.rest):
                raise IncompleteStreamError("the answer ended inside its JSON") from None
            else:
                raise not_a_stream(text, self._mask) from None
        if not (self._begun or self.done):
            raise not_a_stream(text, self._mask)


def _with_type(value: Any, event: bytes | None) -> Any:
    """The value with the name of its event as its type, where it says none itself."""
    if event is None or not isinstance(value, dict) or "type" in value:
        return value
    return {"type": event.decode("utf-8", "replace"), **value}


def parse_value(data: bytes) -> Any:
    """The one JSON value that the data is, or the marker of the end, else `None`."""
    if data == _MARKER:
        return DONE
    try:
        text = data.decode()
        value, end = raw_decode(text)
    except ValueError:
        return None
    return value if end == len(text) else None
