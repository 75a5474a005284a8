"""Decodes a response of `/chat/completions`: bytes in, deltas out.

A status of 200 may carry an error as JSON. `ChatDecoder` reads the bytes, and
`answer` builds the turn.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from aish.core.events import Place
from aish.core.messages import Delta
from aish.core.patterns import lazy_pattern
from aish.net.rate_limits import RETRYABLE, retry_advice
from aish.wire.chat.answer import Answer, Setting, last_deltas
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    LimitError,
    StreamError,
    UnreadableStreamError,
)
from aish.wire.json_text import (
    DONE,
    BrokenJsonError,
    Mask,
    dump,
    excerpt,
    is_cut,
    json_values,
    raw_decode,
)
from aish.wire.sse import MAX_EVENT, UNFRAMED, Frame, SseReader

_SHOWN: Final = 400
_STATUSES: Final = frozenset(str(status) for status in range(100, 600))
# Words in codes and types that say that a retry would fail again.
_FINAL_WORDS: Final = (
    "quota", "billing", "credit", "payment", "balance", "insufficient_funds", "invalid",
    "context", "not_found", "authentication", "permission", "unauthorized", "forbidden",
    "content_filter", "content_policy", "moderation", "unsupported", "too_large",
)  # fmt: skip
_MONEY_WORDS: Final = _FINAL_WORDS[:6]
_WORD_FIELDS: Final = ("code", "type", "status", "error_type")
_TEXT_FIELDS: Final = ("message", "error_message", "detail", "msg", "error", "reason")


def find_error(value: dict[str, Any], mask: Mask) -> InBandError | None:
    """The error that an event or a body reports, or `None`; `mask` takes secrets out of it.

    An answer has `choices`; without them a message alone is an error too.
    """
    error = value.get("error")
    if error or value.get("object") == "error":
        return in_band_error(error or value, mask)
    choices = value.get("choices")
    if choices:
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (inner := choice.get("error")):
                return in_band_error(inner, mask)
        return None
    if value.get("error_message") or value.get("error_type"):
        return in_band_error(value, mask)
    if choices is None and (isinstance(value.get("message"), str) or value.get("detail")):
        return in_band_error(value, mask)
    return None


def in_band_error(error: Any, mask: Mask) -> InBandError:
    """The typed error for whatever the endpoint put in place of one."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        text = excerpt(_text_of(error), mask, _SHOWN) or "unnamed error"
        return InBandError(text, advice=retry_advice(error))
    code = _code(error)
    text = excerpt(_message(error), mask, _SHOWN)
    status = f"HTTP {code}: " if isinstance(code, int) else ""
    return InBandError(
        f"{status}{text}", code=code, retryable=_is_retryable(code), advice=retry_advice(error)
    )


def _message(error: dict[str, Any]) -> str:
    for name in _TEXT_FIELDS:
        if found := error.get(name):
            return _text_of(found)
    return dump(error)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def _code(error: dict[str, Any]) -> str | int | None:
    """The status if there is one; the word instead if it says that credit is missing."""
    found = [error[name] for name in _WORD_FIELDS if isinstance(error.get(name), str | int)]
    words = [word for word in found if isinstance(word, str) and word and not word.isdigit()]
    for word in words:
        if any(part in word.lower() for part in _MONEY_WORDS):
            return word
    for number in found:
        if str(number) in _STATUSES:
            return int(number)
    return words[0] if words else None


def _is_retryable(code: str | int | None) -> bool:
    """Return true if a retry may help; an unspecified error is taken for a temporary one."""
    if isinstance(code, int):
        return code in RETRYABLE
    return code is None or not any(part in code.lower() for part in _FINAL_WORDS)


def plain_text(value: Any) -> str | None:
    """The text of a chunk that holds only a piece of text and an open end, else `None`."""
    try:
        choices = value["choices"]
        choice = choices[0]
        end = choice["finish_reason"]
        delta = choice["delta"]
        text = delta["content"]
    except (KeyError, TypeError, IndexError):
        return None
    if type(text) is not str or len(choices) > 1:
        return None
    if len(delta) > 1 + ("role" in delta) and any(
        value for name, value in delta.items() if name not in {"role", "content"}
    ):
        return None
    more = end or choice.get("index") or choice.get("error")
    more = more or value.get("usage") or value.get("error") or value.get("x_groq")
    return None if more else text


NOT_AN_ANSWER: Final = "not a chat completion: "
_MOST: Final = 4096
# The standard says to ignore unknown fields, but not errors.
_UNKNOWN_FIELD: Final = lazy_pattern(rb"(?!error:|fatal:)[a-z][a-z0-9_-]*:")
_FIELDS: Final = (b"data", b"event", b"id", b"retry")


class StrayLines:
    """Collects lines up to a size, and reports at the end what they were."""

    __slots__ = ("_lines", "_mask", "_odd", "_size")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._lines: list[bytes] = []
        self._odd = False
        self._size = 0

    def add(self, line: bytes) -> None:
        self._odd = self._odd or not _UNKNOWN_FIELD.match(line)
        if self._size < _MOST:
            self._lines.append(line[:_MOST])
            self._size += len(line)

    def error(self, *, begun: bool) -> StreamError | None:
        """The error for the lines; `begun` says that there was an answer around them."""
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
    return UnreadableStreamError(f"{NOT_AN_ANSWER}{excerpt(text, mask)}", retryable=False)


