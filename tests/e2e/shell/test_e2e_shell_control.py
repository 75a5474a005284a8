"""A session is asked about and answered over its socket, beside the person at its terminal (A1)."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_project import ModelEndpoints, Project, of_type
from live_runs import WAITS, answer, code_of, pending, runtime_folder
from shell_sessions import FS, READ, obedient, records, session_folders
from shell_terminal import (
    CTRL_C,
    answered,
    at_prompt,
    leave,
    sent_messages,
    session_journal,
    sitting,
)
from terminal_window import Window


@pytest.fixture
def endpoint(model_endpoint: ModelEndpoints) -> Any:
    return model_endpoint(obedient)


@pytest.fixture
def session(project: Project, endpoint: Any) -> Iterator[Project]:
    """A project with a file to read, which no rule approves."""
    with runtime_folder(project):
        project.uses(endpoint)
        project.pipeline(FS)
        project.write("data/note.txt", "hello\n")
        yield project


def socket_of(project: Project) -> Path:
    """A socket in a private folder, which the session makes."""
    return Path(project.aish.env["XDG_RUNTIME_DIR"], "own", "s")


def client_at(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://aish/api/v1", timeout=30)


def asked(window: Window, line: str) -> None:
    """Type a question whose call needs an answer, and wait until somebody is asked."""
    window.wait_for(at_prompt(window))
    window.mark()
    window.type(f"{line}\r")
    window.wait_for(lambda: "send this call?" in "\n".join(window.since))


@pytest.mark.requirement("A1", "A3", "A6", "S1")
def test_the_first_answer_counts_at_the_terminal_or_elsewhere(
    session: Project, endpoint: Any
) -> None:
    path = socket_of(session)
    session.pipeline(FS + "on_ask: pause\n")
    with sitting(session, "--control", f"unix:{path}", columns=160) as window:
        window.wait_for(f"listening on unix:{path}")
        with client_at(path) as client:
            asked(window, READ)
            (question,) = pending(client)
            assert client.get("status").json()["state"] == "waiting"
            assert question["arguments"] == {"path": "note.txt"}
            # What was typed for the question is not an answer, and no part of the next line.
            window.type("y")
            window.wait_for("[y/N/a] y")
            given = answer(client, question)
            assert given.status_code == 200, given.text
            by = given.json()["answer"]["by"]
            window.wait_for(f"answered meanwhile: approved by {by} (api)")
            window.wait_for("hello")
            window.wait_for(at_prompt(window))

            asked(window, READ)
            (other,) = pending(client)
            window.type("n\r")
            window.wait_for(lambda: "denied by the user" in "\n".join(window.since))
            late = answer(client, other)
            assert code_of(late) == (409, "decided")
            assert "already denied, by the user (terminal)" in late.json()["error"]["message"]

            asked(window, READ)
            (left,) = pending(client)
            window.type(CTRL_C)
            window.wait_for(at_prompt(window))
            assert code_of(answer(client, left)) == (410, "withdrawn")
        # The call that was stopped has its reply: the conversation can be continued.
        answered(window, "well", ": well>")
        assert sent_messages(endpoint.asked[-1])[-1] == ("user", "well")
        assert leave(window) == 0

    assert not path.exists()
    ends = of_type(session_journal(session), "approval.answered")
    assert [(one["answer"], one["way"]) for one in ends] == [
        ("approve", "api"),
        ("deny", "terminal"),
        ("withdrawn", "run"),
    ]


PROBE = """
import http.client, json, pathlib, socket, sys

(named,) = pathlib.Path(".aish/sessions").glob("*/control.json")
connection = http.client.HTTPConnection("x")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(json.loads(named.read_text())["address"].removeprefix("unix:"))
body = json.dumps({"answer": "deny"})
connection.request("POST", f"/api/v1/approvals/{'0' * 32}", body)
print("probe:", connection.getresponse().status)
"""


@pytest.mark.requirement("A2", "A7", "A9", "S1")
def test_without_a_terminal_a_session_waits_for_somebody_who_is_not_below_it(
    session: Project,
) -> None:
    session.pipeline(FS + "on_ask: pause\n")
    probe = session.write("probe.py", PROBE)
    lines = (READ, f"!{sys.executable} {probe}", "bye")
    place = ("--run-dir", ".aish/sessions")
    with session.aish.start("shell", "p.yaml", stdin="\n".join(lines)) as running:
        running.wait_for_line(WAITS)
        (folder,) = session_folders(session)
        (question,) = of_type(records(folder), "approval.asked")
        listed = session.aish("runs", "pending", *place)
        assert question["id"][:8] in listed.stdout, listed
        digest = question["digest"][:12]
        given = ("--yes", "--digest", digest, *place)
        told = session.aish("approve", folder.name, question["id"][:8], *given)
        assert told.code == 0, told.stderr
        done = running.finish()

    assert done.code == 0, done.stderr
    assert "hello" in done.stdout
    assert "probe: 403" in done.stdout
    ended, typed = of_type(records(folder), "approval.answered")
    assert (ended["answer"], ended["way"]) == ("approve", "command")
    # What is typed has its answer: nobody has time to give one.
    assert typed["way"] == "terminal"
    ends = [one["expires"] for one in of_type(records(folder), "approval.asked")]
    assert (ends[0] is not None, ends[1]) == (True, None)
    assert not (folder / "control.json").exists()
