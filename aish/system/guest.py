"""Whether this process is somebody else's, with a program in it that only calls us.

In our own process signals are ours, and a replay forbids every thread to reach anything. A program
that runs a pipeline (`aish.api`) keeps its signals and timers, and what else it does meanwhile.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_guest: ContextVar[bool] = ContextVar("guest", default=False)


@contextmanager
def as_guest() -> Generator[None]:
    """Within the block, and in what is started from it, the process is somebody else's."""
    before = _guest.set(True)
    try:
        yield
    finally:
        _guest.reset(before)


def is_guest() -> bool:
    """Whether it is."""
    return _guest.get()
