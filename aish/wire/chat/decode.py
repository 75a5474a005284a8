"""The answer of `/chat/completions`: bytes in, deltas out (L3, L5; quirks 1 to 60).

Lines in a stream that are none of its fields are a proxy's page or a crashed server's last words.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from aish.core.deltas import Delta
from aish.core.events import Place
from aish.wire.chat.answer import Answer, Setting, last_deltas, plain_text
from aish.wire.chat.error_body import find_error, in_band_error
from aish.wire.errors import (
    EmptyStreamError,
    IncompleteStreamError,
    LimitError,
    StreamError,
    UnreadableStreamError,
)
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

_MOST: Final = 4096
# The standard asks for unknown fields to be ignored; an error is none.
_UNKNOWN_FIELD: Final = re.compile(rb"(?!error:|fatal:)[a-z][a-z0-9_-]*:")
_FIELDS: Final = (b"data", b"event", b"id", b"retry")


class StrayLines:
    """Gathers them, up to a size, and says in the end what they were (quirks 21, 22)."""

    __slots__ = ("_lines", "_mask", "_odd", "_size")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._lines: list[bytes] = []
        self._odd = False
        self._size = 0

    def add(self, line: bytes) -> None:
        """Take a line."""
        self._odd = self._odd or not _UNKNOWN_FIELD.match(line)
        if self._size < _MOST:
            self._lines.append(line[:_MOST])
            self._size += len(line)

    def error(self, *, begun: bool) -> StreamError | None:
        """The error that the lines are; `begun` says that there was an answer around them."""
        if not self._lines or (begun and not self._odd):
            return None
        text = b"\n".join(self._lines).decode("utf-8", "replace")
        try:
            for value in json_values(text):
                if isinstance(value, dict) and (error := find_error(value, self._mask)):
                    return error
        except BrokenJsonError:
            pass
        if begun:
            return UnreadableStreamError(f"text inside the stream: {excerpt(text, self._mask)}")
        return not_a_stream(text, self._mask)


def not_a_stream(text: str, mask: Mask) -> UnreadableStreamError:
    """The error for a page or a text in place of an answer: most often the address is wrong."""
    return UnreadableStreamError(f"not a chat completion: {excerpt(text, mask)}", retryable=False)


def is_cut_field(line: bytes) -> bool:
    """Whether a last line is the beginning of a field's name: the connection was cut there."""
    return any(field.startswith(line) for field in _FIELDS)


_BOM: Final = b"\xef\xbb\xbf"
_PINGS: Final = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})


