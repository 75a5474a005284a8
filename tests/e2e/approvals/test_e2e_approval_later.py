"""A paused run is answered and resumed later, and not all is as it was (A6, A8 to A10, P6)."""

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from e2e_project import (
    REPO,
    ModelEndpoints,
    Project,
    ahead,
    of_type,
)
from live_runs import ledger
from model_endpoint import ModelEndpoint, Reply, text_reply, tool_reply
from scripted_events import HOSTILE

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
PAUSES = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: pause
    limits: {{time: 30m}}
    steps:
      - {{id: note, prompt: "Write it down"}}
      - {{id: after, prompt: "Then: {{{{ steps.note.text }}}}"}}
    """
HOUR, DAY = 3600, 86400
# A lone surrogate is no JSON.
TEXT = HOSTILE.replace("\ud800", "")


def replies(request: Any) -> Reply:
    last = request["messages"][-1]
    if last["role"] == "tool":
        return text_reply("done")
    if last["content"].startswith("Then"):
        return text_reply("the end")
    return tool_reply([("c1", "box__write", json.dumps({"text": TEXT}))])


@pytest.fixture
def paused(project: Project, model_endpoint: ModelEndpoints) -> tuple[Project, ModelEndpoint, Any]:
    """A run that waits for an answer, and no process: its project, its model, its question."""
    project.pipeline(PAUSES)
    endpoint = model_endpoint(replies)
    project.uses(endpoint)
    done = project.run()
    assert done.code == 8, done.stderr
    (asked,) = of_type(project.journal, "approval.asked")
    return project, endpoint, asked


Paused = tuple[Project, ModelEndpoint, Any]


def approve(project: Project, asked: Any, *, after: int = 0) -> None:
    words = ("approve", "latest", asked["id"], "--yes", "--digest", asked["digest"])
    done = ahead(project, after, *words) if after else project.aish(*words)
    assert done.code == 0, done.stderr


def test_an_hour_later_the_call_is_made_once_as_it_was_shown(paused: Paused) -> None:
    """The time limit of half an hour does not run while nobody executes the run."""
    project, endpoint, asked = paused
    approve(project, asked, after=HOUR)

    done = ahead(project, 2 * HOUR, "run", "p.yaml", "--resume")

    assert done.code == 0, done.stderr
    assert done.stdout == "the end\n"
    assert ledger(project) == [asked["arguments"]["text"]] == [TEXT]
    # Each turn was asked for once, and the calls of the first are those that were shown.
    assert [len(body["messages"]) for body in endpoint.asked] == [1, 3, 1]
    (decided,) = of_type(project.journal, "tool.decided")
    assert (decided["digest"], decided["approval"]) == (asked["digest"], asked["id"])
    assert ahead(project, 3 * HOUR, "run", "p.yaml", "--resume").code == 0
    assert ledger(project) == [TEXT]


def test_a_week_later_the_question_has_expired(paused: Paused) -> None:
    project, endpoint, asked = paused
    words = ("approve", "latest", asked["id"], "--yes", "--digest", asked["digest"])
    listed = json.loads(ahead(project, 8 * DAY, "runs", "pending", "--format", "json").stdout)
    late = ahead(project, 8 * DAY, *words)
    done = ahead(project, 8 * DAY, "run", "p.yaml", "--resume")

    assert listed["pending"] == []
    assert (late.code, "has expired: it was open until" in late.stderr) == (1, True)
    assert done.code == 3, done.stderr
    assert "nobody answered within 7d" in done.stderr
    assert ledger(project) == []
    assert len(endpoint.requests) == 1


@pytest.mark.slow(reason="runs four processes")
def test_a_yes_that_came_in_time_counts_after_the_time(paused: Paused) -> None:
    project, _, asked = paused
    approve(project, asked, after=6 * DAY)

    done = ahead(project, 30 * DAY, "run", "p.yaml", "--resume")

    assert done.code == 0, done.stderr
    assert ledger(project) == [TEXT]


@pytest.mark.slow(reason="runs four processes")
def test_always_for_a_paused_run_approves_the_same_call_of_its_resumed_part(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(PAUSES.replace("limits: {time: 30m}", "on_denied: continue"))
    texts = iter(("one", "one", "two"))

    def calls(request: Any) -> Reply:
        text = next(texts, None)
        if text is None:
            return text_reply("done")
        return tool_reply([(f"c{len(request['messages'])}", "box__write", f'{{"text": "{text}"}}')])

    project.uses(model_endpoint(calls))
    assert project.run().code == 8
    (asked,) = of_type(project.journal, "approval.asked")
    words = ("approve", "latest", asked["id"], "--always")
    bare = project.aish(*words)
    done = project.aish(*words, "--yes", "--digest", asked["digest"])
    resumed = project.run("--resume")

    assert (bare.code, "`--always` goes with `--yes" in bare.stderr) == (2, True)
    rule = 'box__write when {"text": "one"} schema {"maxProperties": 1}'
    assert f"always: auto_approve {rule}, for this run\n" in done.stdout
    assert resumed.code == 8, resumed.stderr
    assert ledger(project) == ["one", "one"]
    _, other = of_type(project.journal, "approval.asked")
    assert other["arguments"] == {"text": "two"}


@pytest.mark.slow(reason="runs four processes")
def test_a_file_that_changed_keeps_the_answer_to_a_call_that_did_not(paused: Paused) -> None:
    project, endpoint, asked = paused
    approve(project, asked)
    project.pipeline(PAUSES.replace('"Then:', '"Then, at last:'))

    refused = project.run("--resume")
    before = ledger(project)
    done = project.run("--resume", "--force")

    assert (refused.code, before) == (2, [])
    assert "the run would differ" in refused.stderr
    assert "`steps[1].prompt` changed" in refused.stderr
    assert done.code == 0, done.stderr
    assert ledger(project) == [TEXT]
    assert len(of_type(project.journal, "approval.asked")) == 1
    assert endpoint.asked[-1]["messages"][0]["content"] == "Then, at last: done"


WITH_SECRET = dedent(PAUSES).lstrip() + "secrets: [NOTE_KEY]\n"


@pytest.mark.slow(reason="runs four processes for each case")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("gone", ["missing", "empty", "other"])
def test_a_secret_that_is_gone_loses_nothing(
    project: Project, model_endpoint: ModelEndpoints, gone: str
) -> None:
    first, other = "correct-horse-battery", "another-horse-staple"
    project.aish.env["NOTE_KEY"] = first
    project.pipeline(WITH_SECRET)

    def tells(request: Any) -> Reply:
        last = request["messages"][-1]
        if last["role"] == "tool" or last["content"].startswith("Then"):
            return replies(request)
        return tool_reply([("c1", "box__write", json.dumps({"text": first}))])

    endpoint = model_endpoint(tells)
    project.uses(endpoint)
    assert project.run().code == 8
    (asked,) = of_type(project.journal, "approval.asked")
    assert asked["arguments"] == {"text": "<secret:NOTE_KEY>"}
    approve(project, asked)
    before = journal_of(project).read_bytes()
    changed = {"missing": {}, "empty": {"NOTE_KEY": ""}, "other": {"NOTE_KEY": other}}[gone]
    del project.aish.env["NOTE_KEY"]

    refused = project.run("--resume", env=changed)
    assert ledger(project) == []
    if gone == "other":
        # Another value is another call: who approved the first did not approve this one.
        assert refused.code == 8, refused.stderr
        newer = of_type(project.journal, "approval.asked")[-1]
        assert (newer["id"] != asked["id"], newer["digest"] != asked["digest"]) == (True, True)
        approve(project, newer)
        assert project.run("--resume", env=changed).code == 0
        assert ledger(project) == [other]
        return
    assert refused.code == 2, refused.stderr
    assert "has the secret `NOTE_KEY` in it, which is not set now" in refused.stderr
    assert "hint: set `NOTE_KEY`" in refused.stderr
    assert journal_of(project).read_bytes() == before
    done = project.run("--resume", env={"NOTE_KEY": first})
    assert done.code == 0, done.stderr
    assert ledger(project) == [first]


def journal_of(project: Project) -> Path:
    return project.run_folders[0] / "events.jsonl"


@pytest.mark.slow(reason="runs four processes")
def test_a_call_whose_arguments_changed_in_the_file_is_asked_about_again(project: Project) -> None:
    text = f"""
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: pause
        steps: [{{id: note, call: box__write, with: {{text: "{{{{ 'o' + 'ne' }}}}"}}}}]
        """
    project.pipeline(text)
    assert project.run().code == 8
    (asked,) = of_type(project.journal, "approval.asked")
    approve(project, asked)
    project.pipeline(text.replace("'ne'", "'ther'"))

    again = project.run("--resume", "--force")

    assert again.code == 8, again.stderr
    assert ledger(project) == []
    newer = of_type(project.journal, "approval.asked")[-1]
    assert newer["arguments"] == {"text": "other"}
    assert newer["id"] != asked["id"]
    approve(project, newer)
    assert project.run("--resume", "--force").code == 0
    assert ledger(project) == ["other"]
