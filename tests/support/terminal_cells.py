"""A terminal just clever enough to show what our own sequences leave on it.

Understands line ends, `\\r`, cursor up, erase in line and in screen; colours are dropped. Anything
else fails the test: only these may reach a terminal (X3).
"""

import re

from aish.core.text import for_terminal
from aish.output.style import cells

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Cells:
    """What a person sees on a terminal `width` cells wide that scrolls for ever."""

    def __init__(self, width: int = 80) -> None:
        self.width = width
        self.rows: list[list[str]] = [[]]
        self.wrapped = [False]
        """Whether a row goes on in the next one."""
        self.row = 0
        self.column = 0

    def feed(self, data: str) -> None:
        """Take what a program wrote."""
        at = 0
        while at < len(data):
            if found := _SEQUENCE.match(data, at):
                self._obey(found[1], found[2])
                at = found.end()
                continue
            self._put(data[at])
            at += 1

    def resize(self, width: int, *, reflows: bool) -> None:
        """Another width; lines are folded anew, as most terminals do, or cut off."""
        self.width = width
        if not reflows:
            for row in self.rows:
                del row[width:]
            self.column = min(self.column, width)
            return
        rows, wrapped, column = self.rows, self.wrapped, self.column
        at, self.rows, self.wrapped = self.row, [[]], [False]
        self.row = self.column = 0
        here = (0, 0)
        for number, row in enumerate(rows):
            cursor = column if number == at else -1
            for place, cell in enumerate(row):
                if place == cursor:
                    here = (self.row, self.column)
                if cell:
                    self._show(cell[0], max(1, cells(cell)))
            if cursor >= len(row):
                here = (self.row, self.column)
            if not wrapped[number] and number + 1 < len(rows):
                self._down()
        self.row, self.column = here

    def text(self) -> str:
        """Everything that stands there, without the empty end."""
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip("\n")

    def _put(self, character: str) -> None:
        if character == "\n":
            self._down()
        elif character == "\r":
            self.column = 0
        else:
            assert for_terminal(character) == character, f"{character!r} reached the terminal"
            self._show(character, cells(character))

    def _show(self, character: str, size: int) -> None:
        row = self.rows[self.row]
        if size == 0 and row:
            row[-1] += character
            return
        if self.column + size > self.width:
            self.wrapped[self.row] = True
            self._down()
            row = self.rows[self.row]
        row += [" "] * (self.column - len(row))
        row[self.column : self.column + size] = [character] + [""] * (size - 1)
        self.column += size

    def _down(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.rows):
            self.rows.append([])
            self.wrapped.append(False)

    def _obey(self, numbers: str, verb: str) -> None:
        if verb == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif verb == "K":
            self._erase(0 if numbers == "2" else self.column)
        elif verb == "J" and not numbers:
            self._erase(self.column)
            del self.rows[self.row + 1 :], self.wrapped[self.row + 1 :]
        elif verb != "m":
            raise AssertionError(f"the sequence {numbers}{verb} reached the terminal")

    def _erase(self, start: int) -> None:
        """A row that is erased in part stays as long as it was, as in tmux."""
        row = self.rows[self.row]
        row[start:] = [" "] * (len(row) - start) if start else []
        self.wrapped[self.row] = False
