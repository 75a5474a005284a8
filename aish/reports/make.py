"""Reports made: the events of a run are read once for all that are wanted."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from aish.reports.gathering import Gathering
from aish.reports.junit_report import JUnitReport
from aish.reports.page import page
from aish.system.files import atomic_pieces
from aish.vocab.events import Stamped
from aish.vocab.frozen import frozen


@frozen
class ReportFiles:
    """Where each report that is wanted is written.

    They are `shared` as the umask says, but for those that belong to the run's folder.
    """

    junit: Path | None = None
    html: Path | None = None
    shared: bool = True


def make_reports(
    events: Iterable[Stamped],
    run: str,
    files: ReportFiles,
    others: Sequence[Callable[[Stamped], None]] = (),
) -> None:
    """Write the reports that have a place; `run` is the run's id. `others` are told the same.

    Raises:
        OSError: a file cannot be written; the other one is.
    """
    with ExitStack() as stack:
        cases = stack.enter_context(JUnitReport()) if files.junit is not None else None
        gathering = Gathering() if files.html is not None else None
        takers = [*others, *(one.take for one in (cases, gathering) if one is not None)]
        for stamped in events:
            for take in takers:
                take(stamped)
        failed: list[OSError] = []
        if cases is not None and files.junit is not None:
            failed += _written(files.junit, cases.xml(), shared=files.shared)
        if gathering is not None and files.html is not None:
            gathering.finish()
            failed += _written(files.html, page(gathering, run), shared=files.shared)
    if failed:
        raise failed[0]


def _written(path: Path, pieces: Iterable[bytes], *, shared: bool) -> Sequence[OSError]:
    """The failure, if there is one: the other report is written all the same."""
    try:
        atomic_pieces(path, pieces, shared=shared)
    except OSError as error:
        # Not the name of the file that was to be put in its place.
        return [OSError(error.errno, error.strerror, str(path))]
    return []
