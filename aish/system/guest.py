"""Tells whether aish runs inside a host program that only calls it.

In its own process aish handles signals, and a replay forbids network access in every thread. A host
program that runs a pipeline (`aish.api`) keeps its signals and timers, and its other activities.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_guest: ContextVar[bool] = ContextVar("guest", default=False)


@contextmanager
def as_guest() -> Generator[None]:
    """Within the block, and in tasks started from it, the process belongs to a host program."""
    before = _guest.set(True)
    try:
        yield
    finally:
        _guest.reset(before)


def is_guest() -> bool:
    return _guest.get()
