"""Bytes into lines that end at LF, none longer than a cap (M10, X6). No I/O."""

MAX_LINE = 32 * 1024 * 1024


class Lines:
    """Collects pieces until a line is whole; a line over the cap is dropped and counted."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that a piece completes, without their ends; empty ones are none."""
        *whole, rest = chunk.split(b"\n")
        found = []
        for line in whole:
            self._keep(line)
            full = b"".join(self._parts)
            if self._size > self._limit:
                self.dropped += 1
            elif full.strip():
                found.append(full)
            self._parts, self._size = [], 0
        self._keep(rest)
        return found

    def _keep(self, part: bytes) -> None:
        """Remember a piece of a line, as long as the line is not too long."""
        self._size += len(part)
        if self._size > self._limit:
            self._parts = []
        elif part:
            self._parts.append(part)
