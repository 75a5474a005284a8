"""Servers that ask, change, die or never come up: recorded with a run, and met again in replay."""

import json
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply, tool_reply

ASK = json.dumps(
    {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "A verse?"}}],
            "maxTokens": 20,
        },
    }
)
ADD = '{"a": 1, "b": 2}'


def twice(project: Project, endpoint: Any, *flags: str, code: int = 0) -> tuple[Done, Done]:
    """A run that is recorded, and its replay with no endpoint; nothing may be left over."""
    file = project.folder / "p.yaml"
    strict = "cassette: {path: c.yaml, strict: true}\n"
    file.write_text(file.read_text(encoding="utf-8") + strict, encoding="utf-8")
    project.uses(endpoint)
    recorded = project.aish(
        "record", "p.yaml", "-o", "c.yaml", "--keep-failed", "--format", "json", *flags
    )
    endpoint.close()
    place = json.loads(recorded.stdout)["cassette"]["path"]
    replayed = project.run("--replay", place, "--format", "json", *flags)
    assert recorded.code == code, recorded.stderr
    assert replayed.code == code, replayed.stderr
    return recorded, replayed


def steps(done: Done) -> Any:
    """What became of the steps, without their times."""
    found = json.loads(done.stdout)["steps"]
    for step in found.values():
        step.pop("seconds", None)
        for call in step["tool_calls"]:
            call.pop("seconds", None)
    return found


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_model_that_a_server_asks_answers_it_again(
    project: Project, model_endpoint: ModelEndpoints, era: str
) -> None:
    replies = [tool_reply([("c1", "s__ask_client", ASK)]), text_reply("a verse"), text_reply("Ok.")]
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--era", era)}, sampling: allow}}}}
          auto_approve: [s__ask_client]
        prompt: Use your tools
        """
    )

    recorded, replayed = twice(project, model_endpoint(replies))

    assert steps(replayed) == steps(recorded)
    assert "a verse" in recorded.stdout


def test_tools_that_changed_between_two_steps_change_there_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [
            tool_reply([("c1", "s__add", ADD)]),
            text_reply("First."),
            tool_reply([("c2", "s__add", ADD)]),
            text_reply("Second."),
        ]
    )
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--change-tools")}}}}}
          auto_approve: ["s__*"]
        steps:
          - {{id: one, prompt: Use your tools}}
          - {{id: two, needs: [one], prompt: Use them again}}
        """
    )

    recorded, replayed = twice(project, endpoint)

    assert steps(replayed) == steps(recorded)


def test_a_server_that_dies_or_never_comes_up_does_so_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "s__add", ADD), ("c2", "s__add", '{"a": 3, "b": 4}')]
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio("--die-after", "1")}}}
            gone: {{command: [/nonexistent/program], required: false}}
            dead: {{command: {stdio("--die-at-start")}, required: false}}
          auto_approve: [s__add]
        prompt: Use your tools
        """
    )

    recorded, replayed = twice(project, model_endpoint([tool_reply(calls), text_reply("Done.")]))

    assert steps(replayed) == steps(recorded)
    assert "cannot find my configuration" in recorded.stderr
    for line in ("cannot start `/nonexistent/program`", "cannot find my configuration"):
        assert (line in replayed.stderr) is (line in recorded.stderr)


def test_a_required_server_that_is_missing_ends_the_replay_as_it_ended_the_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{dead: {{command: {stdio("--die-at-start")}}}}}}}
        prompt: Hello
        """
    )

    recorded, replayed = twice(project, model_endpoint([]), code=5)

    assert "cannot find my configuration" in recorded.stderr
    assert "cannot find my configuration" in replayed.stderr


def test_commands_that_fail_fail_again_and_nothing_runs(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("count.sh", "echo x >> count\nwc -l < count\n")
    project.write("bad.sh", "echo out\necho err >&2\nexit 3\n")
    project.pipeline(
        """
        steps:
          - {id: count, run: [sh, count.sh]}
          - {id: again, run: [sh, count.sh]}
          - {id: bad, run: [sh, bad.sh], needs: [again]}
        """
    )

    recorded, replayed = twice(project, model_endpoint([]), "--allow", "shell__run", code=1)

    assert steps(replayed) == steps(recorded)
    assert (project.folder / "count").read_text() == "x\n" * 2
