"""The level of each decision, who ran it, and `aish runs show --level` (K18)."""

import json
import os
import pwd
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

CALLS = [
    ("c1", "repo__file_read", '{"path": "a.txt"}'),
    ("c2", "repo__file_write", '{"path": "b.txt", "content": "b"}'),
    ("c3", "claims__echo", '{"text": "x"}'),
    ("c4", "kept__echo", '{"text": "y"}'),
    ("c5", "ours__echo", '{"text": "z"}'),
    ("c6", "repo__file_exists", '{"path": "a.txt"}'),
]
PIPELINE = f"""
mcp:
  servers:
    repo: {{pack: fs, root: .}}
    claims: {{command: {stdio()}}}
    kept: {{command: {stdio()}, trust: true}}
    ours: {{command: {stdio()}}}
  parallel: [ours__echo]
  auto_approve: [repo__file_read, repo__file_write, "*__echo"]
  deny: [repo__file_exists]
on_denied: continue
prompt: Use your tools
"""
LEVELS = {
    "repo__file_read": "info",
    "repo__file_write": "security",
    "claims__echo": "security",
    "kept__echo": "info",
    "ours__echo": "info",
    "repo__file_exists": "security",
}
"""A mark of a pack, a trusted server's claim and a rule of ours count; other claims do not."""


@pytest.fixture
def used(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A project with a run that called each of these tools."""
    project.uses(model_endpoint([tool_reply(CALLS), text_reply("done")]))
    project.write("a.txt", "text\n")
    project.pipeline(PIPELINE)
    assert project.run().code == 0
    return project


def shown(project: Project, level: str) -> list[dict[str, Any]]:
    done = project.aish("runs", "show", "latest", "--level", level, "--format", "json")
    assert done.code == 0
    found = json.loads(done.stdout)
    assert (found["v"], found["level"], found["run"]) == (1, level, project.run_folders[0].name)
    return list(found["calls"])


@pytest.mark.requirement("K18")
def test_each_decision_has_its_level(used: Project) -> None:
    decided = of_type(used.journal, "tool.decided")
    assert {one["tool"]: one["level"] for one in decided} == LEVELS


@pytest.mark.slow(reason="runs a pipeline for each level")
@pytest.mark.parametrize("level", ["info", "security"])
def test_the_calls_of_a_level_are_listed(used: Project, level: str) -> None:
    calls = shown(used, level)

    assert [call["tool"] for call in calls] == [name for name in LEVELS if LEVELS[name] == level]
    written = {one["tool"]: one for one in of_type(used.journal, "tool.decided")}
    for call in calls:
        event = written[call["tool"]]
        keys = ("arguments", "verdict", "rule", "digest", "step", "turn", "call")
        assert [call[key] for key in keys] == [event[key] for key in keys]


def test_the_calls_of_a_level_as_text(used: Project, snapshot: SnapshotAssertion) -> None:
    done = used.aish("runs", "show", "latest", "--level", "security")
    assert done.code == 0
    assert used.tidy(done.stdout) == snapshot


def test_arguments_of_a_call_control_no_terminal(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    hostile = json.dumps({"text": "a\x1b[2J\n::error::b\u202e"})
    project.uses(model_endpoint([tool_reply([("c1", "s__echo", hostile)]), text_reply("done")]))
    project.pipeline(f"""
    mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
    prompt: Go
    """)
    project.run()

    done = project.aish("runs", "show", "latest", "--level", "security")

    assert done.code == 0
    assert not {"\x1b", "\u202e"} & set(done.stdout)
    assert not any(line.startswith("::") for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 2


def test_a_run_without_such_calls_says_so(project: Project) -> None:
    project.pipeline("run: [echo, hi]\nmcp: {auto_approve: [shell__run]}\n")
    project.run()

    done = project.aish("runs", "show", "latest", "--level", "info")
    assert (done.code, done.stdout) == (0, "no tool calls of level `info`\n")
    assert shown(project, "info") == []
    assert [call["kind"] for call in shown(project, "security")] == ["ok"]


def test_a_run_names_the_user_by_the_database(project: Project) -> None:
    project.aish.env |= {"USER": "somebody-else", "LOGNAME": "somebody-else"}
    project.pipeline("run: [echo, hi]\nmcp: {auto_approve: [shell__run]}\n")
    project.run()

    (started,) = of_type(project.journal, "run.started")
    assert started["uid"] == os.getuid()
    assert started["user"] == pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize("flags", [("--messages",), ("--step", "main")], ids=" ".join)
def test_a_level_and_messages_are_not_shown_at_once(
    project: Project, flags: tuple[str, ...]
) -> None:
    done = project.aish("runs", "show", "latest", "--level", "info", *flags)
    assert done.code == 2


def test_a_level_is_one_of_two(project: Project) -> None:
    done = project.aish("runs", "show", "latest", "--level", "loud")
    assert done.code == 2
    assert "security" in done.stderr


@pytest.mark.slow(reason="records and replays a run")
def test_a_replay_has_the_same_levels(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.uses(model_endpoint([tool_reply(CALLS), text_reply("done")]))
    project.write("a.txt", "text\n")
    project.pipeline(PIPELINE)
    recorded = project.result("--record", "c.yaml", "--ephemeral")
    assert recorded["exit"]["code"] == 0

    project.run("--replay", "c.yaml")

    decided = of_type(project.journal, "tool.decided")
    assert {one["tool"]: one["level"] for one in decided} == LEVELS
