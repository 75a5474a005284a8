"""The shipped pipelines, offline: each has a cassette of something real, and cases on it."""

import json
from pathlib import Path

import pytest
from cli_process import Aish

from aish.cassettes.file import load
from aish.config.loader import load_pipeline

TOP = Path(__file__).parents[2]
FILES = sorted((TOP / "pipelines").glob("*.yaml"))


@pytest.mark.requirement("C12")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_pipeline_has_a_cassette_and_cases_that_expect_something(file: Path) -> None:
    pipeline = load_pipeline(file)
    assert pipeline.cassette is not None
    assert pipeline.cassette.path.resolve().parent == TOP / "tests" / "cassettes"
    cassette = load(pipeline.cassette.path)
    assert cassette.head is not None
    assert cassette.interactions
    assert pipeline.tests
    assert all(case.expect for case in pipeline.tests)


@pytest.mark.requirement("C12", "C13", "C6")
def test_all_pipelines_pass_their_tests_offline(run_aish: Aish) -> None:
    done = run_aish("test", str(TOP / "pipelines"), "--format", "json", cwd=TOP)
    assert done.code == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert len(told["cases"]) >= len(FILES)
    assert told["orphans"] == []
