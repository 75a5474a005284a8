"""A run as a step of GitHub Actions: no text of a stranger is a command, secrets are masks."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type
from github_runner import Runner, commands_in
from html_blocks import read
from model_endpoint import text_reply, tool_reply

KEY = "sk-planted-and-not-for-the-log"
TWO_LINES = "-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7planted\n-----END PRIVATE KEY-----"
# Each as a line of its own, in the middle of one, after what looks like nothing, and cut in two.
ORDERS = (
    "::error file=x::no\n"
    " \t::add-mask::a\n"
    "\u3000\u00a0::stop-commands::x\n"
    "\u070f:\u070f:warning::no\n"
    "text ##[error]no\n"
    "#\u070f#[group]no\n"
    "\r::notice::no\r::debug::no\n"
    "::SET-OUTPUT name=a::b"
)
FORMS = ["text", "json", "jsonl"]


@pytest.fixture
def job(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A pipeline whose model, tool, file and input all give orders."""
    call = ("call_1", "repo__file_read", '{"path": "orders.txt"}')
    pieces = re.split(r"(?<=:)", ORDERS)
    replies = [tool_reply([call], ORDERS), text_reply(ORDERS, pieces=pieces)]
    project.uses(model_endpoint(replies * 3))
    project.write("orders.txt", ORDERS)
    project.pipeline(
        """
        name: "::error::p"
        models: {m: {base_url: "${MODEL_URL}", model: "::warning::m", key_env: MODEL_KEY}}
        secrets: [PEM]
        inputs: {what: {type: string}}
        mcp:
          servers: {repo: {pack: [fs], root: .}}
          auto_approve: [repo__file_read]
        steps:
          - id: ask
            prompt: "Say it: {{ inputs.what }}"
            expect: [{contains: "\\n::error::unmet"}]
        """
    )
    project.aish.env |= {"GITHUB_ACTIONS": "true", "CI": "true", "MODEL_KEY": KEY, "PEM": TWO_LINES}
    return project


def ran(job: Project, *arguments: str) -> tuple[Runner, Runner]:
    """How the runner reads stdout and stderr."""
    done = job.run("-i", f"what={ORDERS}", *arguments)
    assert done.code == 1, done.stderr
    out, err = Runner(), Runner()
    out.read(done.stdout)
    err.read(done.stderr)
    return out, err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
def test_a_strangers_text_is_no_command(job: Project, form: str, stream: Sequence[str]) -> None:
    out, err = ran(job, "--format", form, *stream)

    assert out.commands == []
    assert {one.name for one in err.commands} == {"add-mask"}
    assert any("no" in line for line in out.log)


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_json_is_the_same_data_as_elsewhere(job: Project, form: str) -> None:
    done = job.run("-i", f"what={ORDERS}", "--format", form)

    lines = done.stdout.splitlines() if form == "jsonl" else [done.stdout]
    told = [json.loads(line) for line in lines]
    texts = [one["text"] for one in told if one.get("type") == "turn.finished"]
    texts = texts or [told[0]["steps"]["ask"]["text"]]
    assert texts[-1] == ORDERS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("redirected", ["-o /dev/stdout", "> /dev/stderr", "2>&1", "| cat"])
def test_no_way_round_makes_a_command_of_it(job: Project, redirected: str) -> None:
    job.through_shell(f'"$@" {redirected}')

    done = job.run("-i", f"what={ORDERS}")

    found = [one.name for one in commands_in(f"{done.stdout}\n{done.stderr}")]
    assert set(found) <= {"add-mask"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "command",
    [
        ("validate", "bad.yaml"),
        ("plan", "p.yaml", "-i", f"what={ORDERS}"),
        ("tools", "p.yaml"),
        ("call", "p.yaml", "repo__file_read", "path=orders.txt"),
        ("call", "p.yaml", "repo__file_read", "path=::error::x"),
        ("policy", "explain", "p.yaml", "--tool", "::error::x"),
        ("runs", "show", "latest"),
        ("runs", "list"),
        ("run", "p.yaml", "\n::error::no"),
        ("run", "\n::error::no.yaml"),
        ("test", "p.yaml", "-k", "::error::x"),
    ],
    ids=" ".join,
)
def test_no_command_of_ours_passes_one_on(job: Project, command: Sequence[str]) -> None:
    ran(job)
    job.write("bad.yaml", 'aish: 1\nname: "\\n::error::x"\n"::error::key": "##[error]x"\n')

    done = job.aish(*command)

    found = [one.name for one in commands_in(f"{done.stdout}\n{done.stderr}")]
    assert set(found) <= {"add-mask"}


