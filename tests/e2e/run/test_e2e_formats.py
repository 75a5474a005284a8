"""What a run prints and what it leaves behind: stdout, `-o`, the run folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio
from jsonschema import Draft202012Validator
from model_endpoint import text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

TWO_STEPS = f"""
name: two-steps
mcp:
  servers: {{s: {{command: {stdio("--stderr", "2")}}}}}
  auto_approve: [s__echo]
steps:
  - id: look
    prompt: Use your tools
  - id: end
    call: s__echo
    with: {{text: "{{{{ steps.look.text }}}}!"}}
"""
OUTPUTS = 'outputs: {said: "{{ steps.look.text }}", list: [1, two]}\n'


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((REPO / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    return Draft202012Validator(schema)


@pytest.fixture
def two_steps(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A project whose run asks a tool, answers, and calls one more."""
    calls = [("c1", "s__echo", '{"text": "hé\\u202ello"}')]
    endpoint = model_endpoint([tool_reply(calls), text_reply("it says héllo")] * 2)
    project.uses(endpoint)
    project.pipeline(TWO_STEPS)
    return project


def test_text_is_the_last_steps_text_and_stderr_tells_the_story(
    two_steps: Project, snapshot: SnapshotAssertion
) -> None:
    done = two_steps.run()

    assert (done.code, done.stdout) == (0, "it says héllo!\n")
    assert two_steps.tidy(done.stderr) == snapshot


def test_quiet_says_nothing_but_the_answer(two_steps: Project) -> None:
    done = two_steps.run("-q")

    assert (done.code, done.stdout, done.stderr) == (0, "it says héllo!\n", "")


def test_outputs_are_printed_as_yaml(two_steps: Project) -> None:
    two_steps.pipeline(TWO_STEPS + OUTPUTS)

    done = two_steps.run()

    assert done.code == 0
    assert done.stdout == 'said: "it says héllo"\nlist:\n  - 1\n  - two\n'


def test_json_is_one_object_that_fits_its_schema(
    two_steps: Project, snapshot: SnapshotAssertion
) -> None:
    done = two_steps.run("--format", "json")

    assert done.code == 0
    validator("result").validate(json.loads(done.stdout))
    assert two_steps.tidy(done.stdout) == snapshot


@pytest.mark.requirement("P7")
def test_every_line_of_jsonl_is_an_event_and_the_journal_holds_the_same(
    two_steps: Project,
) -> None:
    done = two_steps.run("--format", "jsonl")

    assert done.code == 0
    lines = done.stdout.splitlines()
    events: list[Any] = [json.loads(line) for line in lines]
    schema = validator("events")
    for event in events:
        schema.validate(event)
    assert (events[0]["type"], events[-1]["type"]) == ("run.started", "run.finished")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    # Deltas are for who watches: `turn.finished` has the whole text.
    assert two_steps.journal == [e for e in events if e["type"] != "text.delta"]
    order = [e["type"] for e in events if e.get("call") == "c1"]
    assert order == ["tool.decided", "tool.started", "tool.finished"]


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_result_goes_to_a_file_and_nothing_to_stdout(two_steps: Project, form: str) -> None:
    place = two_steps.folder / "result"
    place.write_text("old")

    done = two_steps.run("--format", form, "-o", place)

    assert (done.code, done.stdout) == (0, "")
    written = place.read_text(encoding="utf-8")
    if form == "text":
        assert written == "it says héllo!\n"
    elif form == "json":
        validator("result").validate(json.loads(written))
    else:
        last = [json.loads(line)["type"] for line in written.splitlines()][-1]
        assert last == "run.finished"


@pytest.mark.requirement("B1")
def test_what_a_run_leaves_behind_is_private(two_steps: Project) -> None:
    two_steps.through_shell('umask 0; exec "$@"')

    done = two_steps.run()

    assert done.code == 0
    (folder,) = two_steps.run_folders
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {
        "events.jsonl",
        "plan.json",
        "servers",
        "servers/s.stderr.log",
    }
    log = folder / "servers" / "s.stderr.log"
    assert log.read_text() == "stderr line 0\nstderr line 1\n"
    assert (two_steps.folder / ".aish" / ".gitignore").read_text() == "*\n"
    for path in (two_steps.folder / ".aish", *(two_steps.folder / ".aish").rglob("*")):
        assert oct(path.stat().st_mode & 0o777) == ("0o700" if path.is_dir() else "0o600"), path
    assert of_type(two_steps.journal, "run.finished")[0]["folder"] == f".aish/runs/{folder.name}"