class ChatDecoder:
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments. `mask` takes the secrets out of what errors and notices
    show of an answer, before it is cut.
    """

    __slots__ = (
        "_answer", "_body", "_closing", "_head", "_kind", "_reader", "_setting", "_stray", "done",
        "progress",
    )  # fmt: skip

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,
        mask: Mask = str,
    ) -> None:
        self.progress = 0
        """How often something of the answer has come: comments and pings do not count (L4)."""
        self.done = False
        """Whether `[DONE]` was seen: what follows is not worth waiting for."""
        self._setting = Setting(place, frozenset(known_tools), required or {}, mask)
        self._answer = Answer(self._setting.known_tools, mask)
        self._reader = SseReader()
        self._stray = StrayLines(mask)
        self._kind: Literal["unknown", "events", "json"] = "unknown"
        self._closing = False
        self._head = b""
        self._body = bytearray()

    @property
    def complete(self) -> bool:
        """Whether the answer is over, so that the end of the connection is no loss."""
        return self.done or self._answer.over

    def feed(self, chunk: bytes) -> list[Delta]:
        """What a piece of the body says, text within it merged.

        Raises:
            StreamError: the endpoint reports an error, or sends what is no answer.
        """
        if self.done:
            return []
        if self._kind != "events":
            chunk = self._look(chunk) if self._kind == "unknown" else chunk
            if self._kind == "json":
                self._keep(chunk)
                return []
        try:
            self._take_frames(self._reader.frames(chunk))
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None
        return self._answer.speech.take()

    def close(self) -> list[Delta]:
        """The end of the body: the rest of the answer, `Finish` last.

        Raises:
            StreamError: what came is no complete answer.
        """
        try:
            if self._kind == "json":
                self._end_json(self._body.decode("utf-8", "replace"))
            else:
                self._end_events()
            return last_deltas(self._answer, self._setting, done=self.done)
        except RecursionError:
            raise UnreadableStreamError("the answer has too many levels") from None

    def _look(self, chunk: bytes) -> bytes:
        """Find out by the first byte that is no space what the body is (quirks 17, 18)."""
        head = self._head + chunk
        text = b"" if _BOM.startswith(head) else head.removeprefix(_BOM).lstrip()
        if text:
            self._kind = "json" if text[:1] in {b"{", b"["} else "events"
        else:
            self._head = head[: len(_BOM)]
        return text

    def _keep(self, chunk: bytes) -> None:
        """Gather a body that is one JSON text."""
        self.progress += bool(chunk.strip())
        self._body += chunk
        if len(self._body) > MAX_EVENT:
            raise LimitError(f"the answer is over {MAX_EVENT >> 20} MiB")

    def _take_frames(self, frames: list[Frame]) -> None:
        """Take events; nearly all are a piece of text without a name."""
        speech = self._answer.speech
        for data, event in frames:
            if event is not None or (value := _parsed(data)) is None:
                self._take_odd(data, event)
                if self.done:
                    return
            elif (text := plain_text(value)) is None:
                self._take_value(value)
            else:
                self.progress += 1
                if speech.thoughts:
                    speech.settle()
                speech.texts.append(text)

    def _take_value(self, value: Any) -> None:
        if value == DONE:
            self.done = True
        elif isinstance(value, dict):
            self.progress += "choices" in value or "usage" in value
            self._answer.take(value)
        elif isinstance(value, list):  # Gemini wraps an error in one
            for inner in value:
                self._take_value(inner)
        else:
            self._refuse(f"an event is no object: {excerpt(str(value), self._setting.mask)}")

    def _take_odd(self, data: bytes, event: bytes | None) -> None:
        """Take an event that is named, or is not one JSON value (quirks 2, 9, 21, 25)."""
        if event is UNFRAMED:
            self._take_stray(data)
            return
        text = data.decode("utf-8", "replace").strip()
        if event == b"error":
            raise in_band_error(_parsed(data) or text, self._setting.mask)
        if not text or event in _PINGS:
            return
        if text.startswith(":"):
            self._answer.notice("comment_as_data", "comments come framed as data")
            return
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError:
            self._refuse(f"an event is no JSON: {excerpt(text, self._setting.mask)}")

    def _take_stray(self, line: bytes) -> None:
        if self._closing and is_cut_field(line):
            return
        if self.complete:
            self._answer.notice("unframed_text", "text without a frame after the answer")
        else:
            self._stray.add(line)

    def _refuse(self, message: str) -> None:
        """Nonsense is an error, but after the answer it is only odd."""
        if not self.complete:
            raise UnreadableStreamError(message)
        self._answer.notice("unreadable_event", message)

    def _end_events(self) -> None:
        if not self.done:
            self._take_frames(self._reader.settled_frames())
        if not self.done:
            self._closing = True
            try:
                self._take_frames(self._reader.last_frames())
            except UnreadableStreamError:
                raise IncompleteStreamError("the stream ended inside an event") from None
        begun = self.progress > 0
        if error := self._stray.error(begun=begun):
            raise error
        if not (self.done or begun):
            raise EmptyStreamError("the answer is empty")

    def _end_json(self, text: str) -> None:
        """Read a body that is one completion, whatever stands behind it (quirks 18, 19)."""
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError as error:
            if self.complete or self._answer.whole:
                self._answer.notice("unframed_text", "text without a frame after the answer")
            elif is_cut(error.rest):
                raise IncompleteStreamError("the answer ended inside its JSON") from None
            else:
                raise not_a_stream(text, self._setting.mask) from None
        if not (self._answer.begun or self.done):
            raise not_a_stream(text, self._setting.mask)


def _parsed(data: bytes) -> Any:
    """The one JSON value that the data is, else `None`."""
    try:
        text = data.decode()
        value, end = raw_decode(text)
    except ValueError:
        return None
    return value if end == len(text) else None
