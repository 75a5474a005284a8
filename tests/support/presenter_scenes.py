"""A session drawn on a terminal that tests can read: what a person sees, and what was written."""

import io
import threading
from collections.abc import Iterable, Sequence

import pyte
from scripted_events import START

from aish.core.events import Event, Place, Stamped, TextDelta, ToolOutput
from aish.output.presenter import SESSION, Presenter
from aish.output.screen import Screen
from aish.output.style import Look

LINE = Place("line-1", turn=1)
RUN = Place("run-1", call="run-1-1")


class Writes(io.StringIO):
    """Keeps what was written apart, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[str] = []
        self.wrote = threading.Event()

    def write(self, text: str, /) -> int:
        self.each.append(text)
        count = super().write(text)
        self.wrote.set()
        return count


class Scene:
    """A session on a terminal of some size; frames are drawn by `tick`, or each `period`."""

    def __init__(
        self,
        width: int = 80,
        *,
        plain: bool = False,
        verbose: bool = False,
        look: Look | None = None,
        height: int = 24,
        period: float = 3600.0,
    ) -> None:
        self.size = (width, height)
        self.out = Writes()
        self.look = look or Look(animate=True, width=width)
        self.screen = Screen(self.out, self.look, lambda: 0.0, lambda: self.size, period)
        self.talk = Presenter(self.screen, SESSION, markdown=not plain, verbose=verbose)
        self._count = 0

    def take(self, *events: Event) -> "Scene":
        for event in events:
            self._count += 1
            self.talk(Stamped(self._count, START + self._count / 4, event))
        return self

    def said(self, pieces: Iterable[str], *, ticks: bool = False) -> "Scene":
        """The model says something, piece by piece; between them frames are drawn or not."""
        for piece in pieces:
            self.take(TextDelta(LINE, piece))
            if ticks:
                self.screen.tick()
        return self

    def printed(self, *pieces: str, stream: str = "stdout", ticks: bool = False) -> "Scene":
        """The command prints something."""
        for piece in pieces:
            self.take(
                ToolOutput(RUN, "shell__run", piece, "stderr" if stream == "stderr" else "stdout")
            )
            if ticks:
                self.screen.tick()
        return self

    def over(self) -> "Scene":
        self.talk.close()
        return self

    @property
    def written(self) -> str:
        return self.out.getvalue()

    def seen(self, rows: int = 400) -> str:
        """What stands on a terminal of so many rows, as a real one shows it."""
        return "\n".join(self.rows(rows)).rstrip("\n")

    def rows(self, rows: int = 400) -> Sequence[str]:
        shown = pyte.Screen(self.size[0], rows)
        shown.set_mode(pyte.modes.LNM)
        pyte.Stream(shown).feed(self.written)
        return [row.rstrip() for row in shown.display]
