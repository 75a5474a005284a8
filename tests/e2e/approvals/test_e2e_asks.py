"""Questions of other programs, answered where those about calls are: by people, in each place."""

import json
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_project import Project, of_type
from live_runs import at_terminal, client_of, runtime_folder
from patience import rounds
from plain_http import PLAIN
from served_hub import ServedHub
from shell_terminal import at_prompt, sitting

ASK = {"title": "Deploy?", "text": "version 1.2", "data": {"to": "production"}}
YES = {"approved": True}
WAIT = ["sh", "-c", "until [ -e over ]; do sleep 0.05; done"]
LASTING = f"""
    mcp: {{auto_approve: [{{tool: shell__run, command: {json.dumps(WAIT)}}}]}}
    run: {json.dumps(WAIT)}
    """


@pytest.fixture
def lasting(project: Project) -> Iterator[Project]:
    """A project whose run lasts until there is the file `over`."""
    with runtime_folder(project):
        project.pipeline(LASTING)
        yield project


@contextmanager
def asked(client: httpx.Client, **more: Any) -> Generator["Future[httpx.Response]"]:
    """A question that a program waits for."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(client.post, "ask", json={**ASK, **more})


def listed(project: Project) -> list[Any]:
    """What `aish runs pending` lists."""
    found = json.loads(project.aish("runs", "pending", "--format", "json").stdout)
    pending: list[Any] = found["pending"]
    return pending


def until_listed(project: Project) -> Any:
    for _ in rounds("the question is not listed"):
        if found := listed(project):
            return found[0]
    return None


def approve(project: Project, question: Any, *more: str) -> Any:
    return project.aish(
        "approve", question["run"], question["id"], "--yes", "--digest", question["digest"], *more
    )


def answers() -> list[tuple[tuple[str, ...], Any]]:
    no = {"approved": False, "note": "not on a Friday"}
    return [((), YES), (("--deny", "--note", "not on a Friday"), no)]


@pytest.mark.parametrize(("more", "response"), answers())
def test_a_command_lists_and_answers_the_question_of_a_program(
    lasting: Project, more: tuple[str, ...], response: Any
) -> None:
    with lasting.aish.start("run", "p.yaml", "--control") as running:
        running.wait_for_line("listening on")
        with client_of(lasting) as client, asked(client) as waiting:
            question = until_listed(lasting)
            status = client.get("status").json()
            shown = lasting.aish("runs", "pending").stdout
            done = approve(lasting, question, *more)
            answered = waiting.result()
        again = approve(lasting, question)
        lasting.write("over", "")
        assert running.finish().code == 0

    assert (question["server"], question["tool"], question["step"]) == ("", "ask", None)
    assert question["arguments"] == ASK
    assert question["caller_waiting"] is True
    assert question["id"][:8] in shown
    assert status["pending"] == [question["id"]]
    assert done.code == 0, done.stderr
    assert answered.json() == {"request_id": question["id"], "response": response}
    assert again.code == 1
    said = "denied" if more else "approved"
    assert f"is already {said}, by" in again.stderr
    (ended,) = of_type(lasting.journal, "ask_ended")
    assert (ended["way"], ended["response"]) == ("command", response)


def test_the_question_of_a_program_ends_with_the_process_that_it_was_asked_in(
    lasting: Project,
) -> None:
    with lasting.aish.start("run", "p.yaml", "--control") as running:
        running.wait_for_line("listening on")
        with client_of(lasting) as client, asked(client) as waiting:
            question = until_listed(lasting)
            running.kill()
            assert isinstance(waiting.exception(), httpx.HTTPError)

    assert listed(lasting) == []
    late = approve(lasting, question)
    assert (late.code, "was withdrawn" in late.stderr) == (1, True)
    lasting.write("over", "")
    assert lasting.run("--resume", "--retry-unknown").code == 0


@pytest.mark.slow(reason="asks at a terminal; the command answers in the test above")
@pytest.mark.parametrize(("typed", "response"), [("y", YES), ("", {"approved": False})])
def test_the_person_at_the_terminal_answers_the_question_of_a_program(
    lasting: Project, typed: str, response: Any
) -> None:
    with at_terminal(lasting, "exec $AISH run p.yaml --ask --control") as terminal:
        terminal.expect_exact("listening on")
        with client_of(lasting) as client, asked(client) as waiting:
            terminal.expect_exact("another program needs an answer")
            terminal.expect_exact('"text": "version 1.2"')
            terminal.expect_exact("answer yes? [y/N]")
            terminal.send(f"{typed}\r")
            answered = waiting.result()
        # Who answers first elsewhere is told here.
        with client_of(lasting) as client, asked(client) as waiting:
            terminal.expect_exact("answer yes? [y/N]")
            (question,) = listed(lasting)
            assert approve(lasting, question).code == 0
            terminal.expect_exact("answered meanwhile: approved by")
            elsewhere = waiting.result()
        lasting.write("over", "")
        terminal.wait()

    assert terminal.exitstatus == 0
    assert answered.json()["response"] == response
    assert elsewhere.json()["response"] == YES
    first, _ = of_type(lasting.journal, "ask_ended")
    assert (first["by"], first["way"]) == ("the user", "terminal")


def test_the_person_in_a_session_answers_and_no_model_is_asked(
    project: Project, model_endpoint: Callable[..., Any]
) -> None:
    endpoint = model_endpoint([])
    project.uses(endpoint)
    project.pipeline("shell: {}\n")
    with runtime_folder(project) as folder:
        path = Path(folder, "own", "s")
        with sitting(project, "--control", f"unix:{path}", columns=160) as window:
            window.wait_for(f"listening on unix:{path}")
            window.wait_for(at_prompt(window))
            transport = httpx.HTTPTransport(uds=str(path), verify=PLAIN)
            base = "http://aish/api/v1"
            with httpx.Client(transport=transport, base_url=base, timeout=60) as client:
                with asked(client) as waiting:
                    window.wait_for("answer yes? [y/N]")
                    window.type("y\r")
                    answered = waiting.result()
                window.wait_for(at_prompt(window))
                window.type(":quit\r")
            assert window.finish() == 0

    assert answered.json()["response"] == YES
    assert endpoint.asked == []


def test_what_is_asked_of_a_hub_is_listed_and_answered_too(project: Project) -> None:
    project.write("note.md", "hello\n")
    with (
        runtime_folder(project) as runtime,
        ServedHub(project, "--pack", "fs", "--root", ".", "--control") as hub,
    ):
        hub.begin()
        hub.stderr_with("control API: listening on")
        (named,) = runtime.glob("aish/hub-*.control.json")
        path = json.loads(named.read_text())["address"].removeprefix("unix:")
        transport = httpx.HTTPTransport(uds=path, verify=PLAIN)
        with (
            httpx.Client(transport=transport, base_url="http://aish/api/v1", timeout=60) as client,
            asked(client) as waiting,
        ):
            question = until_listed(project)
            done = approve(project, question)
            answered = waiting.result()
        left = listed(project)
        hub.end_input()
        assert hub.finish() == 0

    assert done.code == 0, done.stderr
    assert (question["run"], question["tool"]) == (named.name.removesuffix(".control.json"), "ask")
    assert answered.json()["response"] == YES
    assert left == []
