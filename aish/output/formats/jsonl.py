"""`--format jsonl`: the event stream on stdout, one flushed line per event."""

from typing import BinaryIO

from aish.core.events import Stamped, to_line


class JsonLines:
    """Writes each event to a binary stream."""

    name = "the event stream"
    deltas = True

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def __call__(self, stamped: Stamped) -> None:
        self._out.write(to_line(stamped))
        self._out.flush()

    def close(self) -> None:
        """Nothing is buffered."""
