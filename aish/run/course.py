"""Whether a run still begins new work, and what is in flight (B14, F3)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import field
from typing import NoReturn

import anyio

from aish.core.errors import ExitCode
from aish.core.frozen import slotted
from aish.core.text import counted

GRACE_SECONDS = 10.0
"""How long items in flight may go on after a Ctrl-C (B14)."""


@slotted
class Course:
    """Shared by all units of work of a run: the plain steps and the items.

    `why` is empty while the run goes on; then it says what ended it, for what was not begun.
    `apart` is that of an item's sub-pipeline: what is in flight goes on, and the item is.
    """

    why: str = ""
    items: int = 0
    plain: set[anyio.CancelScope] = field(default_factory=set)
    above: "Course | None" = None
    apart: bool = False

    def child(self, *, apart: bool) -> "Course":
        """That of a sub-pipeline, which may stop while the rest of the run goes on."""
        return Course(above=self, apart=apart)

    @property
    def stopped(self) -> bool:
        """Whether nothing new is begun."""
        return bool(self.reason)

    @property
    def reason(self) -> str:
        """What ended the run, or this part of it; empty while it goes on."""
        return self.why or ("" if self.above is None or self.apart else self.above.reason)

    def stop(self, why: str) -> None:
        """Begin nothing new; what is in flight goes on."""
        self.why = self.why or why

    @contextmanager
    def plain_unit(self) -> Generator[None]:
        """A step in flight: a signal ends it at once, unless it is a part of an item.

        Raises:
            CutOffError: a signal has ended it.
        """
        if self.in_item:
            yield
            return
        root = self.root()
        with anyio.CancelScope() as scope:
            root.plain.add(scope)
            try:
                yield
            finally:
                root.plain.discard(scope)
        if scope.cancelled_caught:
            raise CutOffError

    @contextmanager
    def item_unit(self) -> Generator[None]:
        """An item in flight: after a Ctrl-C it has some seconds left."""
        root = self.root()
        root.items += 1
        try:
            yield
        finally:
            root.items -= 1

    def root(self) -> "Course":
        """That of the whole run."""
        return self if self.above is None else self.above.root()

    def check_whole(self, *, ended: bool) -> None:
        """See that a sub-pipeline came to its end: all of it has `ended`, or it stopped itself.

        Raises:
            CutOffError: the run around it was stopped before that.
        """
        if not ended and not self.why and self.stopped:
            raise CutOffError

    @property
    def in_item(self) -> bool:
        """Whether all of it is a part of one item."""
        return self.apart or (self.above is not None and self.above.in_item)

    def interrupt(self, whole: anyio.CancelScope, code: ExitCode) -> None:
        """A signal came: end `whole` in the way that is right for it."""
        self.stop("the run was interrupted")
        if code is not ExitCode.INTERRUPTED or not self.items:
            whole.cancel()
            return
        whole.deadline = min(whole.deadline, anyio.current_time() + GRACE_SECONDS)
        for scope in tuple(self.plain):
            scope.cancel()


async def until_cancelled() -> NoReturn:
    """Wait for the cancellation of this task, whose template a signal or a deadline has stopped.

    Raises:
        RuntimeError: it does not come.
    """
    await anyio.sleep(GRACE_SECONDS * 2)
    raise RuntimeError("a template was stopped, and its task goes on")


class CutOffError(Exception):
    """A step was ended by a signal while the items of another one go on."""


def last_words(items: int) -> str:
    """What a person is told who pressed Ctrl-C once."""
    has = "has" if items == 1 else "have"
    under_way = f"{counted(items, 'item')} under way {has} {GRACE_SECONDS:g} s to end"
    return f"nothing new is begun, {under_way}; Ctrl-C again leaves at once"
