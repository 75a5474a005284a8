"""What servers may do besides answering: ask, report progress, send pictures, change."""

import json
import os
from pathlib import Path

import pexpect
import pytest
from e2e_project import ModelEndpoints, Project, http_server, of_type, stdio
from live_runs import at_terminal
from model_endpoint import Gate, text_reply, tool_reply

SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "What is 1 + 1?"}}],
        "maxTokens": 20,
    },
}


@pytest.mark.requirement("M11")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("sampling", ["allow", "deny"])
def test_a_server_may_ask_the_steps_model_only_where_the_file_says_so(
    project: Project, model_endpoint: ModelEndpoints, era: str, sampling: str
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__ask_client", json.dumps(SAMPLE))])])
    if sampling == "allow":
        endpoint.queue(text_reply("two, I think"))
    endpoint.queue(text_reply("done"))
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--era", era)}, sampling: {sampling}}}}}
          auto_approve: ["s__*"]
        prompt: Use your tools
        """
    )

    found = project.result()

    assert found["exit"]["code"] == 0, found
    (call,) = found["steps"]["main"]["tool_calls"]
    if sampling == "allow":
        assert "two, I think" in call["content"]
        sampled = endpoint.asked[1]
        assert sampled["messages"][-1]["content"] == "What is 1 + 1?"
        assert "tools" not in sampled
    else:
        assert "two, I think" not in call["content"]
        assert len(endpoint.asked) == 2


def test_progress_is_an_event(project: Project) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio("--asks")}}}}}, auto_approve: [s__count]}}
        steps: [{{id: it, call: s__count, with: {{steps: 3}}}}]
        """
    )

    done = project.run("--format", "jsonl")

    assert done.code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = of_type(events, "tool.progress")
    assert [(e["progress"], e["total"], e["message"]) for e in told][-1] == (3, 3, "step 3")