def test_an_ephemeral_run_leaves_nothing(two_steps: Project) -> None:
    before = sorted(two_steps.folder.rglob("*"))

    found = two_steps.result("--ephemeral")

    assert (found["status"], found["folder"]) == ("ok", None)
    assert sorted(two_steps.folder.rglob("*")) == before


def test_run_folders_go_where_they_are_told(two_steps: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else" / "where"
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)

    first = two_steps.result("--run-dir", elsewhere)
    second = two_steps.result("--run-dir", "else/../theirs")

    assert not two_steps.run_folders
    for place, found in ((elsewhere, first), (theirs, second)):
        assert [path.name for path in place.iterdir()] == [found["run"]]
        folder = place / found["run"]
        assert (folder / "events.jsonl").is_file()
        assert (folder / ".gitignore").read_text() == "*\n"
    assert oct(elsewhere.stat().st_mode & 0o777) == "0o700"
    assert oct(theirs.stat().st_mode & 0o777) == "0o755", "a folder that was there is left alone"


def test_a_file_may_be_reached_by_any_path(two_steps: Project) -> None:
    below = two_steps.folder / "real" / "below"
    below.mkdir(parents=True)
    (two_steps.folder / "real" / "p.yaml").write_bytes((two_steps.folder / "p.yaml").read_bytes())
    (two_steps.folder / "link").symlink_to("real")

    up = two_steps.aish("run", "../p.yaml", cwd=below)
    through_link = two_steps.aish("run", "link/p.yaml")

    assert (up.code, through_link.code) == (0, 0), up.stderr + through_link.stderr
    assert len(list((two_steps.folder / "real" / ".aish" / "runs").iterdir())) == 2


def test_first_runs_at_the_same_moment_do_not_disturb_each_other(project: Project) -> None:
    project.pipeline("run: [ls]")

    started = [project.aish.start("run", "p.yaml", "--allow", "shell__run") for _ in range(4)]
    done = [running.finish() for running in started]

    assert [one.code for one in done] == [0] * 4, done
    assert len(project.run_folders) == 4


@pytest.mark.parametrize("absolute", [False, True])
def test_a_planted_link_is_not_followed(
    two_steps: Project, tmp_path: Path, *, absolute: bool
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (two_steps.folder / ".aish").symlink_to(target)

    done = two_steps.aish("run", two_steps.folder / "p.yaml" if absolute else "p.yaml")

    assert done.code == 2
    assert ".aish" in done.stderr
    assert "--run-dir" in done.stderr
    assert list(target.iterdir()) == []


@pytest.mark.requirement("X2")
def test_a_strangers_text_steers_neither_the_terminal_nor_the_log(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r::error::x\n::set-output name=a::b\u202e\x9b31m"
    calls = [("c1", "s__echo", json.dumps({"text": evil}))]
    project.uses(model_endpoint([tool_reply(calls), text_reply(evil)]))
    project.pipeline(TWO_STEPS.replace("Use your tools", "Go on"))

    done = project.run()

    assert done.code == 0
    for sign in ("\x1b", "\x07", "\r", "\u202e", "\x9b"):
        assert sign not in done.stderr
    assert not any(line.startswith(("::", "##[")) for line in done.stderr.splitlines())


def test_a_failed_run_without_an_answer_leaves_an_older_result_alone(project: Project) -> None:
    project.write("old.txt", "the older answer")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    project.pipeline(
        """
        models: {m: {base_url: "${MODEL_URL}", model: x, retry: {attempts: 1}}}
        prompt: Say hello
        """
    )

    done = project.run("-o", "old.txt")

    assert done.code == 5
    assert (project.folder / "old.txt").read_text() == "the older answer"
