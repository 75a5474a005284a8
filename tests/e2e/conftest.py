"""End to end: the program as a process, real sockets, real children, real signals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Aish
from e2e_project import Project, processes_in, wait_gone


@pytest.fixture
def project(tmp_path: Path, run_aish: Aish) -> Iterator[Project]:
    """An empty folder to work in; no process may stay behind in it.

    What JUnit tells of its runs has to be what their exit codes tell.
    """
    found = Project(tmp_path.resolve(), run_aish)
    yield found
    run_aish.close()
    found.check_reports()
    for pid in processes_in(tmp_path.resolve()):
        wait_gone(pid)
