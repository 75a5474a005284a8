"""`aish`, killed at a named place: the only way to a failpoint, the program itself has none.

    python failpoint_driver.py WHERE:WHAT:N ARGUMENTS…

The N-th record of the journal of type WHAT (`item.finished`), or the N-th line of the results of
items (`results`), is the place; WHERE is `before` it is written, when it is half written (`torn`),
`after` it is written, and `unsynced` or `synced`: before or after the next sync to the disk. The
process kills itself with SIGKILL there.

What touches the disk is looked up in `os` when `aish` is imported, which it may be already.
"""

import os
import signal
import sys

_write, _sync = os.write, os.fdatasync


class Failpoint:
    """Counts the records of one type, and dies at one of them."""

    def __init__(self, text: str) -> None:
        self._where, self._what, number = text.split(":")
        self._left = int(number)
        self._written = False

    def write(self, descriptor: int, data: bytes) -> int:
        """`os.write`."""
        due = self._is_due(data)
        if due:
            self._die("before")
            if self._where == "torn":
                _write(descriptor, data[: len(data) // 2])
                self._die("torn")
        written = _write(descriptor, data)
        if due:
            self._die("after")
            self._written = True
        return written

    def sync(self, descriptor: int) -> None:
        """`os.fdatasync`."""
        if self._written:
            self._die("unsynced")
        _sync(descriptor)
        if self._written:
            self._die("synced")

    def _is_due(self, data: bytes | memoryview) -> bool:
        # Other files are written in views of their bytes.
        if not isinstance(data, bytes) or not data.startswith(b'{"v":1,"seq":'):
            return False
        of_journal = b',"crc":"' in data[-24:]
        wanted = f'"type":"{self._what}"'.encode() in data[:120] if of_journal else False
        if wanted or (not of_journal and self._what == "results"):
            self._left -= 1
            return self._left == 0
        return False

    def _die(self, here: str) -> None:
        if self._where == here:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    failpoint = Failpoint(sys.argv.pop(1))
    os.write, os.fdatasync = failpoint.write, failpoint.sync  # type: ignore[assignment]  # the parameters have other names

    from aish.__main__ import main as aish
    from aish.system import durable

    durable.write_whole.__defaults__ = (failpoint.write,)
    for name, function in (("write", failpoint.write), ("sync", failpoint.sync)):
        object.__setattr__(durable.THE_DISK, name, function)  # ruff: ignore[unnecessary-dunder-call] - it is frozen
    aish()


if __name__ == "__main__":
    main()
