"""Signals: a run stops at once, says so, and leaves no process behind."""

import os
import signal
from pathlib import Path

import pytest
from cli_process import Running
from e2e_project import ModelEndpoints, Project, of_type, stdio, wait_file, wait_gone
from model_endpoint import Gate, delta, hanging_reply, sse, stream_reply, tool_reply
from samples import sampled

pytestmark = pytest.mark.real_process

ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]


def stubborn(note: Path) -> str:
    """A server that ignores SIGTERM and has a child of its own."""
    return stdio("--ignore-sigterm", "--grandchild-note", note)


def child_of(pid: int) -> int:
    """The parent of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[1])


def family(note: Path) -> tuple[int, int]:
    """The pids of the stubborn server and of its child."""
    grandchild = int(note.read_text(encoding="utf-8"))
    return child_of(grandchild), grandchild


def streaming(project: Project, model_endpoint: ModelEndpoints) -> Running:
    """A run in the middle of an answer that does not go on."""
    gate = Gate()
    beginning = sse([delta(role="assistant", content="Once upon a time")], done=False)
    endpoint = model_endpoint([stream_reply(beginning, gate)])
    project.uses(endpoint)
    note = project.folder / "grandchild"
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stubborn(note)}}}}}}}
        steps: [{{id: tell, prompt: Tell a story}}, {{id: next, needs: [tell], prompt: And then?}}]
        """
    )
    running = project.aish.start("run", "p.yaml", "--format", "jsonl")
    running.wait_for_line("Once upon a time", where="stdout")
    return running


@pytest.mark.requirement("L10", "exit-130", "exit-143")
@pytest.mark.parametrize(
    ("kind", "code"), sampled(ENDS, often={0, 1}, reason="each starts servers")
)
def test_a_signal_stops_a_stream_at_once_and_ends_the_children(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals, code: int
) -> None:
    running = streaming(project, model_endpoint)
    server, grandchild = family(project.folder / "grandchild")

    running.interrupt(kind)
    done = running.finish()

    assert done.code == code
    assert "Traceback" not in done.stderr
    assert "hint: `aish run p.yaml --resume` resumes the run" in done.stderr
    (finished,) = of_type(project.journal, "run.finished")
    assert finished == project.journal[-1]
    assert (finished["status"], finished["exit"]["code"]) == ("interrupted", code)
    assert finished["exit"]["retryable"] is True
    (told,) = [e for e in of_type(project.journal, "step.finished") if e["step"] == "tell"]
    assert (told["status"], told["error"]["code"]) == ("failed", "interrupted")
    wait_gone(server)
    wait_gone(grandchild)


