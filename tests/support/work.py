"""How much work a piece of code is, counted and not timed: the same on every machine, at any load.

Counted is what this thread runs in Python: lines, calls, and calls of functions written in C.
What one such function does within is not seen; `Work.text` adds up the lengths of the texts whose
methods were called, so that a search that begins anew in a growing text is.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any


class TooMuchWork(BaseException):
    """What is counted did more than it may; no `except Exception` of its own catches this."""


@dataclass(slots=True)
class Work:
    """What was done: lines of Python, and calls of C functions by their qualified names."""

    lines: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    text: int = 0

    @property
    def steps(self) -> int:
        """Lines and calls together."""
        return self.lines + self.calls.total()


def work_of(function: Callable[[], Any], most: int = 20_000_000) -> Work:
    """What `function` does in this thread.

    Raises:
        TooMuchWork: more than `most` lines; a runaway ends here and not after hours.
    """
    work = Work()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            work.lines += 1
            if work.lines > most:
                sys.settrace(None)
                raise TooMuchWork(f"over {most:,} lines, in {frame.f_code.co_qualname}")
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            work.calls[argument.__qualname__] += 1
            owner = argument.__self__
            if isinstance(owner, (str, bytes, bytearray)):
                work.text += len(owner)

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(on_call)
    sys.settrace(on_line)
    try:
        function()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return work


def main(target: str, *arguments: str) -> None:
    """Be `python -m aish ARGUMENTS`, and write the steps of its main thread to a file."""
    from aish.cli.main import run_command_line

    codes: list[int] = []
    work = work_of(lambda: codes.append(run_command_line(arguments[2:])), most=1_000_000_000)
    Path(target).write_text(str(work.steps), encoding="ascii")
    sys.exit(codes[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
