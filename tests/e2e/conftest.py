"""End to end: the program as a process, real sockets, real children, real signals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Aish
from e2e_project import Project, processes_in, wait_gone


@pytest.fixture
def project(tmp_path: Path, run_aish: Aish) -> Iterator[Project]:
    """An empty folder to work in; no process may stay behind in it."""
    yield Project(tmp_path.resolve(), run_aish)
    run_aish.close()
    for pid in processes_in(tmp_path.resolve()):
        wait_gone(pid)
