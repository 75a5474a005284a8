r"""A stranger's text made fit for a terminal piece by piece, as if it had come in one.

`for_terminal` looks at a character's neighbours in two cases: `\r\n` is a line's end, and the
selectors of emoji are harmless after a symbol. Where a text is cut there, the end waits.
"""

from aish.core.text import for_terminal

_SELECTORS = "\ufe0e\ufe0f"
_WAITING = f"\r{_SELECTORS}"


class Cleaner:
    """What is written piece by piece is what `for_terminal` makes of the whole."""

    def __init__(self) -> None:
        self._held = ""
        self._last = ""

    def piece(self, text: str) -> str:
        """What can be written now that `text` has come."""
        if not self._held and text.isascii() and text.isprintable():
            self._last = text[-1:] or self._last
            return text
        whole = self._held + text
        sure = whole.rstrip(_WAITING)
        self._held = whole[len(sure) :]
        if len(self._held) > 1:
            # Of several only the last one has a neighbour that is not known yet.
            sure, self._held = whole[:-1], whole[-1]
        return self._cleaned(sure)

    def rest(self) -> str:
        """What waited for more; nothing comes after it."""
        held, self._held = self._held, ""
        return self._cleaned(held)

    def _cleaned(self, text: str) -> str:
        if not text:
            return ""
        before = self._last if text[0] in _SELECTORS else ""
        self._last = text[-1]
        shown = for_terminal(before + text)
        return shown[len(for_terminal(before)) :]
