"""What a person at a terminal sees of `foreach` steps: a display while they run, then a summary."""

from collections.abc import Iterable, Sequence

from aish.core.events import (
    Event,
    ItemFinished,
    ItemStarted,
    Notice,
    StepFinished,
    StepStarted,
)
from aish.core.text import for_line
from aish.sinks.progress.batch import Batch, closing_parts, folded
from aish.sinks.progress.batches import Batches
from aish.sinks.progress.log import ItemLog
from aish.sinks.screen import Screen


class ItemDisplay:
    """Counts what happens in items, and has the screen show it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._look = screen.look
        self._batches = Batches()
        self._log: ItemLog | None = None if screen.look.animate else ItemLog()

    @property
    def are_shown(self) -> bool:
        """Whether any step has items that run now."""
        return bool(self._batches.running)

    def step_started(self, event: StepStarted) -> None:
        """A step begins, with items or without."""
        self._batches.step_started(event, self._screen.now())

    def take(self, event: Event) -> None:
        """Something happens to an item, or in it."""
        match event:
            case ItemStarted():
                self._item_started(event)
            case ItemFinished():
                batch = self._batches.of(event.place)
                if batch is not None and batch.step == event.place.step:
                    now = self._screen.now()
                    failure = batch.finish(event, now)
                    if self._log is not None:
                        self._lines(self._log.finished(batch, failure, now))
            case _:
                batch = self._batches.of(event.place)
                if batch is not None and self._batches.counted(batch, event):
                    self._notice(event)

    def step_finished(self, event: StepFinished) -> None:
        """The step is over: its summary stays."""
        batch = self._batches.ended(event.place.step)
        if batch is None:
            return
        if not self._batches.running:
            self._screen.pin(None)
        self._screen.line()
        name = self._look.fit(for_line(f"{self._look.glyphs.step} {batch.step}"), self._look.width)
        self._screen.line(self._look.paint("bold", name))
        for line in folded(closing_parts(batch, event.seconds), self._look, self._look.width):
            self._screen.line(line)
        if self._log is None:
            self._failures(batch)
        for code, count in self._batches.untold(batch):
            if code != "throttled":
                self._screen.line(
                    self._look.paint("dim", for_line(f"  {count:,} more of `{code}`"))
                )

    def _failures(self, batch: Batch) -> None:
        for message, cause in batch.causes.items():
            others = "" if cause.count == 1 else f" and {cause.count - 1:,} more"
            mark = for_line(f"  {self._look.glyphs.no} {cause.first}{others}: {message}")
            self._screen.line(self._look.paint("red", self._look.fit(mark, self._look.width)))
        more = batch.failed - sum(cause.count for cause in batch.causes.values())
        if more > 0:
            self._screen.line(f"  {self._look.glyphs.cut} and {more:,} more failed")

    def _item_started(self, event: ItemStarted) -> None:
        is_first = not self._batches.running
        batch = self._batches.item_started(event, self._screen.now())
        if batch is None:
            return
        if is_first:
            self._screen.pin(self._drawn)
        if self._log is not None:
            self._lines(self._log.began(batch, self._screen.now()))

    def _drawn(self, width: int, height: int) -> Sequence[str]:
        # By the thread that draws: to import rich takes as long as some requests do.
        from aish.sinks.progress.board import board_lines

        batches: list[Batch] = list(self._batches.running.values())
        return board_lines(batches, self._look, width, height, self._screen.now())

    def _notice(self, event: Event) -> None:
        if isinstance(event, Notice) and (self._log is not None or event.code != "throttled"):
            where = f"{event.place.step} {event.place.item}"
            said = for_line(f"{self._look.glyphs.warning} {where}: {event.text}")
            self._screen.line(self._look.paint("yellow", self._look.fit(said, self._look.width)))

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._screen.line(for_line(line))
