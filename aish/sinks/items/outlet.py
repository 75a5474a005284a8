"""`-o results.csv`: the results of a step's items, written when the run has come through them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from aish.core.errors import ExitCode, UsageError
from aish.core.events import Place, RunFinished, Stamped, StepFinished
from aish.sinks.items.file import ItemsFile
from aish.sinks.items.table import WRITERS, Raw
from aish.system.files import atomic_pieces

# The items are not through: what there is would take the place of something complete.
_CUT_OFF = frozenset(
    {ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.INTERNAL, ExitCode.BUDGET, ExitCode.USAGE}
)


def came_through(end: StepFinished) -> bool:
    """Whether a step over items came to the last of them, however these ended."""
    code = None if end.error is None else end.error.code
    return code != "run_ended" if end.status == "skipped" else code in {None, "items"}


def write_table(items: ItemsFile, step: str, path: Path, raw: Raw | None = None) -> None:
    """Write a step's rows to a file, whole or not at all.

    Cells that are not `raw` are guarded against spreadsheets: those that did not come with the
    input, if nothing else is said.

    Raises:
        OSError: it cannot be written.
    """
    writer = WRITERS[path.suffix.lower()]
    known = items.given(step) if raw is None else raw
    atomic_pieces(path, writer(partial(items.rows, step), known), shared=True)


def step_of(steps: Sequence[str], wanted: str | None, where: str | None = None) -> str:
    """Which of the steps that have items is meant: the only one, or the one that is `wanted`.

    Raises:
        UsageError: there is no such step, or several and none is named.
    """
    names = ", ".join(f"`{name}`" for name in steps) or "none"
    if wanted is not None:
        if wanted in steps:
            return wanted
        said = f"no step `{wanted}` has items"
        raise UsageError(said, where=f"--step {wanted}", hint=f"steps that have: {names}")
    if not steps:
        raise UsageError("there are no items", where=where)
    if len(steps) > 1:
        said = f"several steps have items: {names}"
        raise UsageError(said, where=where, hint="`--step ID` says which are meant")
    return steps[0]


class ItemsOutlet:
    """Writes one step's rows to a file, whole or not at all, by the ending of its name.

    Comes after the results file, which it reads. `say` tells a person why nothing was written, and
    the command that writes the items of a run that was cut off, `partly`.
    """

    deltas = False

    def __init__(
        self,
        items: ItemsFile,
        step: str,
        path: Path,
        say: Callable[[str], None],
        raw: Raw | None = None,
        partly: str | None = None,
    ) -> None:
        self.name = str(path)
        self._items = items
        self._step = step
        self._path = path
        self._say = say
        self._raw = raw
        self._partly = partly
        # A step that an earlier part of the run has done is not told of again.
        self._through = True

    def __call__(self, stamped: Stamped) -> None:
        """Write when the run has ended."""
        event = stamped.event
        if isinstance(event, StepFinished) and event.place == Place(self._step):
            self._through = came_through(event)
        if not isinstance(event, RunFinished):
            return
        if event.exit.code in _CUT_OFF or not self._through:
            self._say(f"note: `{self._path}` is not written: the items are not all through")
            if self._partly is not None:
                self._say(f"hint: `{self._partly}` writes those that have ended")
            return
        if self._items.broken:
            self._say(f"note: `{self._path}` is not written: the results are not all kept")
            return
        write_table(self._items, self._step, self._path, self._raw)

    def close(self) -> None:
        """Nothing is held back."""
