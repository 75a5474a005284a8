"""Calls that the end of their step's time cuts off: what we ended has an end (B3, F4)."""

import json
import signal
from typing import Any

from e2e_project import ModelEndpoints, Project, of_type, stdio, wait_file
from model_endpoint import text_reply, tool_reply

# The time of its step is over when it has come to the sleep (`Project.times_out`).
HANGS = "echo half\necho done >> notes.txt\ntouch late\nexec sleep 600\n"


def end(project: Project) -> Any:
    """The end of the only call."""
    (found,) = of_type(project.journal, "tool.finished")
    return found


def notes(project: Project) -> int:
    return len((project.folder / "notes.txt").read_text("utf-8").splitlines())


def test_a_command_that_the_timeout_ends_is_finished_with_what_it_printed(
    project: Project,
) -> None:
    project.write("hangs.sh", HANGS)
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: wait, timeout: 20s, run: [sh, hangs.sh]}]
        """)
    project.times_out(20, "late")

    done = project.run()

    assert done.code == 1
    found = end(project)
    assert (found["kind"], found["tool"]) == ("timeout", "shell__run")
    assert found["content"].startswith("[aish] the command was ended after ")
    assert found["content"].endswith("s; it had printed:\nhalf\n")
    (step,) = of_type(project.journal, "step.finished")
    assert 0 < found["seconds"] <= step["seconds"]
    # Nobody has to look what became of it.
    again = project.run("--resume")
    assert again.code == 1, again.stderr
    assert "with unknown outcome" not in again.stderr
    assert notes(project) == 2


def test_a_replay_tells_of_a_command_that_was_ended_as_the_run_did(project: Project) -> None:
    project.write("hangs.sh", HANGS)
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: wait, timeout: 20s, run: [sh, hangs.sh], on_error: continue}]
        """)
    project.times_out(20, "late")

    told = []
    for flag in ("--record", "--replay"):
        arguments = ("run", "p.yaml", flag, "c.yaml", "--format", "jsonl", "--ephemeral")
        with project.aish.start(*arguments) as running:
            if flag == "--replay":  # which has no command to say that it is late
                running.wait_for_line('"tool.started"', where="stdout")
                (project.folder / "late").touch()
            done = running.finish()
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.code == 1, done.stderr
        told += [(one["kind"], one["content"]) for one in of_type(events, "tool.finished")]

    assert told[0][0] == told[1][0] == "timeout"
    assert "it had printed:\nhalf\n" in told[0][1]
    assert "it had printed:\nhalf\n" in told[1][1]
    assert notes(project) == 1


def test_a_command_of_a_model_that_the_timeout_ends_is_finished_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("data/hangs.sh", HANGS)
    arguments = json.dumps({"command": "sh hangs.sh", "timeout_seconds": 600})
    project.uses(model_endpoint([tool_reply([("c1", "box__shell_run", arguments)])]))
    project.pipeline("""
        mcp: {servers: {box: {pack: [shell], root: data}}, auto_approve: [box__shell_run]}
        steps: [{id: ask, prompt: Wait, timeout: 20s}]
        """)
    project.times_out(20, "data/late")

    assert project.run().code == 1

    found = end(project)
    assert (found["kind"], found["call"]) == ("timeout", "c1")
    assert "it had printed:\nhalf" in found["content"]


def test_a_call_to_a_server_that_the_timeout_cuts_off_is_unknown(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    sleeps = tool_reply([("c1", "s__sleep", '{"ms": 600000}')])
    project.uses(model_endpoint([sleeps, text_reply("late")]))
    project.pipeline(f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__sleep]}}
        steps: [{{id: ask, prompt: Wait, timeout: 20s}}]
        """)
    project.times_out(20, "late")

    with project.aish.start("run", "p.yaml", "--format", "jsonl") as running:
        running.wait_for_line('"tool.started"', where="stdout")
        project.write("late", "")
        assert running.finish().code == 1

    found = end(project)
    assert found["kind"] == "unknown"
    assert "whether it took effect is not known" in found["content"]
    again = project.run("--resume")
    assert again.code == 2
    assert "1 call started, with unknown outcome" in again.stderr
    assert "`s__sleep` in step `ask`" in again.stderr


def test_a_command_that_a_signal_ends_is_finished_and_not_run_again_unasked(
    project: Project,
) -> None:
    project.write("hangs.sh", HANGS)
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: wait, run: [sh, hangs.sh]}]
        """)
    running = project.aish.start("run", "p.yaml")
    wait_file(project.folder / "notes.txt", whole=True)
    running.interrupt(signal.SIGINT)
    done = running.finish()
    assert done.code == 130
    assert "`aish run p.yaml --resume --retry-unknown` resumes and makes" in done.stderr
    assert "--resume` continues" not in done.stderr

    assert end(project)["kind"] == "interrupted"
    again = project.run("--resume")
    assert again.code == 2
    assert "1 call would be made again, as their step did not finish" in again.stderr