@pytest.mark.parametrize(
    "kinds", sampled(["INT", "INT TERM"], often={1}, reason="each waits for a server")
)
def test_an_interrupted_call_is_cancelled_and_signals_at_the_same_time_are_one(
    project: Project, model_endpoint: ModelEndpoints, kinds: str
) -> None:
    note, cancelled = project.folder / "grandchild", project.folder / "cancelled"
    endpoint = model_endpoint([tool_reply([("c1", "s__sleep", '{"ms": 600000}')])])
    project.uses(endpoint)
    flags = ("--era", "legacy", "--note-cancelled", cancelled)
    command = stubborn(note)[:-1] + ", " + ", ".join(f'"{flag}"' for flag in flags) + "]"
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {command}}}}}, auto_approve: [s__sleep]}}
        prompt: Sleep well
        """
    )
    running = project.aish.start("run", "p.yaml", "--format", "jsonl")
    running.wait_for_line('"tool.started"', where="stdout")
    server, grandchild = family(note)

    for kind in kinds.split():
        running.interrupt(signal.Signals[f"SIG{kind}"])
    done = running.finish()

    assert done.code in {130, 143}
    assert "Traceback" not in done.stderr
    assert cancelled.read_text(encoding="utf-8"), "the server was told"
    wait_gone(server)
    wait_gone(grandchild)


def test_a_terminal_that_goes_away_twice_ends_the_run_in_order(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    running = streaming(project, model_endpoint)
    server, grandchild = family(project.folder / "grandchild")

    running.interrupt(signal.SIGHUP)
    running.wait_for_line('"step.finished"', where="stdout")
    running.interrupt(signal.SIGHUP)
    done = running.finish()

    assert done.code == 143
    assert project.journal[-1]["type"] == "run.finished"
    wait_gone(server)
    wait_gone(grandchild)


@pytest.mark.requirement("X8")
def test_kill_9_leaves_no_child_and_no_grandchild(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    running = streaming(project, model_endpoint)
    server, grandchild = family(project.folder / "grandchild")

    os.kill(running.pid, signal.SIGKILL)
    done = running.finish()

    assert done.code == -signal.SIGKILL
    wait_gone(server)
    wait_gone(grandchild)
    assert [event["type"] for event in project.journal][-1] == "turn.started"


def test_a_local_command_ends_with_the_run(project: Project) -> None:
    note = project.folder / "pid"
    project.write(
        "wait.sh",
        f'trap "" TERM INT\necho $$ > {note}.part\nmv {note}.part {note}\n'
        "echo started >&2\nwhile :; do sleep 600; done\n",
    )
    project.pipeline("run: [sh, wait.sh]")
    running = project.aish.start("run", "p.yaml", "--allow", "shell__run", "--format", "jsonl")
    running.wait_for_line('"tool.started"', where="stdout")
    wait_file(note)

    running.interrupt()
    done = running.finish()

    assert done.code == 130
    wait_gone(int(note.read_text(encoding="utf-8")))


def test_an_interrupt_before_the_first_request_is_an_interrupt_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    note = project.folder / "grandchild"
    command = stdio("--hang-at-start", "--grandchild-note", note)
    project.pipeline(f"mcp: {{servers: {{s: {{command: {command}}}}}}}\nprompt: Say hello\n")
    running = project.aish.start("run", "p.yaml", "--format", "json")
    wait_file(note)
    server, grandchild = family(note)

    running.interrupt()
    done = running.finish()

    assert done.code == 130, done.stderr
    assert '"name": "interrupted"' in done.stdout
    started, *steps, finished = project.journal
    assert (started["type"], finished["type"]) == ("run.started", "run.finished")
    assert {(e["type"], e["status"]) for e in steps} == {("step.finished", "skipped")}
    assert endpoint.requests == []
    wait_gone(server)
    wait_gone(grandchild)


@pytest.mark.parametrize("command", [["tools"], ["plan"]])
def test_the_commands_that_look_can_be_interrupted(project: Project, command: list[str]) -> None:
    note = project.folder / "grandchild"
    hanging = stdio("--hang-at-start", "--grandchild-note", note)
    project.pipeline(f"mcp: {{servers: {{s: {{command: {hanging}}}}}}}\nprompt: Say hello\n")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    running = project.aish.start(*command, "p.yaml")
    wait_file(note)
    server, grandchild = family(note)

    running.interrupt()
    done = running.finish()

    assert (done.code, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    wait_gone(server)
    wait_gone(grandchild)


def test_a_hanging_endpoint_sees_the_client_leave(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([hanging_reply(Gate())])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    running = project.aish.start("run", "p.yaml")
    endpoint.wait_requests(1)

    running.interrupt(signal.SIGTERM)

    assert running.finish().code == 143
    assert endpoint.requests[0].aborted.wait(60)


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_the_hint_after_an_interruption_names_the_folder_of_runs(
    project: Project, model_endpoint: ModelEndpoints, quiet: tuple[str, ...]
) -> None:
    gate = Gate()
    project.uses(model_endpoint(lambda _: hanging_reply(gate)))
    project.pipeline("prompt: Say hello")

    with project.aish.start("run", "p.yaml", "--run-dir", "kept here", *quiet) as running:
        gate.wait_arrived()
        running.interrupt()
        done = running.finish()

    assert done.code == 130
    want = "hint: `aish run p.yaml --resume --run-dir 'kept here'` resumes the run"
    assert want in done.stderr


def test_a_second_ctrl_c_says_how_to_resume_the_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    endpoint = model_endpoint([hanging_reply(gate)] * 2)
    project.uses(endpoint)
    project.pipeline(
        """
        steps:
          - {id: a, foreach: "['x', 'y']", prompt: Say hello}
        """
    )
    running = project.aish.start("run", "p.yaml")
    endpoint.wait_requests(1)
    running.interrupt()
    running.wait_for_line("Ctrl-C again exits at once")
    running.interrupt_again()
    done = running.finish()
    gate.open()

    (folder,) = project.run_folders
    assert done.code == 130
    assert done.stderr.endswith(
        f"run {folder.name} was ended; `aish run p.yaml --resume` resumes it\n"
    )


def taken(pid: int) -> bool:
    """Whether no signal waits to be taken by a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return all(
        int(line.split()[1], 16) == 0
        for line in status.splitlines()
        if line.startswith(("SigPnd:", "ShdPnd:"))
    )


@pytest.mark.parametrize(("kind", "code"), ENDS)
def test_a_signal_while_packs_open_ends_the_run(
    project: Project, tmp_path_factory: pytest.TempPathFactory, kind: signal.Signals, code: int
) -> None:
    # A pack tries this program while it opens, and not one below its root.
    folder = tmp_path_factory.mktemp("programs")
    note, held, program = folder / "pid", folder / "held", folder / "bwrap"
    os.mkfifo(held)
    program.write_text(f"#!/bin/sh\necho $$ > {note}.new\nmv {note}.new {note}\nexec cat {held}\n")
    program.chmod(0o755)
    project.aish.env["PATH"] = f"{folder}:{project.aish.env['PATH']}"
    project.pipeline(
        """
        mcp:
          servers:
            box: {pack: [fs, shell, py], root: ., options: {shell: {sandbox: bubblewrap}}}
          auto_approve: [box__dir_list]
        call: box__dir_list
        """
    )
    running = project.aish.start("run", "p.yaml")
    wait_file(note)
    running.interrupt(kind)
    while not taken(running.pid):
        pass
    held.write_text("")
    done = running.finish()

    assert done.code == code
    assert "Traceback" not in done.stderr
    assert of_type(project.journal, "step.started") == []
    (finished,) = of_type(project.journal, "run.finished")
    assert finished == project.journal[-1]
    assert (finished["status"], finished["exit"]["code"]) == ("interrupted", code)
    wait_gone(int(note.read_text("ascii")))