_BOM: Final = b"\xef\xbb\xbf"
_PINGS: Final = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_PINGED: Final = ("ping_as_data", "pings come framed as data")


class ChatDecoder:
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments. `finish_optional` accepts an answer whose finish reason stays null.
    `mask` takes the secrets out of what errors and notices
    show of an answer, before it is cut.
    """

    __slots__ = (
        "_answer", "_begun", "_body", "_closing", "_head", "_kind", "_mask", "_reader", "_stray",
        "done", "progress",
    )  # fmt: skip

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,
        mask: Mask = str,
        finish_optional: bool = False,
    ) -> None:
        self.progress = 0
        """How often something of the answer has come: a text, a call, counts or the end."""
        self.done = False
        """Whether `[DONE]` was seen: what follows is not worth waiting for."""
        self._mask = mask
        tools = frozenset(known_tools)
        self._answer = Answer(Setting(place, tools, required or {}, mask, finish_optional))
        self._reader = SseReader()
        self._stray = StrayLines(mask)
        self._begun = False
        self._kind: Literal["unknown", "events", "json"] = "unknown"
        self._closing = False
        self._head = b""
        self._body = bytearray()

    @property
    def complete(self) -> bool:
        """True if the answer is complete, so that the end of the connection is no loss."""
        return self.done or self._answer.over

    @property
    def counted(self) -> bool:
        return bool(self._answer.first.usage)

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas in a piece of the body, with text merged.

        Raises:
            StreamError: the endpoint reports an error, or sends something other than an answer.
        """
        if self.done:
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
        return self._answer.speech.take()

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
            return last_deltas(self._answer, done=self.done)
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
        """Process events; nearly all are a piece of text without a name."""
        first, speech = self._answer.first, self._answer.speech
        for data, event in frames:
            if event is not None or (value := _parse_value(data)) is None:
                self._take_odd(data, event)
                if self.done:
                    return
            elif (text := plain_text(value)) is None:
                self._take_value(value)
            else:
                self.progress += bool(text)
                first.has_finish_key = True
                if speech.thoughts:
                    speech.settle()
                speech.texts.append(text)

    def _take_value(self, value: Any) -> None:
        if value == DONE:
            self.done = True
        elif isinstance(value, dict):
            if error := find_error(value, self._mask):
                raise error
            self._begun = self._begun or "choices" in value or "usage" in value
            self.progress += self._answer.take(value)
        elif value is None:
            self._answer.notice(*_PINGED)
        elif isinstance(value, list):  # Gemini wraps an error in one
            for inner in value:
                self._take_value(inner)
        else:
            self._refuse(f"an event is no object: {excerpt(str(value), self._mask)}")

    def _take_odd(self, data: bytes, event: bytes | None) -> None:
        """Process an event that is named, or is not one JSON value."""
        if event is UNFRAMED:
            self._take_stray(data)
            return
        text = data.decode("utf-8", "replace").strip()
        if event == b"error":
            raise in_band_error(_parse_value(data) or text, self._mask)
        if not text or event in _PINGS:
            return
        if text.startswith(":"):
            self._answer.notice("comment_as_data", "comments come framed as data")
            return
        if text.lower().encode() in _PINGS:
            self._answer.notice(*_PINGED)
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
            self._answer.notice("unframed_text", "text without a frame after the answer")
        else:
            self._stray.add(line)

    def _refuse(self, message: str) -> None:
        """Unreadable data is an error, but only a notice after the answer."""
        if not self.complete:
            raise UnreadableStreamError(message)
        self._answer.notice("unreadable_event", message)

    def _end_events(self) -> None:
        if not self.done:
            self._take_frames(self._reader.flush_frames())
        if not self.done:
            self._closing = True
            try:
                self._take_frames(self._reader.last_frames())
            except UnreadableStreamError:
                raise IncompleteStreamError("the stream ended inside an event") from None
        begun = self._begun or self._answer.first.has_finish_key
        if error := self._stray.error(begun=begun):
            raise error
        if not (self.done or begun):
            raise EmptyStreamError("the answer is empty")

    def _end_json(self, text: str) -> None:
        """Read a body that is one completion, whatever follows it."""
        try:
            for value in json_values(text):
                self._take_value(value)
        except BrokenJsonError as error:
            if self.complete or self._answer.whole:
                self._answer.notice("unframed_text", "text without a frame after the answer")
            elif is_cut(error.rest):
                raise IncompleteStreamError("the answer ended inside its JSON") from None
            else:
                raise not_a_stream(text, self._mask) from None
        if not (self._answer.begun or self.done):
            raise not_a_stream(text, self._mask)


def _parse_value(data: bytes) -> Any:
    """The one JSON value that the data is, else `None`."""
    try:
        text = data.decode()
        value, end = raw_decode(text)
    except ValueError:
        return None
    return value if end == len(text) else None
