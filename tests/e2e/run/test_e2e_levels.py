"""What is merely odd about a file: said, kept quiet, or made an error."""

import json
import sys

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply

ODD = """
inputs: {unused: {type: string, default: a}}
prompt: Say something
"""
FOUND = "p.yaml:3:18: inputs.unused: the input `unused` is used nowhere"
LINE = "  3 | inputs: {unused: {type: string, default: a}}\n    |                  ^\n"


def on_a_terminal(project: Project) -> None:
    """Let `aish` have one for all of its streams."""
    spawn = "import pty, sys; pty.spawn(sys.argv[1:])"
    project.aish.python = (sys.executable, "-c", spawn, sys.executable)


@pytest.fixture
def odd(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A file that can be run and about which something can be said."""
    project.uses(model_endpoint(lambda _: text_reply("ok")))
    project.pipeline(ODD)
    return project


def test_quiet_leaves_warnings_and_notes_out(odd: Project) -> None:
    assert f"warning: {FOUND}\n" in odd.run().stderr
    assert not odd.run("-q").stderr

    odd.pipeline("prompt: Say {{ stdin }}.")
    planned = odd.aish("plan", "p.yaml", "--offline")
    assert planned.code == 0
    assert "note: the file reads `{{ stdin }}`, which is empty here" in planned.stderr


def test_strict_makes_errors_of_warnings_and_calls_them_so(odd: Project) -> None:
    planned = odd.aish("plan", "p.yaml", "--strict")
    checked = odd.aish("validate", "p.yaml", "--strict")
    as_json = odd.aish("validate", "p.yaml", "--strict", "--format", "json")

    assert (planned.code, planned.stdout, planned.stderr) == (2, "", f"error: {FOUND}\n{LINE}")
    assert (checked.code, checked.stdout) == (2, "")
    assert checked.stderr == f"error: {FOUND}\n{LINE}p.yaml: 1 error\n"
    (row,) = json.loads(as_json.stdout)
    assert (as_json.code, row["ok"], row["problems"][0]["level"]) == (2, False, "error")


def test_a_plan_counts_requests_and_shows_the_time_limit(odd: Project) -> None:
    done = odd.aish("plan", "p.yaml", "--timeout", "90s")

    assert done.code == 0
    assert "time limit  90 s\n" in done.stdout
    assert "model requests  1 at least, 1 at most\n" in done.stdout, "there are no tools"


def test_at_a_terminal_a_file_that_reads_stdin_is_refused(odd: Project) -> None:
    odd.pipeline("prompt: Say {{ stdin }}.")
    on_a_terminal(odd)

    seen = odd.run().stdout

    assert "error: p.yaml: the file reads `{{ stdin }}`, and nothing is piped in\r\n" in seen
    assert "hint: pipe text into it" in seen


def test_in_ci_an_answer_is_not_mixed_into_the_log(odd: Project) -> None:
    on_a_terminal(odd)

    seen = odd.run(env={"CI": "true"}).stdout.splitlines()

    assert "ok" in seen
    assert all(line.startswith(("[", "warning: ")) for line in seen if line != "ok")
