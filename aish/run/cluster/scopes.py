"""Work that is done for somebody, and ends with them."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio


@dataclass(slots=True)
class Scopes:
    """Any number of tasks that end when there is nobody any more to do them for.

    With `shield` they end with nothing else.
    """

    shield: bool = False
    over: bool = False
    _open: set[anyio.CancelScope] = field(default_factory=set)

    @contextmanager
    def held(self) -> Generator[None]:
        """Do something for them."""
        with anyio.CancelScope(shield=self.shield) as scope:
            if self.over:
                scope.cancel()
            self._open.add(scope)
            try:
                yield
            finally:
                self._open.discard(scope)

    def cancel(self) -> None:
        """They are gone."""
        self.over = True
        for scope in tuple(self._open):
            scope.cancel()
