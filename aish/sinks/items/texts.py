"""`--format text` of a run that ends with items: the text of each, in the order of the items."""

from collections.abc import Callable
from typing import BinaryIO

from aish.core.events import RunFinished, Stamped
from aish.core.text import counted, safe_utf8
from aish.sinks.items.file import ItemsFile, Row
from aish.sinks.json_text import json_text
from aish.sinks.text import DATA, Manner


class ItemTexts:
    """Writes the texts when the run has ended, each with a line end, those that failed aside.

    Comes after the results file, which it reads. `say` tells a person how many were left out.
    """

    name = "the answer"
    deltas = False

    def __init__(
        self,
        out: BinaryIO,
        items: ItemsFile,
        step: str,
        say: Callable[[str], None],
        manner: Manner = DATA,
        *,
        structured: bool = False,
    ) -> None:
        self._out = out
        self._items = items
        self._step = step
        self._say = say
        self._manner = manner
        self._structured = structured

    def __call__(self, stamped: Stamped) -> None:
        """Write when the run has ended."""
        if not isinstance(stamped.event, RunFinished):
            return
        left_out = 0
        for row in self._items.rows(self._step):
            if row["status"] == "ok":
                self._put(self._text(row))
            else:
                left_out += 1
        self._out.flush()
        if left_out:
            are = "is" if left_out == 1 else "are"
            self._say(f"note: {counted(left_out, 'item')} without a result {are} left out")

    def close(self) -> None:
        """Nothing is held back."""

    def _put(self, text: str) -> None:
        whole = text if text.endswith("\n") else f"{text}\n"
        self._out.write(safe_utf8(self._manner.clean(whole)).encode())

    def _text(self, row: Row) -> str:
        """An answer in a schema is its value, not the words around it."""
        if self._structured or (row["text"] is None and row["output"] is not None):
            return json_text(row["output"], spaced=True)
        return row["text"] or ""
