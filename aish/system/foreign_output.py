"""Standard output while code of other distributions runs: it is ours, and theirs goes to stderr.

Only what runs in the context of that code is redirected: its tasks, and the threads that asyncio or
anyio start for it. Whoever prints at the same moment prints to stdout.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, cast

_IS_FOREIGN: ContextVar[bool] = ContextVar("is_foreign", default=False)


class _SharedStdout:
    """`sys.stdout`, once such code has run."""

    def __init__(self, own: TextIO) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _IS_FOREIGN.get() else self._own, name)


@contextmanager
def foreign_output() -> Generator[None]:
    """Let what is printed in this block, and by tasks that begin in it, go to stderr."""
    if sys.stdout is not None and not isinstance(sys.stdout, _SharedStdout):
        sys.stdout = cast("TextIO", _SharedStdout(sys.stdout))
    token = _IS_FOREIGN.set(True)
    try:
        yield
    finally:
        _IS_FOREIGN.reset(token)


@contextmanager
def own_output() -> Generator[None]:
    """Let what is printed in this block go where it would go without such code."""
    token = _IS_FOREIGN.set(False)
    try:
        yield
    finally:
        _IS_FOREIGN.reset(token)
