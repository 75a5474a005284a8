"""`pytest --aish`: each case of the `tests:` of a pipeline is a test of pytest.

Pytest loads it wherever aish is installed, so it imports nothing of aish before it is needed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_SUFFIXES = frozenset({".yaml", ".yml"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--aish`."""
    parser.getgroup("aish").addoption(
        "--aish",
        action="store_true",
        dest="aish_pipelines",
        help="Collect the `tests:` of aish pipelines, and replay them from their cassettes.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect pipelines if that was requested, and only then."""
    config.addinivalue_line("markers", "aish: a case of the `tests:` of an aish pipeline")
    if config.getoption("aish_pipelines"):
        config.pluginmanager.register(_Collecting(), "aish_pipelines")


class _Collecting:
    """The part of the plugin that is registered with `--aish` only."""

    @staticmethod
    def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "PipelineFile | None":
        """A YAML file with an `aish:` key."""
        if file_path.suffix not in _SUFFIXES:
            return None
        from aish.features.yaml_files import is_pipeline

        if not is_pipeline(file_path):
            return None
        return PipelineFile.from_parent(parent, path=file_path)


class PipelineFile(pytest.File):
    """A pipeline with its cases."""

    def collect(self) -> Iterable["PipelineCase"]:
        """Each case, one for each row where a test has `foreach`.

        Raises:
            CollectError: the file has tests and cannot be run.
        """
        from aish.config.loader import lookup_position
        from aish.features.testing.discovery import may_have_tests
        from aish.features.testing.outcome import CaseJob
        from aish.features.testing.session import load_file

        file = load_file(self.path)
        if file.pipeline is None:
            # A file in a folder may be a base of others, without everything that a run needs.
            if may_have_tests(self.path):
                raise self.CollectError("\n".join(file.problems))
            return
        for case in file.pipeline.tests:
            place = lookup_position(file.pipeline, case.where)
            job = CaseJob(file.name, file.pipeline, case)
            yield PipelineCase.from_parent(self, name=case.name, job=job, line=place.line)


class PipelineCase(pytest.Item):
    """A case, run as `aish test` does: offline, on its cassette."""

    def __init__(self, *, job: Any, line: int, **more: Any) -> None:
        super().__init__(**more)
        self.job = job
        self.line = line
        self.add_marker("aish")

    def runtest(self) -> None:
        """Run it.

        Raises:
            CaseFailedError: the case did not pass.
        """
        from aish.features.testing.case import run_case
        from aish.system.guest import as_guest

        with as_guest():
            outcome = run_case(self.job)
        if outcome.verdict != "passed":
            raise CaseFailedError(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failures as `aish test` reports them; for any other exception the traceback."""
        if not isinstance(excinfo.value, CaseFailedError):
            return super().repr_failure(excinfo, style)
        from aish.core.text import for_ci_log
        from aish.features.testing.outcome import explanation

        path, line, _ = self.reportinfo()
        where = f"{self._shown(Path(path))}:{(line or 0) + 1}: {self.name}"
        told = explanation(excinfo.value.outcome, verbose=True)
        return "\n".join(map(for_ci_log, (*told, "", where)))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The position of the case."""
        return self.path, self.line - 1, self.name

    def _shown(self, path: Path) -> str:
        root = self.config.rootpath
        return str(path.relative_to(root) if path.is_relative_to(root) else path)


class CaseFailedError(Exception):
    """A case did not pass; `outcome` is its result."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome.reason or "expectations do not hold")
        self.outcome = outcome
