"""Where commands of a session speak at a terminal, beside what its events draw there."""

from collections.abc import Callable, Sequence

from aish.core.errors import AishError
from aish.core.text import for_line, for_terminal
from aish.shell.columns import columns, fold

_NARROWEST = 20


class TerminalOut:
    """`session.Out` at a terminal, between what events draw there."""

    gone = False
    """A terminal that goes away ends the session by itself."""

    def __init__(
        self,
        line: Callable[[str], None],
        paint: Callable[[str], str],
        width: Callable[[], int],
        mask: Callable[[str], str],
    ) -> None:
        self._line = line
        self._paint = paint
        self._width = width
        self._mask = mask

    def show(self, text: str) -> None:
        """Line by line, folded between words."""
        for line in self._mask(text).rstrip("\n").split("\n"):
            for part in fold(for_terminal(line), self._room()):
                self._line(part)

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """In columns that fit."""
        cells = [[for_line(self._mask(cell)) for cell in row] for row in rows]
        for line in columns(cells, self._room()):
            self._line(line)

    def error(self, error: AishError) -> None:
        """In red, with its hint."""
        for line in for_terminal(self._mask(f"error: {error}")).split("\n"):
            for part in fold(line, self._room()):
                self._line(self._paint(part))
        if error.hint:
            self.show(f"  hint: {error.hint}")

    def _room(self) -> int:
        # The last column stays free: terminals differ in what they do there.
        return max(self._width() - 1, _NARROWEST)
