"""The abilities and settings of a terminal: colour, movement, width, characters."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TextIO

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.core.text import for_line

Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]

_SGR: Mapping[Style, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
_STYLES = lazy_pattern(r"\x1b\[[0-9;]*m")
# Terminals that do not refold their text: xterm and screen are recognized by a variable, for many
# others use the same name.
_LEAVING = frozenset({"linux", "screen", "st", "vt100", "vt220"})
_OF_LEAVING = ("XTERM_VERSION", "STY")
_NARROWEST = 20
_LONGEST_WIDTH = 5
_USUAL = 80


@frozen
class Glyphs:
    """The characters that frames consist of; one set for ASCII-only terminals."""

    step: str = "●"
    skipped: str = "○"
    call: str = "▸"
    answer: str = "◂"
    bar: str = "│"
    end: str = "╰"
    rule: str = "─"
    no: str = "✗"
    warning: str = "!"
    dot: str = "·"
    cut: str = "…"
    arrow: str = "→"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


ASCII = Glyphs("*", "o", ">", "<", "|", "`", "-", "x", "!", "-", "...", "->", "|/-\\")


@frozen
class Look:
    """The way to draw on one terminal.

    `follows`: its width may change while it is drawn on; `reflows`: it then refolds its text, as
    most terminals do.
    """

    color: bool = False
    animate: bool = False
    width: int = _USUAL
    glyphs: Glyphs = Glyphs()
    follows: bool = False
    reflows: bool = True

    def paint(self, style: Style, text: str) -> str:
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.color else text

    def row(self, text: str, style: Style | None = None) -> str:
        """Any text on one line, at most as wide as the terminal."""
        line = self.fit(for_line(text), self.width)
        return self.paint(style, line) if style else line

    def fit(self, text: str, width: int) -> str:
        """Cut a line to `width` cells; an ellipsis marks the cut."""
        if cells(text) <= width:
            return text
        room = max(0, width - len(self.glyphs.cut))
        used = 0
        for index, character in enumerate(text):
            used += cells(character)
            if used > room:
                return text[:index] + self.glyphs.cut
        return text


def wants_console(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return true if people watch (`Console`), false for a log (`Plain`)."""
    if environ.get("CI", "").lower() in {"1", "true", "yes"}:
        return False
    return is_terminal or _forces_color(environ)


def look_of(out: TextIO, environ: Mapping[str, str]) -> Look:
    """The look for a text stream; `NO_COLOR`, `FORCE_COLOR`, `TERM`, `COLUMNS` are honoured."""
    is_terminal = out.isatty()
    dumb = environ.get("TERM", "") in {"dumb", ""} and is_terminal
    color = _forces_color(environ) or (is_terminal and not dumb)
    return Look(
        color=color and not environ.get("NO_COLOR"),
        animate=is_terminal and not dumb,
        width=_width(out, environ, is_terminal=is_terminal),
        glyphs=Glyphs() if (out.encoding or "").lower().startswith("utf") else ASCII,
        follows=is_terminal and not environ.get("COLUMNS"),
        reflows=_reflows(environ),
    )


def cells(text: str) -> int:
    """The number of columns of a text without control characters."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def rows_taken(line: str, width: int) -> int:
    """The number of rows that a line occupies on a terminal of the given width."""
    text = without_styles(line)
    if text.isascii():
        return max(1, -(-len(text) // width))
    rows, used = 1, 0
    for character in text:
        size = _cell(character)
        rows, used = (rows + 1, size) if used + size > width else (rows, used + size)
    return rows


def without_styles(text: str) -> str:
    return _STYLES.sub("", text) if "\x1b" in text else text


@lru_cache(maxsize=1024)
def _cell(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _reflows(environ: Mapping[str, str]) -> bool:
    """False for those that cut or keep lines when they are narrowed."""
    if environ.get("TMUX"):
        return True
    named = environ.get("TERM", "").partition("-")[0]
    return named not in _LEAVING and not any(environ.get(name) for name in _OF_LEAVING)


def _forces_color(environ: Mapping[str, str]) -> bool:
    return environ.get("FORCE_COLOR", "") not in {"", "0", "false"}


def _width(out: TextIO, environ: Mapping[str, str], *, is_terminal: bool) -> int:
    named = environ.get("COLUMNS", "")
    if named.isascii() and named.isdigit() and len(named) <= _LONGEST_WIDTH and int(named) > 0:
        return max(_NARROWEST, int(named))
    try:
        columns = os.get_terminal_size(out.fileno()).columns if is_terminal else 0
    except (OSError, ValueError):
        columns = 0
    return max(_NARROWEST, columns or _USUAL)
