"""The answer of `/chat/completions`: bytes in, deltas out (L3, L5; quirks 1 to 60).

What comes is looked at, not its label: an event stream, one JSON completion, or neither. Calls,
extras and the finish come from `close` alone, once the answer is known to be whole.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from aish.core.deltas import Delta
from aish.core.events import Place
from aish.wire.answer import Answer, plain_text
from aish.wire.ending import Setting, last_deltas
from aish.wire.error_body import in_band_error
from aish.wire.errors import (
    EmptyStreamError,
    IncompleteStreamError,
    LimitError,
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
from aish.wire.stray_lines import StrayLines, is_cut_field, not_a_stream

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
