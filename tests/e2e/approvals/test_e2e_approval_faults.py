"""Questions and answers where something fails: the disk, the socket, the folder (A6, A9, 8.11)."""

import json
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from e2e_project import REPO, Project, of_type
from live_runs import (
    answer,
    at_terminal,
    code_of,
    control_path,
    ledger,
    live_run,
    pending,
    runtime_folder,
)
from mcp_peers import free_port

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    """


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run waits for an answer."""
    with runtime_folder(project):
        project.pipeline(WAITING)
        yield project


def fill_the_disk(pid: int, journal: Path, room: int) -> None:
    """Let no file of a process grow further than its journal and a few bytes, as a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (journal.stat().st_size + room, hard))


@pytest.mark.slow(reason="answers a live run on a full disk")
@pytest.mark.parametrize("room", [0, 40])
def test_an_answer_that_cannot_be_written_down_does_not_count(waiting: Project, room: int) -> None:
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        journal = waiting.run_folders[0] / "events.jsonl"
        before = journal.read_bytes()
        fill_the_disk(running.pid, journal, room)

        given = [answer(client, question, which) for which in ("approve", "deny", "approve")]
        assert [one["state"] for one in pending(client)] == ["open"]
        running.interrupt(signal.SIGTERM)
        ended = running.finish()

    assert {code_of(one) for one in given} == {(507, "not_written")}
    assert "make room" in given[0].json()["error"]["hint"]
    assert ended.code == 143, ended.stderr
    assert "error: cannot write the journal: " in ended.stderr
    assert ledger(waiting) == []
    assert journal.read_bytes() == before
    approved = waiting.aish(
        "approve", "latest", question["id"], "--yes", "--digest", question["digest"]
    )
    done = waiting.run("--resume")
    assert (approved.code, done.code) == (0, 0), done.stderr
    assert ledger(waiting) == ["one"]


def test_an_approved_call_that_cannot_be_written_down_is_not_made(waiting: Project) -> None:
    """There is room for the answer, and none for what follows it."""
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        journal = waiting.run_folders[0] / "events.jsonl"
        # `control.called` follows the answer before the call is decided.
        fill_the_disk(running.pid, journal, 400)
        answered = answer(client, question)
        ended = running.finish()

    assert answered.status_code == 200, answered.text
    assert ended.code == 1, ended.stderr
    assert "the journal cannot be written" in ended.stderr
    assert ledger(waiting) == []
    assert [one["answer"] for one in of_type(waiting.journal, "approval.answered")] == ["approve"]
    done = waiting.run("--resume")
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]


@pytest.mark.slow(reason="asks at a terminal on a full disk")
def test_a_yes_at_the_terminal_that_cannot_be_written_down_is_a_no(waiting: Project) -> None:
    with at_terminal(waiting, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        journal = waiting.run_folders[0] / "events.jsonl"
        before = journal.read_bytes()
        fill_the_disk(terminal.pid or 0, journal, 0)
        terminal.send("y\r")
        terminal.expect(pexpect.EOF)
        rest = " ".join((terminal.before or "").split())
        terminal.wait()

    assert terminal.exitstatus == 3, rest
    assert "the answer does not count: the journal cannot be written" in rest
    assert ledger(waiting) == []
    assert journal.read_bytes() == before


@pytest.mark.slow(reason="kills and resumes a run that listens")
def test_a_run_is_not_answered_where_an_earlier_process_of_it_listened(waiting: Project) -> None:
    """The port of a run that was killed may belong to anybody; no token is sent there."""
    # A port that the kernel gives to nobody else before the stranger has it.
    with live_run(waiting, "--control", f"127.0.0.1:{free_port()}") as (running, _):
        running.kill()
    folder = waiting.run_folders[0]
    named = json.loads(control_path(waiting, folder.name).read_text())
    assert Path(named["token_file"]).exists()
    waiting.pipeline(WAITING.replace("on_ask: wait", "on_ask: deny"))
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", int(named["address"].rpartition(":")[2])))
        stranger.listen()
        with at_terminal(waiting, "exec $AISH run p.yaml --resume --force --ask") as terminal:
            terminal.expect_exact("[y/N/a")
            (question,) = json.loads(waiting.aish("runs", "pending", "--format", "json").stdout)[
                "pending"
            ]
            given = ("--yes", "--digest", question["digest"])
            told = waiting.aish("approve", "latest", question["id"], *given)
            terminal.send("n\r")
            terminal.expect(pexpect.EOF)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()

    assert told.code == 1
    assert "takes no answers" in told.stderr
    assert ledger(waiting) == []


def test_a_run_whose_folder_is_removed_goes_on_to_its_end(waiting: Project) -> None:
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        shutil.rmtree(waiting.run_folders[0])
        unknown = waiting.aish("approve", "latest", question["id"], "--deny", "--yes")
        assert answer(client, question).status_code == 200
        done = running.finish()

    assert unknown.code == 2
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert ledger(waiting) == ["one"]
    assert not list(Path(waiting.aish.env["XDG_RUNTIME_DIR"], "aish").iterdir())
