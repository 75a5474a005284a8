"""Writes reports: the events of a run are read and folded once for all requested ones."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from aish.core.events import Stamped
from aish.core.frozen import frozen
from aish.journal.history import RunHistory
from aish.reports.html.contents import Gathering
from aish.reports.html.page import page
from aish.reports.junit import JUnitReport
from aish.reports.sarif import SarifReport
from aish.system.files import atomic_pieces

PAGE_NAME = "report.html"
"""The page in the folder of a run."""


@frozen
class ReportFiles:
    """The path of each requested report.

    They are `shared` according to the umask, except those in the run's folder.
    """

    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    shared: bool = True


def make_reports(
    events: Iterable[Stamped],
    run: str,
    files: ReportFiles,
    others: Sequence[Callable[[Stamped], None]] = (),
    name: Callable[[str], str | None] = str,
) -> None:
    """Write the reports that have a path; `run` is the run's id. `others` take the same events.

    `name` returns an annotated file as the repository names it.

    Raises:
        OSError: a file cannot be written; the others are.
    """
    with ExitStack() as stack:
        history = RunHistory()
        cases = stack.enter_context(JUnitReport(history)) if files.junit is not None else None
        gathering = Gathering(history) if files.html is not None else None
        sarif = SarifReport(history, run, name) if files.sarif is not None else None
        reports = [item for item in (cases, gathering, sarif) if item is not None]
        for stamped in events:
            ended = history.take(stamped) if reports else ()
            for report in reports:
                report.take(stamped, ended)
            for tell in others:
                tell(stamped)
        rest = history.rest()
        for report in reports:
            report.add(rest)
        failed: list[OSError] = []
        if cases is not None and files.junit is not None:
            failed += _write(files.junit, cases.xml(), shared=files.shared)
        if gathering is not None and files.html is not None:
            failed += _write(files.html, page(gathering, run), shared=files.shared)
        if sarif is not None and files.sarif is not None:
            failed += _write(files.sarif, sarif.json(), shared=files.shared)
    if failed:
        raise failed[0]


def _write(path: Path, pieces: Iterable[bytes], *, shared: bool) -> Sequence[OSError]:
    """Write one report; returns the failure, if any: the other reports are written all the same."""
    try:
        atomic_pieces(path, pieces, shared=shared)
    except OSError as error:
        # Not the name of the temporary file.
        return [OSError(error.errno, error.strerror, str(path))]
    return []
