"""`--github`: a run for the page of its job, written when it has ended (B11)."""

from collections.abc import Mapping

from aish.core.events import Stamped
from aish.reports.github.commands import Spot
from aish.reports.github.gathered import Gathered
from aish.reports.github.job import Job
from aish.reports.github.notes import FileName, annotations
from aish.reports.github.summary import summary


class GitHub:
    """Folds events; `close` tells the job.

    `spots` says where each step stands, `name` gives other files as GitHub names them.
    """

    name = "the GitHub summary"
    deltas = False

    def __init__(self, job: Job, spots: Mapping[str, Spot], name: FileName = str) -> None:
        self._job = job
        self._spots = spots
        self._name = name
        self._run = Gathered()

    def __call__(self, stamped: Stamped) -> None:
        """Fold the event in."""
        self._run.take(stamped)

    def close(self) -> None:
        """Print the annotations and write the summary."""
        self._run.end()
        self._job.annotate(annotations(self._run, self._spots, self._name))
        self._job.summarise(lambda limit: summary(self._run, limit))
