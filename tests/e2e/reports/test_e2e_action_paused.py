"""A run that pauses in one job and continues in another one, by the workflow of the guide."""

import re
import shutil
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from docs_pages import ROOT, blocks
from e2e_project import of_type
from github_workflow import Workflow
from ruamel.yaml import YAML

from aish.journal.reader import read_journal

SECRET = "correct-horse-battery"
PIPELINE = f"""
    aish: 1
    name: release
    inputs: {{version: {{type: string}}}}
    mcp:
      servers: {{repo: {{pack: [fs], root: .}}}}
      auto_approve: [repo__file_read]
    on_ask: pause
    secrets: [NOTE_KEY]
    steps:
      - {{id: read, call: repo__file_read, with: {{path: README.md}}}}
      - id: write
        call: repo__file_write
        with:
          path: TITLE.md
          content: "{{{{ steps.read.text }}}}{{{{ inputs.version }}}} {SECRET}"
    """


def workflow_in(folder: Path) -> Workflow:
    """The workflow of the guide, over a repository with the pipeline that it names."""
    yaml = YAML(typ="safe", pure=True)
    guide = ROOT / "docs" / "jobs" / "continuous-integration.md"
    (text,) = (one.text for one in blocks(guide) if "allow-pause:" in one.text)
    repository = folder / "origin"
    repository.mkdir()
    (repository / "release.yaml").write_text(dedent(PIPELINE), "utf-8")
    (repository / "README.md").write_text("# a title\n", "utf-8")
    return Workflow(
        yaml.load(text)["jobs"],
        yaml.load(ROOT / "action.yml"),
        repository,
        folder,
        {"NOTE_KEY": SECRET},
    )


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return workflow_in(tmp_path)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The same after its first job, which paused; nothing of its machine is left."""
    workflow = workflow_in(tmp_path_factory.mktemp("released"))
    first = workflow.run("release")
    assert first is not None
    assert first.ok, first.log
    (workflow.folder / "release").rename(workflow.folder / "gone")
    return workflow


@pytest.fixture
def paused(released: Workflow, tmp_path: Path) -> Workflow:
    """A copy of it, of which each test may change what it likes."""
    shutil.copytree(released.folder / "artifacts", tmp_path / "artifacts")
    return replace(
        released,
        folder=tmp_path,
        artifacts={name: tmp_path / "artifacts" / name for name in released.artifacts},
        results={
            name: replace(one, outputs=dict(one.outputs)) for name, one in released.results.items()
        },
    )


def journal(place: Path) -> list[Any]:
    (path,) = place.glob("_temp/*/runs/*/events.jsonl")
    with read_journal(path) as reading:
        return list(reading)


@pytest.mark.slow(reason="runs the action of two jobs")
def test_a_run_continues_in_another_job_on_another_machine(
    paused: Workflow, released: Workflow, tmp_path: Path
) -> None:
    first = paused.results["release"]

    second = paused.run("approved")

    assert second is not None
    assert second.ok, second.log
    assert first.outputs["paused"] == "true"
    (stored,) = paused.artifacts["paused-run"].iterdir()
    assert stored.name == "aish-run.tar"
    assert not list((released.folder / "gone").rglob("TITLE.md"))
    assert (second.workspace / "TITLE.md").read_text("utf-8") == f"# a title\n1.2 {SECRET}"
    events = journal(tmp_path / "approved")
    (asked,) = of_type(events, "approval.asked")
    assert first.outputs["pending"] == f"{asked['id']} {asked['digest']} repo__file_write"
    # Whoever reviews it sees the call and what is approved by it.
    assert asked["digest"] in first.summary
    assert "# a title\\n" in first.summary
    (answered,) = of_type(events, "approval.answered")
    assert (answered["answer"], answered["note"]) == (
        "approve",
        "environment release, workflow run 12345",
    )
    assert len(of_type(events, "tool.started")) == 2
    said = (first.log + second.log).replace(f"::add-mask::{SECRET}", "")
    assert SECRET not in said + first.summary + second.summary
    assert SECRET.encode() not in stored.read_bytes()
    place = next((tmp_path / "approved").glob("_temp/*/runs"))
    assert {oct(one.stat().st_mode & 0o077) for one in place.rglob("*")} == {"0o0"}


@pytest.mark.slow(reason="four jobs, each with commands of their own: 5 s")
def test_a_run_that_pauses_again_continues_in_a_third_job(workflow: Workflow) -> None:
    path = workflow.checkout / "release.yaml"
    another = """
      - id: again
        needs: [write]
        call: repo__file_write
        with: {path: SECOND.md, content: a second file}
    """
    path.write_text(path.read_text("utf-8") + dedent(another).replace("\n", "\n  "), "utf-8")
    first_job, second_job = workflow.jobs["release"], workflow.jobs["approved"]
    third_job = deepcopy(second_job)
    # What the guide says of a run that pauses again.
    again = deepcopy(second_job)
    again["steps"][-1] |= {"id": "aish", "with": again["steps"][-1]["with"] | {"allow-pause": True}}
    again["steps"].append(deepcopy(first_job["steps"][-1]))
    again["steps"][-1]["with"]["name"] = "paused-again"
    again["outputs"] = first_job["outputs"]
    third_job["needs"] = "again"
    third_job["if"] = second_job["if"].replace("needs.release", "needs.again")
    third_job["steps"][1]["with"]["name"] = "paused-again"
    third_job["steps"][2]["with"]["approve"] = "${{ needs.again.outputs.pending }}"
    workflow.jobs = {**workflow.jobs, "again": again, "third": third_job}

    results = [workflow.run(name) for name in ("release", "approved", "again", "third")]

    first, alone, second, third = results
    assert first is not None
    assert alone is not None
    assert second is not None
    assert third is not None
    assert not alone.ok
    assert "exit 8 (paused)" in alone.log
    assert second.ok, second.log
    assert second.outputs["pending"].split()[0] != first.outputs["pending"].split()[0]
    assert third.ok, third.log
    assert (second.workspace / "TITLE.md").exists()
    assert not (third.workspace / "TITLE.md").exists(), "it was written by the second job"
    assert (third.workspace / "SECOND.md").exists()
    # What another job has done is no error of this one.
    assert "resumed_masked" in third.log
    assert "::error" not in third.log
    assert "cut off" not in third.log + third.summary


def test_the_second_job_is_skipped_where_nothing_waits(workflow: Workflow) -> None:
    path = workflow.checkout / "release.yaml"
    path.write_text(
        path.read_text().replace("[repo__file_read]", "[repo__file_read, repo__file_write]"),
        "utf-8",
    )

    first = workflow.run("release")

    assert first is not None
    assert first.ok, first.log
    assert first.outputs == {"paused": "false", "pending": ""}
    assert workflow.run("approved") is None


@pytest.mark.slow(reason="runs the action of two jobs")
def test_a_run_that_fails_is_no_pause(workflow: Workflow) -> None:
    (workflow.checkout / "README.md").unlink()

    first = workflow.run("release")

    assert first is not None
    assert not first.ok
    assert workflow.artifacts == {}


@pytest.mark.slow(reason="runs the action of two jobs")
def test_what_was_not_reviewed_is_not_approved(paused: Workflow) -> None:
    outputs = paused.results["release"].outputs
    id, digest, tool = outputs["pending"].split()
    outputs["pending"] = f"{id} {'0' * len(digest)} {tool}"

    second = paused.run("approved")

    assert second is not None
    assert not second.ok
    assert "digest" in second.log
    assert not (second.workspace / "TITLE.md").exists()


@pytest.mark.slow(reason="runs the action of two jobs")
def test_a_job_without_the_secret_does_not_continue(paused: Workflow) -> None:
    paused.secrets = {"NOTE_KEY": ""}

    second = paused.run("approved")

    assert second is not None
    assert not second.ok
    assert not (second.workspace / "TITLE.md").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["../../evil", "-rf", "notes", "/etc/passwd"])
def test_an_archive_of_something_else_is_refused(
    paused: Workflow, tmp_path: Path, name: str
) -> None:
    (stored,) = paused.artifacts["paused-run"].iterdir()
    content = tmp_path / "content"
    content.write_text("x")
    subprocess.run(
        ["tar", "-cPf", stored, "--transform", f"s|.*|{name}|", "content"],
        cwd=tmp_path,
        check=True,
    )

    second = paused.run("approved")

    assert second is not None
    assert not second.ok
    assert "is not one of a paused run" in second.log
    assert not list(tmp_path.rglob("evil"))


def test_the_workflows_of_the_guides_use_what_the_action_has(workflow: Workflow) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for block in blocks(page):
            if "uses: OWNER/aish" not in block.text or "jobs:" not in block.text:
                continue
            for job in YAML(typ="safe", pure=True).load(block.text)["jobs"].values():
                own = [one for one in job["steps"] if one.get("uses", "").startswith("OWNER/aish")]
                for step in own:
                    assert set(step["with"]) <= set(workflow.action["inputs"]), block.where
            named = set(re.findall(r"steps\.aish\.outputs\.([\w-]+)", block.text))
            assert named <= set(workflow.action["outputs"]), block.where
