"""What a run that pauses tells people and programs, while it runs and afterwards (A8)."""

import json
import sys

import pytest
from e2e_project import REPO, ModelEndpoints, Project
from model_endpoint import text_reply, tool_reply

SERVER = REPO / "tests" / "support" / "mcp_ledger_server.py"
WAITS = f"""
    mcp:
      servers:
        box: {{command: {json.dumps([sys.executable, str(SERVER)])}}}
    on_ask: pause
    prompt: Write it down
    """


@pytest.fixture
def waiting(project: Project, model_endpoint: ModelEndpoints) -> Project:
    project.pipeline(WAITS)
    call = tool_reply([("c1", "box__write", json.dumps({"text": "one"}))])
    project.uses(model_endpoint([call, text_reply("the end")]))
    return project


@pytest.mark.requirement("A8")
def test_the_log_of_a_paused_run_says_what_waits_and_how_to_answer(waiting: Project) -> None:
    done = waiting.run()

    assert done.code == 8
    (folder,) = waiting.run_folders
    assert "box__write waits for an answer until 20" in done.stderr
    assert "1 call waits for an answer:" in done.stderr
    assert f"aish approve {folder.name} " in done.stderr
    assert "--resume" in done.stderr
    assert "error:" not in done.stderr


def test_a_quiet_run_says_what_it_waits_for(waiting: Project) -> None:
    done = waiting.run("-q")

    assert (done.code, done.stdout) == (8, "")
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("box__write waits for an answer until 20")
    assert second.startswith("paused: ")
    assert "error" not in done.stderr
    assert "aish approve" in done.stderr


def test_the_reports_of_a_paused_run_have_an_error_that_says_what_waits(waiting: Project) -> None:
    done = waiting.run(
        "--format", "json", "--junit", "j.xml", "--html", "p.html", "--sarif", "s.sarif"
    )

    assert done.code == 8
    result = json.loads(done.stdout)
    (pending,) = result["pending"]
    assert (result["status"], pending["tool"], pending["step"]) == ("paused", "box__write", "main")
    xml = (waiting.folder / "j.xml").read_text("utf-8")
    assert (xml.count("<error"), xml.count("<failure")) == (1, 0)
    assert "1 call waits for an answer" in (waiting.folder / "p.html").read_text("utf-8")

    shown = waiting.aish("runs", "show", "latest")
    assert "box__write waits for an answer" in shown.stdout
    kept = waiting.aish("runs", "clean", "--keep", "0")
    assert kept.code == 1
    assert "1 call waits for an answer" in kept.stderr

    denied = waiting.aish("approve", "latest", pending["id"], "--deny", "--yes", "--note", "no")
    assert denied.code == 0, denied.stderr
    after = json.loads(waiting.aish("runs", "show", "latest", "--format", "json").stdout)
    assert (after["status"], after.get("pending")) == ("paused", None)
    assert after["steps"]["main"]["tool_calls"][0]["approval"]["note"] == "no"
    assert waiting.aish("runs", "clean", "--keep", "0").code == 0
    assert waiting.run_folders == []


def test_the_result_of_a_resumed_run_has_the_answer_that_was_given_between(
    waiting: Project,
) -> None:
    question = json.loads(waiting.run("--format", "json").stdout)["pending"][0]["id"]
    (asked,) = json.loads(waiting.aish("runs", "pending", "--format", "json").stdout)["pending"]
    answer = ("--yes", "--digest", asked["digest"], "--note", "fine")
    assert waiting.aish("approve", "latest", question, *answer).code == 0

    done = waiting.run("--resume", "--format", "json", "--html", "p.html")

    assert done.code == 0, done.stderr
    live = json.loads(done.stdout)
    stored = json.loads(waiting.aish("runs", "show", "latest", "--format", "json").stdout)
    for result in (live, stored):
        (call,) = result["steps"]["main"]["tool_calls"]
        assert (call["kind"], call["approval"]["id"]) == ("ok", question)
        assert (call["approval"]["answer"], call["approval"]["note"]) == ("approve", "fine")
        assert "pending" not in result
    assert f"({question[:8]}) approved by" in (waiting.folder / "p.html").read_text("utf-8")
    (row,) = json.loads(waiting.aish("runs", "list", "--format", "json").stdout)
    assert (row["status"], row["pending"]) == ("ok", 0)
