"""The live display of `foreach` steps, drawn with rich: batches in, lines for a screen out.

Only the drawing is rich's. `screen`, which controls the terminal, decides where the lines are
written and removes them before any other output. Imported only by a run with a `foreach` step on a
terminal that supports cursor movement.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aish.core.text import for_line
from aish.output.progress import Batch, count_text, pace_parts, trouble_parts, usage_parts
from aish.output.rows import parts_in_rows
from aish.output.status import seconds_text
from aish.output.style import Look, cells

_LONGEST_KEY = 24
_LONGEST_NAME = 30
_ROOM_FOR_A_BAR = 50
_WORTH_NAMING = 2.0
_INDENT = "  "


class Paper(io.StringIO):
    """The file rich draws on; its encoding decides which characters rich may use."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only is enough for rich
        """`utf-8` or `ascii`."""
        return self._encoding


def panel_lines(
    batches: Iterable[Batch], look: Look, width: int, height: int, now: float
) -> Sequence[str]:
    """The display in at most `height` lines of less than `width` cells; the first one is empty."""
    blocks = [list(_block(batch, look, width - 1, now)) for batch in batches]
    while sum(map(len, blocks)) >= height and any(len(block) > 1 for block in blocks):
        # The last lines of a block matter least, its first one most.
        max(blocks, key=len).pop()
    lines = [line for block in blocks for line in block]
    return ["", *_draw(lines[: max(1, height - 1)], look, width - 1)]


def _draw(lines: Sequence[RenderableType], look: Look, width: int) -> Sequence[str]:
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
    for row in parts_in_rows([*pace, *usage_parts(batch)], look.glyphs.dot, width, _INDENT):
        yield Text(look.fit(row, width), "dim")
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
        text = for_line(f"{_INDENT}{look.glyphs.no} {cause.last}{times}: {message}")
        yield Text(look.fit(text, width), "red")


def _head(batch: Batch, look: Look, width: int) -> RenderableType:
    """Name, bar, count and share; no bar without space or a known total."""
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
