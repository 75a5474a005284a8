"""`pytest --aish`: the cases of pipelines as tests of pytest."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply

PIPELINE = """
name: notes
inputs: {who: {type: string, default: Ada}}
prompt: "Greet {{ inputs.who }}"
tests:
  - name: greets
    cassette: greets.yaml
    expect: [{contains: Hello}, {max_tool_calls: 0}]
  - name: people
    foreach: {file: cases.csv}
    key: item.id
    cassette: people-{{ key }}.yaml
    expect: [{contains: "{{ item.word }}"}]
"""
OWN = "def test_of_my_own() -> None:\n    assert 1 + 1 == 2\n"
IS_INSTALLED = "aish" in {one.name for one in entry_points(group="pytest11")}


@pytest.fixture
def tested(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """Pipelines with their cassettes beside a test in Python; the endpoint is gone."""
    project.pipeline(PIPELINE, "pipelines/notes.yaml")
    project.write("pipelines/cases.csv", "id,who,word\nbo,Bo,Hello\ncy,Cy,Goodbye\n")
    project.write("test_mine.py", OWN)
    project.write("values.yaml", "a: 1\n")
    endpoint = model_endpoint(lambda _: text_reply("Hello"))
    project.aish("test", "--record", env={"MODEL_URL": endpoint.base_url})
    endpoint.close()
    return project


def pytest_in(project: Project, *options: str) -> Done:
    """pytest in a process of its own, in the folder of the project."""
    plugin = () if IS_INSTALLED else ("-p", "aish.pytest_plugin")
    command = (sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *options)
    done = subprocess.run(
        command,
        cwd=project.folder,
        env=project.aish.env | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def outcomes(done: Done) -> dict[str, str]:
    return dict(re.findall(r"^(\S+::.+?) (PASSED|FAILED|ERROR)", done.stdout, re.MULTILINE))


def test_cases_are_tests_beside_those_in_python(tested: Project) -> None:
    done = pytest_in(tested, "--aish", "-v", "--strict-markers")

    assert done.code == 1, done.stdout + done.stderr
    assert outcomes(done) == {
        "pipelines/notes.yaml::greets": "PASSED",
        "pipelines/notes.yaml::people[bo]": "PASSED",
        "pipelines/notes.yaml::people[cy]": "FAILED",
        "test_mine.py::test_of_my_own": "PASSED",
    }


@pytest.mark.slow(reason="starts pytest")
def test_a_case_that_fails_says_what_did_not_hold_and_where(tested: Project) -> None:
    done = pytest_in(tested, "--aish", "pipelines", "-k", "cy")

    said = "tests[1].expect[0] contains: expected the text to contain `Goodbye`; got `Hello`"
    assert f"{said}\n\npipelines/notes.yaml:10: people[cy]\n" in done.stdout
    assert f"FAILED pipelines/notes.yaml::people[cy] - {said}"[:70] in done.stdout
    assert "Traceback" not in done.stdout
    assert "pytest_plugin.py" not in done.stdout


def test_without_the_option_nothing_is_collected_or_imported(tested: Project) -> None:
    probe = "import sys\ndef test_mine() -> None:\n    print(sorted(sys.modules))\n"
    tested.write("test_mine.py", probe)

    done = pytest_in(tested, "-v", "-s")

    assert outcomes(done).keys() == {"test_mine.py::test_mine"} or "test_mine" in done.stdout
    assert "notes.yaml" not in done.stdout
    ours = set(re.findall(r"'(aish[.\w]*)'", done.stdout))
    assert ours == {"aish", "aish.pytest_plugin"}


@pytest.mark.slow(reason="starts pytest with workers several times")
def test_words_marks_and_workers_select_and_spread_cases(tested: Project) -> None:
    by_mark = pytest_in(tested, "--aish", "-v", "-m", "aish and not slow", "-k", "bo or greets")
    spread = pytest_in(tested, "--aish", "-n", "2", "-k", "bo or greets")

    assert outcomes(by_mark).keys() == {
        "pipelines/notes.yaml::greets",
        "pipelines/notes.yaml::people[bo]",
    }
    assert (by_mark.code, spread.code) == (0, 0), spread.stdout
    assert "2 passed" in spread.stdout


@pytest.mark.slow(reason="starts pytest")
def test_a_broken_pipeline_with_tests_is_an_error_of_collection(tested: Project) -> None:
    tested.pipeline("prompt: '{{ gone }}'\ntests: [{name: t}]\n", "pipelines/broken.yaml")
    tested.write("pipelines/base.yaml", "aish: 1\nprompt: '{{ inputs.of_who_extends }}'\n")

    done = pytest_in(tested, "--aish", "pipelines")

    assert done.code == 2
    assert "ERROR collecting pipelines/broken.yaml" in done.stdout
    assert "broken.yaml:3:9: prompt: `gone` is not defined" in done.stdout
    assert "base.yaml" not in done.stdout


@pytest.mark.slow(reason="starts pytest")
def test_a_changed_prompt_is_a_failure_that_shows_the_line(tested: Project) -> None:
    tested.pipeline(PIPELINE.replace("Greet", "Welcome"), "pipelines/notes.yaml")

    done = pytest_in(tested, "--aish", "-k", "greets")

    assert done.code == 1
    assert "  - Greet Ada\n  + Welcome Ada" in done.stdout
    assert "aish test" in done.stdout