def test_a_picture_goes_to_the_run_folder_and_a_line_to_the_model(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__image", "{}")]), text_reply("nice")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__image]}}
        prompt: Use your tools
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    (folder,) = project.run_folders
    (picture,) = (folder / "files").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert oct(picture.stat().st_mode & 0o777) == "0o600"
    reply = endpoint.asked[1]["messages"][-1]
    assert reply["role"] == "tool"
    assert "image/png" in reply["content"]
    assert f"saved as files/{picture.name}" in done.stderr


def test_a_model_is_shown_the_tools_its_step_names_as_they_are_now(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    first = [("c1", "s__echo", '{"text": "x"}')]
    changed = Gate()
    waiting = text_reply("a").but(before_head=changed)
    endpoint = model_endpoint([tool_reply(first), waiting, text_reply("b")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio("--change-tools")}, exclude: [fail, rpc_error]}}
            t: {{command: {stdio()}, tools: [echo, add]}}
          auto_approve: ["s__*"]
        steps:
          - {{id: one, prompt: Use your tools, tool_choice: s__echo}}
          - {{id: two, needs: [one], prompt: Use your tools again, tools: ["*__add*", t__echo]}}
        """
    )

    running = project.aish.start("run", "p.yaml")
    running.wait_for_line("tools_changed")
    changed.open()
    done = running.finish()

    assert done.code == 0, done.stderr
    before, _, after = endpoint.asked
    offered = {tool["function"]["name"] for tool in before["tools"]}
    assert offered == {
        *(f"s__{n}" for n in ("echo", "add", "sleep", "big", "image", "crash")),
        "t__echo",
        "t__add",
    }
    assert before["tool_choice"] == {"type": "function", "function": {"name": "s__echo"}}
    assert {tool["function"]["name"] for tool in after["tools"]} == {
        "s__add",
        "s__added",
        "t__add",
        "t__echo",
    }


def test_a_pack_stays_in_its_root(project: Project) -> None:
    project.write("outside.txt", "outside")
    project.write("in/inside.txt", "inside")
    (project.folder / "in" / "link").symlink_to("../outside.txt")
    project.pipeline(
        "mcp: {servers: {r: {pack: [fs], root: in}}, auto_approve: ['r__*']}\nrun: [ls]"
    )

    inside = project.aish("call", "p.yaml", "r__file_read", "path=inside.txt")
    outside = [
        project.aish("call", "p.yaml", "r__file_read", f"path={path}")
        for path in ("../outside.txt", "link", str(project.folder / "outside.txt"))
    ]

    assert (inside.code, inside.stdout) == (0, "inside\n")
    for done in outside:
        assert (done.code, done.stdout) == (1, "")


BEHIND_A_GATE = "read line < gate; exec"


def gated(project: Project, name: str = "p.yaml") -> Path:
    """A file whose server starts once somebody wrote into a FIFO; its path."""
    gate = project.folder / "gate"
    os.mkfifo(gate)
    words = " ".join(json.loads(stdio()))
    project.write(
        name,
        f"""
        aish: 1
        name: slow
        mcp:
          servers: {{s: {{command: [sh, -c, "{BEHIND_A_GATE} {words}"]}}}}
          auto_approve: [s__echo]
        steps: [{{id: it, call: s__echo, with: {{text: hi}}}}]
        """,
    )
    return gate


def test_a_run_says_at_once_which_one_it_is_and_what_it_starts(project: Project) -> None:
    gate = gated(project)

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("starting server s\n")
        before = project.tidy(running.stderr).splitlines()
        gate.write_text("go\n")
        done = running.finish()

    assert done.code == 0, done.stderr
    assert [line.split("] ")[1] for line in before] == ["aish 0.1.0: slow", "starting server s"]
    lines = [line.split("] ")[1] for line in done.stderr.splitlines()]
    assert lines[2] == "server s (stdio): ready, 8 tools"
    assert [lines.count(line) for line in lines[:3]] == [1, 1, 1]
    assert project.journal[0]["type"] == "run.started"


def test_a_console_without_a_spinner_says_it_in_lines(project: Project) -> None:
    gate = gated(project)
    project.aish.env |= {"FORCE_COLOR": "1", "NO_COLOR": "1"}

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("starting server s\n")
        before = running.stderr
        gate.write_text("go\n")
        done = running.finish()

    assert done.code == 0, done.stderr
    assert before == "slow\n· starting server s\n"
    assert done.stderr.startswith(f"{before}  s (8 tools)\n")


def test_the_servers_of_a_sub_pipeline_are_told_of_when_they_start(project: Project) -> None:
    gate = gated(project, "inner.yaml")
    with http_server() as url:
        project.write(
            "p.yaml",
            f"""
            aish: 1
            mcp: {{servers: {{web: {{url: "{url}"}}}}}}
            steps: [{{id: sub, pipeline: inner.yaml}}]
            """,
        )

        with project.aish.start("run", "p.yaml") as running:
            running.wait_for_line("starting server sub/s\n")
            before = running.stderr
            gate.write_text("go\n")
            done = running.finish()

    assert done.code == 0, done.stderr
    lines = [line.split("] ")[1] for line in before.splitlines()]
    assert lines == ["aish 0.1.0: p", "connecting to server web", "starting server sub/s"]


def test_a_replay_and_a_quiet_run_say_nothing_of_a_start(project: Project) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        steps: [{{id: it, call: s__echo, with: {{text: hi}}}}]
        """
    )
    recorded = project.aish("record", "p.yaml", "-o", "c.jsonl")

    replayed, quiet = project.run("--replay", "c.jsonl"), project.run("-q")

    assert (recorded.code, replayed.code, quiet.code) == (0, 0, 0), replayed.stderr
    assert "starting server s\n" in recorded.stderr
    assert replayed.stderr.count("aish 0.1.0: p\n") == 1
    assert "starting" not in replayed.stderr
    assert not quiet.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        "tools p.yaml",
        "plan p.yaml",
        "lock p.yaml",
        "call p.yaml s__echo text=hi",
        "serve p.yaml < /dev/null",
        "doctor p.yaml",
    ],
)
def test_a_command_at_a_terminal_says_at_once_which_servers_it_starts(
    project: Project, words: str
) -> None:
    """C1: without `--quiet` scripts get warnings and errors only, so only persons are told."""
    gate = gated(project)

    with at_terminal(project, f"exec $AISH {words} > out.txt") as terminal:
        terminal.expect_exact("starting server s\r\n")
        gate.write_text("go\n")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 0
    assert "starting" not in (project.folder / "out.txt").read_text()


def test_applying_says_at_once_which_servers_it_starts(project: Project) -> None:
    gate = gated(project)
    text = (project.folder / "p.yaml").read_text()
    project.write("p.yaml", text.replace("auto_approve: [s__echo]", "stage: [s__echo]"))
    with project.aish.start("run", "p.yaml", "-q") as running:
        gate.write_text("go\n")
        assert running.finish().code == 0
    (staged,) = project.folder.glob(".aish/runs/*/staged.json")

    with project.aish.start("apply", str(staged)) as running:
        running.wait_for_line("starting server s\n")
        before = running.stderr
        gate.write_text("go\n")
        done = running.finish()

    assert done.code == 0, done.stderr
    assert before.splitlines()[-2].endswith("] aish 0.1.0: slow")
    assert done.stderr.count("aish 0.1.0: slow\n") == 1
    assert "starting" not in done.stdout


@pytest.mark.parametrize("flags", [(), ("-q",)])
def test_a_live_test_says_at_once_which_servers_it_starts(
    project: Project, flags: tuple[str, ...]
) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        steps: [{{id: it, call: s__echo, with: {{text: hi}}}}]
        tests: [{{name: one, expect: [{{tool_called: s__echo}}]}}]
        """
    )

    done = project.aish("test", "p.yaml", "--live", *flags)

    assert done.code == 0, done.stdout
    assert done.stderr.count("starting server s\n") == (0 if flags else 1)
