"""`aish control pending`: the questions of paused runs on a page and by API (A3)."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from cli_process import Running
from e2e_project import REPO, Project, of_type
from live_runs import ledger, runtime_folder
from mcp_peers import free_port
from plain_http import PLAIN

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
PAUSING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: pause
    on_denied: continue
    steps:
      - {{id: first, call: box__write, with: {{text: one}}}}
      - {{id: second, needs: [], call: box__write, with: {{text: two}}}}
    """


@pytest.fixture
def paused(project: Project) -> Iterator[Project]:
    """A project with a run that waits for two answers."""
    with runtime_folder(project):
        project.pipeline(PAUSING)
        assert project.run().code == 8
        yield project


@contextmanager
def served(project: Project, *flags: str) -> Generator[tuple[Running, httpx.Client]]:
    """The questions of the project as they are served, and a client that has the link."""
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    with project.aish.start("control", "pending", *listen, *flags) as running:
        running.wait_for_lines(1)
        code = running.stdout.partition("#code=")[2].strip()
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60, verify=PLAIN
        ) as client:
            token = client.post("link", json={"code": code}).json()["token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield running, client


def give(client: httpx.Client, question: Any, answer: str) -> httpx.Response:
    body = {"answer": answer, "digest": question["digest"], "way": "page"}
    return client.post(f"approvals/{question['id']}", json=body)


def pending(client: httpx.Client) -> list[Any]:
    found: list[Any] = client.get("approvals").json()["pending"]
    return found


def test_the_questions_of_a_paused_run_are_answered_and_it_is_resumed(paused: Project) -> None:
    with served(paused, "--resume") as (running, client):
        first, second = pending(client)
        shown = client.get(f"approvals/{first['id']}/call").json()
        other = give(client, {**first, "digest": "0" * 64}, "approve")
        given = give(client, first, "approve")
        again = give(client, first, "deny")
        assert give(client, second, "deny").status_code == 200
        done = running.finish()

    assert (first["tool"], first["arguments"]) == ("box__write", {"text": "one"})
    assert paused.run_folders[0].name in first["step"]
    assert shown["state"] == "open"
    assert other.status_code == 422
    assert given.json()["state"] == "approved"
    assert again.status_code == 409
    assert done.code == 0, done.stderr
    assert ledger(paused) == ["one"]
    ways = [(one["answer"], one["way"]) for one in of_type(paused.journal, "approval.answered")]
    assert ways == [("approve", "page"), ("deny", "page")]


@pytest.mark.slow(reason="runs four processes")
def test_what_is_answered_elsewhere_meanwhile_is_answered(paused: Project) -> None:
    with served(paused) as (running, client):
        first, second = pending(client)
        run = paused.run_folders[0].name
        for one, more in ((first, ("--digest", first["digest"])), (second, ("--deny",))):
            assert paused.aish("approve", run, one["id"], "--yes", *more).code == 0
        done = running.finish()

    assert done.code == 0, done.stderr
    assert ledger(paused) == []
    assert paused.run("--resume").code == 0
    assert ledger(paused) == ["one"]


def test_nothing_is_served_where_no_paused_run_waits(project: Project) -> None:
    done = project.aish("control", "pending")

    assert (done.code, done.stdout) == (0, "")
    assert "no call of a paused run waits for an answer" in done.stderr
