"""`aish` on a clock that stands still until the scripted endpoint moves it, with fixed ids.

    python picture_driver.py CLOCK ARGUMENTS…

CLOCK is a file with the time as a double. So the same run has the same times on every machine;
what waits for a time-out, in asyncio, still uses the real clock.
"""

import hashlib
import itertools
import mmap
import secrets
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Clock:
    """A time in a file, shared by all processes that open it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def now(self) -> float:
        found: float = struct.unpack("<d", self._shared[:8])[0]
        return found

    def set(self, moment: float) -> None:
        self._shared[:8] = struct.pack("<d", moment)

    def advance(self, seconds: float) -> None:
        self.set(self.now() + seconds)


def new_clock(path: Path, moment: float) -> Clock:
    path.write_bytes(struct.pack("<d", moment))
    return Clock(path)


class FixedIds:
    """Random values that are the same in each run."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def token_hex(self, size: int = 16) -> str:
        return hashlib.sha256(b"%d" % next(self._numbers)).hexdigest()[: 2 * size]

    def randbelow(self, end: int) -> int:
        return int(self.token_hex(8), 16) % end

    def choice(self, values: Sequence[Any]) -> Any:
        return values[self.randbelow(len(values))]


def main() -> None:
    clock, ids = Clock(Path(sys.argv.pop(1))), FixedIds()
    if sys.argv[1:3] == ["-m", "aish"]:  # as the interpreter is called
        del sys.argv[1:3]
    secrets.token_hex = ids.token_hex  # type: ignore[assignment]  # without its default of `None`
    secrets.choice = ids.choice  # type: ignore[assignment]  # without its type variable
    secrets.randbelow = ids.randbelow  # type: ignore[assignment]  # the parameter has another name
    time.time = clock.now  # ruff: ignore[shared-clock-mock] - for the whole program

    from aish.__main__ import main as aish
    from aish.features.testing import case, live, session
    from aish.system.clock import SystemClock

    for module in (case, live, session):
        module.monotonic = clock.now  # type: ignore[attr-defined]  # it is imported there
    SystemClock.monotonic = staticmethod(clock.now)  # type: ignore[method-assign]  # the same type
    aish()


if __name__ == "__main__":
    main()
