"""The reports that are written when a run has ended, from its journal (B11).

What reads the journal and makes them is imported when that is done.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from aish.cli.option_groups import Reporting
from aish.config.model import Pipeline
from aish.core.errors import AishError
from aish.core.events import Stamped
from aish.engine.run_folder import RunFolder


class EndReports:
    """What is written at the end; `journal` is the folder of the journal it is made from.

    A run that leaves no folder behind has its journal in a temporary one.
    """

    def __init__(
        self, asked: Reporting, folder: RunFolder, pipeline: Pipeline, stack: ExitStack
    ) -> None:
        self._asked = asked
        self._pipeline = pipeline
        self._run = folder.id
        self.journal = folder.path or _temporary(stack)

    def write(self) -> str | None:
        """Write them, once the journal is closed; what could not be done."""
        try:
            self._write()
        except OSError as error:
            return f"{error.filename}: cannot write the report: {error.strerror}"
        except AishError as error:
            return f"cannot make the reports: {error}"
        return None

    def _write(self) -> None:
        from aish.cli.github import annotated_file, github_of
        from aish.features.history.summary import events
        from aish.journal.reader import read_journal
        from aish.reports.make import ReportFiles, make_reports

        asked = self._asked
        others: list[Callable[[Stamped], None]] = []
        with ExitStack() as stack:
            if asked.github:
                github = github_of(self._pipeline)
                others.append(github)
                # Told as far as the journal goes, whatever becomes of the other reports.
                stack.callback(github.close)
            reading = stack.enter_context(read_journal(self.journal / "events.jsonl"))
            files = ReportFiles(asked.junit, asked.html, asked.sarif)
            make_reports(events(reading), self._run, files, others, annotated_file)


def _temporary(stack: ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aish-")))
