"""Lines in a stream that are none of its fields: a proxy's page, a crashed server's last words."""

import re
from typing import Final

from aish.wire.error_body import find_error
from aish.wire.errors import StreamError, UnreadableStreamError
from aish.wire.json_text import BrokenJsonError, Mask, excerpt, json_values

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
