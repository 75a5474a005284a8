"""What a person at a terminal sees of `foreach` steps: a display while they run, then a summary.

The live display of `foreach` steps, drawn with rich: batches in, lines for a screen out (B4).

Only the drawing is rich's. Where the lines go, and that they are gone before anything else is
written, is up to `screen`, which has the one terminal to itself. Imported by a run that has a
`foreach` step and a terminal that can be moved on, and by nothing else.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aish.core.events import (
    Event,
    ItemFinished,
    ItemStarted,
    Notice,
    StepFinished,
    StepStarted,
)
from aish.core.text import for_line
from aish.output.progress.counts import (
    Batch,
    Batches,
    closing_parts,
    count_text,
    folded,
    pace_parts,
    spent_parts,
    trouble_parts,
)
from aish.output.progress.log import ItemLog
from aish.output.screen import Screen
from aish.output.status import seconds_text
from aish.output.style import Look, cells


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


_LONGEST_KEY = 24
_LONGEST_NAME = 30
_ROOM_FOR_A_BAR = 50
_WORTH_NAMING = 2.0
_INDENT = "  "


class Paper(io.StringIO):
    """What rich draws on; it asks its encoding which characters it may use."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only is enough for rich
        """`utf-8` or `ascii`."""
        return self._encoding


def board_lines(
    batches: Iterable[Batch], look: Look, width: int, height: int, now: float
) -> Sequence[str]:
    """The display in at most `height` lines of less than `width` cells; the first one is empty."""
    blocks = [list(_block(batch, look, width - 1, now)) for batch in batches]
    while sum(map(len, blocks)) >= height and any(len(block) > 1 for block in blocks):
        # The last lines of a block matter least, its first one most.
        max(blocks, key=len).pop()
    lines = [line for block in blocks for line in block]
    return ["", *_drawn(lines[: max(1, height - 1)], look, width - 1)]


def _drawn(lines: Sequence[RenderableType], look: Look, width: int) -> Sequence[str]:
    encoding = "utf-8" if look.glyphs.cut == "…" else "ascii"
    paper = Paper(encoding)
    console = Console(
        file=paper,
        width=width,
        color_system="standard" if look.color else None,
        force_terminal=True,
        no_color=not look.color,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    for line in lines:
        console.print(line, overflow="crop", no_wrap=True, crop=True)
    return paper.getvalue().rstrip("\n").split("\n") if lines else ()


def _block(batch: Batch, look: Look, width: int, now: float) -> Iterator[RenderableType]:
    yield _head(batch, look, width)
    flying = len(batch.in_flight)
    pace = [*pace_parts(batch, now), f"{flying:,} in flight", *trouble_parts(batch)]
    for line in folded([*pace, *spent_parts(batch)], look, width):
        yield Text(line, "dim")
    if batch.limit is not None:
        yield Text(
            look.fit(for_line(f"{_INDENT}{look.glyphs.warning} {batch.limit}"), width), "yellow"
        )
    slow = [
        f"{look.fit(for_line(key), _LONGEST_KEY)} {seconds_text(age)}"
        for key, age in batch.slowest(now)
        if age >= _WORTH_NAMING
    ]
    if slow:
        yield Text(look.fit(f"{_INDENT}slowest: {', '.join(slow)}", width), "dim")
    for message, cause in reversed(list(batch.last_causes.items())):
        is_counted = cause.count > 1 and message in batch.causes
        times = f" ({cause.count:,} times)" if is_counted else ""
        said = for_line(f"{_INDENT}{look.glyphs.no} {cause.last}{times}: {message}")
        yield Text(look.fit(said, width), "red")


def _head(batch: Batch, look: Look, width: int) -> RenderableType:
    """Name, bar, count and share; no bar where there is no room or no end to it."""
    longest = min(_LONGEST_NAME, max(8, width // 3))
    name = Text(look.fit(for_line(f"{look.glyphs.step} {batch.step}"), longest), "bold")
    count = Text(count_text(batch))
    if batch.total is None:
        return Text.assemble(name, "  ", count, " done")
    share = Text(f"{100 * batch.over // max(1, batch.total):3d} %")
    if width < _ROOM_FOR_A_BAR:
        return Text.assemble(name, "  ", count, " ", share)
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(width=cells(name.plain))
    line.add_column(ratio=1)
    line.add_column(width=cells(count.plain), justify="right")
    line.add_column(width=cells(share.plain), justify="right")
    bar = ProgressBar(
        total=max(1, batch.total),
        completed=min(batch.over, batch.total),
        complete_style="cyan",
        finished_style="green",
    )
    line.add_row(name, bar, count, share)
    return line
