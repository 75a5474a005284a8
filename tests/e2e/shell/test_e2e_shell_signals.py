"""SIGTERM, SIGHUP and `kill -9` in each state of a session: nothing is left behind (S1, M10)."""

import shutil
import signal
import sys
from itertools import product
from pathlib import Path

import pytest
from e2e_project import ModelEndpoints, Project, of_type, wait_file, wait_gone
from samples import sampled
from shell_states import STATES, State, reach, set_the_scene
from shell_terminal import (
    ask,
    at_prompt,
    left_alone,
    session_folder,
    session_journal,
    sitting,
)
from terminal_window import Window


def begun(project: Project, window: Window, endpoint: object, state: State) -> list[int]:
    """Reach a state; the processes that must not outlive the session."""
    reach(window, endpoint, state)
    note = project.folder / "grandchild"
    wait_file(note)
    grandchild = int(note.read_text())
    stat = Path(f"/proc/{grandchild}/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    pids = [grandchild, int(fields[1])]
    command = project.folder / "pid"
    return [*pids, int(command.read_text())] if command.exists() else pids


@pytest.mark.parametrize(
    ("name", "end"),
    sampled(
        product(STATES, ["SIGTERM", "SIGHUP", "the window is closed"]),
        often=range(0, 3 * len(STATES), 4),
        reason="each state and each end is in a case that always runs",
    ),
)
def test_a_session_that_is_ended_closes_its_journal_and_leaves_no_process(
    project: Project, model_endpoint: ModelEndpoints, name: str, end: str
) -> None:
    state = STATES[name]
    flags = ("--grandchild-note", project.folder / "grandchild")
    endpoint = set_the_scene(project, model_endpoint, state, *flags)
    with sitting(project) as window:
        pids = begun(project, window, endpoint, state)
        if end == "the window is closed":
            assert window.hang_up() == 143
        else:
            window.send_signal(signal.Signals[end])
            assert window.finish() == 143
            assert left_alone(window)
        assert "Traceback" not in window.text
    for pid in pids:
        wait_gone(pid)
    journal = session_journal(project)
    assert journal[-1]["type"] == "run.finished"
    assert (journal[-1]["status"], journal[-1]["exit"]["code"]) == ("interrupted", 143)
    started = {event["step"] for event in of_type(journal, "step.started")}
    assert started == {event["step"] for event in of_type(journal, "step.finished")}
    if name == "a pipeline":
        assert project.journal[-1]["type"] == "run.finished"
        assert project.journal[-1]["exit"]["code"] == 143


@pytest.mark.parametrize(
    "name",
    sampled(
        ["editing", "streaming", "a tool", "a local command"],
        often={2},
        reason="each starts a shell",
    ),
)
def test_closing_a_terminal_that_has_a_shell_in_it_ends_the_session_in_order(
    project: Project, model_endpoint: ModelEndpoints, name: str
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("the shell that hangs up on its jobs is not installed")
    state = STATES[name]
    # A server that takes its time to end, so that what the shell says comes in between.
    flags = ("--ignore-sigterm", "--grandchild-note", project.folder / "grandchild")
    endpoint = set_the_scene(project, model_endpoint, state, *flags)
    project.write("go.sh", f"echo $$ > session\nexec {sys.executable} -m aish shell p.yaml\n")
    env = {**project.aish.env, "PS1": "$ "}
    with Window([bash, "--norc", "-i"], cwd=project.folder, env=env) as window:
        window.type("sh go.sh\r")
        window.wait_for(at_prompt(window))
        session = int((project.folder / "session").read_text())
        pids = begun(project, window, endpoint, state)
        window.hang_up()
        for pid in (session, *pids):
            wait_gone(pid)
    end = session_journal(project)[-1]
    assert (end["type"], end["exit"]["code"]) == ("run.finished", 143)
    assert (session_folder(project) / "recording-1.yaml").is_file(), "it is finished"


@pytest.mark.real_process
@pytest.mark.parametrize(
    "name",
    sampled(
        ["editing", "connecting", "a tool", "an approval", "a pipeline"],
        often={2},
        reason="each starts the real program",
    ),
)
def test_kill_9_leaves_no_process(
    project: Project, model_endpoint: ModelEndpoints, name: str
) -> None:
    state = STATES[name]
    flags = ("--ignore-sigterm", "--grandchild-note", project.folder / "grandchild")
    endpoint = set_the_scene(project, model_endpoint, state, *flags)
    with sitting(project) as window:
        pids = begun(project, window, endpoint, state)
        window.send_signal(signal.SIGKILL)
        assert window.finish() == -signal.SIGKILL
    for pid in pids:
        wait_gone(pid)


@pytest.mark.slow(reason="starts the real executable")
@pytest.mark.real_process
def test_kill_9_ends_a_local_command_too(project: Project, model_endpoint: ModelEndpoints) -> None:
    state = STATES["a local command"]
    endpoint = set_the_scene(project, model_endpoint, state)
    with sitting(project) as window:
        reach(window, endpoint, state)
        pid = int((project.folder / "pid").read_text())
        window.send_signal(signal.SIGKILL)
        window.finish()
    wait_gone(pid)


@pytest.mark.slow(reason="starts the real executable")
@pytest.mark.real_process
@pytest.mark.parametrize("typed", ["", "hello\r"])
def test_a_signal_to_a_session_that_has_hardly_begun_ends_it_in_order(
    project: Project, model_endpoint: ModelEndpoints, typed: str
) -> None:
    project.uses(model_endpoint())
    project.pipeline("")
    with sitting(project) as window:
        # The prompt stands before the session does, so that this comes first.
        window.type(typed)
        window.send_signal(signal.SIGTERM)
        assert window.finish() == 143
        assert left_alone(window)
    journal = session_journal(project)
    assert [journal[0]["type"], journal[-1]["type"]] == ["run.started", "run.finished"]
    assert journal[-1]["exit"]["code"] == 143


@pytest.mark.slow(reason="runs a session below another program")
def test_a_session_under_nohup_outlives_its_window(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint())
    project.pipeline("")
    project.through_shell('trap "" HUP; exec "$@"')
    with sitting(project) as window:
        window.send_signal(signal.SIGHUP)
        ask(window, ":context")
        window.wait_for("about")
