"""What the transport needs of a decoder: bytes in, deltas out."""

from typing import Protocol

from aish.core.deltas import Delta


class Reader(Protocol):
    """Makes deltas of the bytes of an answer: `wire.chat_decode.ChatDecoder`."""

    @property
    def progress(self) -> int:
        """Changes when the answer grows."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer is over, so that a broken connection is no loss."""
        ...

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take some bytes."""
        ...

    def close(self) -> list[Delta]:
        """Take the end of the body."""
        ...