@pytest.mark.requirement("B13")
def test_secrets_are_masks_before_anything_else(job: Project) -> None:
    done = job.run("-i", "what=x", "--format", "json")

    first = done.stderr.splitlines()[:4]
    assert first == [
        "::add-mask::-----BEGIN PRIVATE KEY-----",
        "::add-mask::-----END PRIVATE KEY-----",
        "::add-mask::MIIEpAIBAAKCAQEA7planted",
        f"::add-mask::{KEY}",
    ]
    assert [one.name for one in commands_in(done.stderr)] == ["add-mask"] * 4
    assert KEY not in done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [None, "", "false", "1", "True"])
def test_elsewhere_no_secret_is_printed(job: Project, value: str | None) -> None:
    del job.aish.env["GITHUB_ACTIONS"]
    if value is not None:
        job.aish.env["GITHUB_ACTIONS"] = value

    done = job.run("-i", "what=x")

    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize("line", ['"$@" 2>&1 | tee log.txt', '"$@" 2> log.txt'])
def test_a_log_that_is_kept_has_no_secret_in_it(job: Project, line: str) -> None:
    job.through_shell(line)

    job.run("-i", "what=x")

    log = (job.folder / "log.txt").read_text("utf-8")
    assert KEY not in log
    assert "stderr is redirected" in log


@pytest.mark.requirement("B11")
@pytest.mark.parametrize("extra", [[], ["--ephemeral"], ["-q"]], ids=["kept", "ephemeral", "quiet"])
def test_a_run_gets_a_summary_and_annotations(job: Project, extra: Sequence[str]) -> None:
    summary = job.folder / "summary.md"
    job.aish.env |= {
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_WORKSPACE": str(job.folder.parent),
    }

    done = job.run("-i", "what=x", "--github", *extra)

    errors = [one for one in commands_in(done.stderr) if one.name == "error"]
    assert [one.properties["title"] for one in errors] == ["step ask failed"]
    assert errors[0].properties["file"] == f"{job.folder.name}/p.yaml"
    assert (errors[0].properties["line"], errors[0].properties["col"]) == ("10", "5")
    page = summary.read_text("utf-8")
    assert "::error::p" in read(page).foreign
    assert "❌ failed" in page
    assert KEY not in page
    # stdout carries the answer and no more.
    assert commands_in(done.stdout) == []


