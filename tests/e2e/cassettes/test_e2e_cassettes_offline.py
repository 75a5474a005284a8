"""A replay reaches nothing, a recording holds nothing up; half a replay reaches half."""

import json
import sys
from pathlib import Path

import pytest
from cli_process import without_network
from e2e_project import ModelEndpoints, Project, http_server, stdio
from model_endpoint import Gate, delta, sse, stream_reply, text_reply, tool_reply, usage

ECHO = ("c1", "s__echo", '{"text": "from the tool"}')


def tool_pipeline(project: Project, *more: str | Path) -> None:
    project.pipeline(
        f"""
        models:
          m: {{base_url: "${{MODEL_URL}}", model: scripted}}
          other: {{base_url: "${{OTHER_URL:-http://127.0.0.1:9/v1}}", model: other}}
        model: m
        mcp:
          servers: {{s: {{command: {stdio(*more)}}}}}
          auto_approve: ["s__*"]
        prompt: Use your tools
        """
    )


@pytest.mark.requirement("C6")
def test_a_replay_needs_no_network_interface_no_path_and_no_key(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    prefix = without_network()
    if prefix is None:
        pytest.skip("network namespaces cannot be made here")
    calls = [ECHO, ("c2", "w__add", '{"a": 2, "b": 3}'), ("c3", "r__file_read", '{"path": "n"}')]
    endpoint = model_endpoint([tool_reply(calls), text_reply("All is well."), text_reply('"good"')])
    project.uses(endpoint)
    project.write("n", "from the pack")
    with http_server() as url:
        project.pipeline(
            f"""
            models: {{m: {{base_url: "${{MODEL_URL}}", model: scripted, key_env: KEY}}}}
            mcp:
              servers:
                s: {{command: {stdio()}}}
                w: {{url: "{url}"}}
                r: {{pack: [fs], root: .}}
              auto_approve: ["s__*", w__add, r__file_read, shell__run]
            steps:
              - {{id: command, run: [printf, done]}}
              - {{id: ask, prompt: "{{{{ steps.command.text }}}}"}}
              - id: judge
                needs: [ask]
                prompt: Good or bad?
                tools: []
                output: {{schema: {{type: string, pattern: "^(good|bad)+$"}}}}
            """
        )
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={"KEY": "sk-0123456789"})
    endpoint.close()
    assert recorded.code == 0, recorded.stderr
    project.aish.python = (*prefix, str(Path(sys.executable).absolute()))

    replayed = project.run("--replay", "c.yaml", env={"PATH": "", "MODEL_URL": ""})

    assert replayed.code == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout == '"good"\n'


@pytest.mark.parametrize("command", [["record", "p.yaml", "-o"], ["run", "p.yaml", "--record"]])
def test_while_a_run_is_recorded_its_answer_comes_as_it_is_said(
    project: Project, model_endpoint: ModelEndpoints, command: list[str]
) -> None:
    gate = Gate()
    beginning = sse([delta(role="assistant", content="Once upon")], done=False)
    rest = sse([delta(content=" a time"), delta("stop"), usage()])
    endpoint = model_endpoint([stream_reply(beginning, gate, rest)])
    project.uses(endpoint)
    project.pipeline("prompt: Tell a story")

    with project.aish.start(*command, "c.yaml", "--stream") as running:
        running.wait_for_line("Once upon", where="stdout")
        gate.open()
        done = running.finish()

    assert (done.code, done.stdout) == (0, "Once upon a time\n")
    endpoint.close()
    assert project.run("--replay", "c.yaml").stdout == "Once upon a time\n"


@pytest.mark.requirement("C7")
def test_live_tools_run_while_the_model_is_replayed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([ECHO]), text_reply("done")])
    project.uses(endpoint)
    tool_pipeline(project)
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    assert recorded.code == 0, recorded.stderr
    endpoint.close()
    note = project.folder / "grandchild"
    tool_pipeline(project, "--grandchild-note", note)

    live = project.result("--replay", "c.yaml", "--live-tools")
    denied = project.run("--replay", "c.yaml", "--live-tools", "--deny", "s__*")

    assert live["status"] == "ok", live
    assert live["steps"]["main"]["tool_calls"][0]["content"] == "from the tool"
    assert note.exists(), "the server was started"
    assert denied.code == 3


def test_another_model_answers_on_recorded_tools_and_is_compared(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([ECHO]), text_reply("It said: from the tool")])
    calls = [ECHO, ("c2", "s__add", '{"a": 1, "b": 2}')]
    other = model_endpoint([tool_reply(calls), text_reply("It echoed.")])
    project.uses(endpoint)
    tool_pipeline(project)
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    assert recorded.code == 0, recorded.stderr
    endpoint.close()
    env = {"OTHER_URL": other.base_url}

    done = project.run("--replay", "c.yaml", "--live-model", "other", "--format", "json", env=env)

    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (done.code, found["steps"]["main"]["text"]) == (0, "It echoed."), done.stderr
    kinds = [call["kind"] for call in found["steps"]["main"]["tool_calls"]]
    assert kinds == ["ok", "rpc_error"]
    (told,) = [one["text"] for one in found["notices"] if one["code"] == "comparison"]
    assert "call added: s__add" in told
    assert "It said: from the tool" in told
    for line in told.splitlines():
        assert line in done.stderr
    assert [asked["model"] for asked in other.asked] == ["other", "other"]