@pytest.mark.requirement("V38")
def test_a_summary_has_the_answer_the_calls_and_what_changed_in_git(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = (
        ("1", "repo__file_write", json.dumps({"path": "new.md", "content": f"```\n{KEY}\n"})),
        ("2", "repo__file_read", '{"path": "missing"}'),
    )
    project.uses(model_endpoint([tool_reply(calls), text_reply("Written.")] * 3))
    subprocess.run(["git", "init", "-q"], cwd=project.folder, check=True)
    project.pipeline(
        """
        name: p
        models: {m: {base_url: "${MODEL_URL}", model: m, key_env: MODEL_KEY}}
        mcp:
          servers: {repo: {pack: [fs], root: .}}
          auto_approve: [repo__file_read, repo__file_write]
        steps: [{id: write, prompt: Write it}]
        """
    )
    summary = project.folder.parent / "summary.md"
    project.aish.env |= {"MODEL_KEY": KEY, "GITHUB_STEP_SUMMARY": str(summary)}

    done = project.run("--github", "--html", "../page.html", "--record", "../c.yaml")

    assert done.code == 0, done.stderr
    page = summary.read_text("utf-8")
    seen = read(page)
    assert "\nWritten." in seen.foreign
    assert "1 file changed: +2 \u22120, on top of earlier changes" in seen.foreign
    assert "new.md" in seen.foreign
    assert any('"path": "missing"' in text for text in seen.foreign)
    assert "\n+```\n+" in page
    assert KEY not in page
    assert KEY not in (project.folder.parent / "page.html").read_text("utf-8")
    (event,) = of_type(project.journal, "files.changed")
    (kept,) = project.folder.glob(f".aish/runs/*/{event['kept']}")
    assert kept.read_text("utf-8") == event["patch"]
    shown = project.aish("runs", "show", "latest").stdout
    assert "1 file changed" in shown

    # Only for those who see it, and not in a replay.
    (project.folder / "new.md").unlink()
    for words in (["--github", "--replay", "../c.yaml"], []):
        shutil.rmtree(project.folder / ".aish")
        done = project.run(*words)
        assert done.code == 0, done.stderr
        assert of_type(project.journal, "files.changed") == []


def test_outside_of_github_a_summary_is_missed_in_words(job: Project) -> None:
    del job.aish.env["GITHUB_ACTIONS"]

    done = job.run("-i", "what=x", "--github")

    assert "`GITHUB_STEP_SUMMARY` is not set" in done.stderr
    assert commands_in(done.stderr) == []


def test_outside_of_github_annotations_are_missed_in_words(job: Project) -> None:
    del job.aish.env["GITHUB_ACTIONS"]

    done = job.run("-i", "what=x", "--github")

    assert commands_in(done.stderr) == []
    said = "warning: `--github`: `GITHUB_ACTIONS` is not `true`, so no annotation is printed\n"
    assert said in done.stderr


def test_a_past_run_can_be_told_of_too(job: Project) -> None:
    ran(job)
    summary = job.folder / "summary.md"
    job.aish.env["GITHUB_STEP_SUMMARY"] = str(summary)

    done = job.aish("runs", "report", "latest", "--github")

    assert done.code == 0, done.stderr
    assert [one.name for one in commands_in(done.stderr)] == ["error"]
    assert "❌ failed" in summary.read_text("utf-8")


def test_tests_that_fail_are_on_the_page_of_their_job(job: Project) -> None:
    summary = job.folder / "summary.md"
    job.aish.env["GITHUB_STEP_SUMMARY"] = str(summary)
    job.write("one.yaml", "x\n")
    job.pipeline(
        """
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}
        steps: [{id: look, call: repo__file_read, with: {path: one.yaml}}]
        cassette: c.yaml
        tests:
          - {name: good, expect: [{contains: x}]}
          - {name: "::error::bad", expect: [{contains: "\\n::error::y"}]}
        """
    )
    assert job.aish("record", "p.yaml").code == 0

    done = job.aish("test", "p.yaml", "--github")

    assert done.code == 1, done.stderr
    assert [one.properties["title"] for one in commands_in(done.stderr)] == ["::error::bad"]
    assert commands_in(done.stdout) == []
    assert "1 passed, 1 failed" in summary.read_text("utf-8")


def test_a_plain_run_imports_nothing_of_github(job: Project) -> None:
    for name in ("GITHUB_ACTIONS", "CI"):
        del job.aish.env[name]
    code = (
        "import sys; from aish.cli.main import run_command_line;"
        "run_command_line(['run', 'p.yaml', '-i', 'what=x']);"
        "print([m for m in sys.modules if 'github' in m or 'opentelemetry' in m])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=job.folder,
        env={**job.aish.env, "PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines()[-1] == "[]"
    assert Path(job.folder).exists()


@pytest.mark.parametrize("form", FORMS)
def test_no_item_commands_the_runner(project: Project, form: str) -> None:
    """Keys and values of rows, in every sink, the annotations and the summary included."""
    keys = ("::error::a", " ##[group]b ::notice::c")
    rows = [{"key": key, "say": ORDERS} for key in keys]
    project.write("rows.json", json.dumps(rows))
    project.pipeline(
        """
        mcp: {auto_approve: [shell__run]}
        steps:
          - id: say
            foreach: {file: rows.json}
            key: item.key
            run: [cat, "{{ item.say }}"]
            on_error: continue
        """
    )
    summary = project.folder / "summary.md"
    project.aish.env |= {"GITHUB_ACTIONS": "true", "CI": "true"}
    project.aish.env["GITHUB_STEP_SUMMARY"] = str(summary)

    done = project.run("--format", form, "--github")

    assert done.code == 1, done.stderr
    assert commands_in(done.stdout) == []
    found = commands_in(done.stderr)
    assert {one.name for one in found} == {"error"}
    assert all(one.properties["title"].startswith("step say") for one in found)
    read(summary.read_text("utf-8"))
