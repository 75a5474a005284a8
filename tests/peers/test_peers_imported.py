"""Files of other programs, imported and run to a tool call on the servers that they name (F8)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import Aish, Done
from e2e_project import ModelEndpoints, Project
from mcp_peers import free_port, listening, npm_server, python_server
from model_endpoint import ModelEndpoint, text_reply, tool_reply

pytestmark = pytest.mark.peers

PLAIN = {"DEBUG": "1", "LOG_LEVEL": "debug", "TZ": "UTC", "HOME": "${HOME}"}
KEY = "key-of-the-imported-server"


@pytest.fixture
def project(tmp_path: Path, run_aish: Aish) -> Project:
    return Project(tmp_path, run_aish)


def imported(project: Project, source: str, *models: str) -> Done:
    """The pipeline `made.yaml`, valid, its models those of a scripted endpoint."""
    done = project.aish("init", "--from", source, "-o", "made.yaml")
    assert done.code == 0, done.stderr
    checked = project.aish("validate", "made.yaml")
    assert (checked.code, checked.stdout) == (0, "made.yaml: ok\n"), checked.stderr
    return done


def run(project: Project, endpoint: ModelEndpoint, *arguments: str, **env: str) -> Any:
    """The result of a run that ended well, with the model at this endpoint."""
    env |= {"MODEL_URL": endpoint.base_url, "MODEL_KEY": KEY}
    done = project.aish("run", "made.yaml", "--format", "json", *arguments, env=env)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def call(name: str, arguments: Any, *then: str) -> list[Any]:
    """An endpoint's answers: a call, and a text."""
    return [tool_reply([("c1", name, json.dumps(arguments))]), *map(text_reply, then or ("Done.",))]


def results(endpoint: ModelEndpoint) -> str:
    """What the endpoint was told of its calls."""
    messages = endpoint.requests[-1].json["messages"]
    return "\n".join(str(one["content"]) for one in messages if one["role"] == "tool")


def test_an_mcp_json_runs_to_a_tool_call(project: Project, model_endpoint: ModelEndpoints) -> None:
    clock = {
        "command": python_server("mcp-server-time"),
        "args": ["--local-timezone", "UTC"],
        "env": {**PLAIN, "SERVICE_API_KEY": KEY},
    }
    project.write(".mcp.json", json.dumps({"mcpServers": {"my clock": clock}}))
    said = imported(project, ".mcp.json")
    arguments = {"timezone": "UTC"}
    endpoint = model_endpoint(call("my-clock__get_current_time", arguments))

    asked = ("-i", "prompt=What time is it?", "--allow", "my-clock__*")
    result = run(project, endpoint, *asked, SERVICE_API_KEY=KEY)

    assert result["steps"]["main"]["tool_calls"][0]["kind"] == "ok"
    assert '"timezone": "UTC"' in results(endpoint)
    assert "SERVICE_API_KEY: the variable `SERVICE_API_KEY`" in said.stderr
    assert KEY not in (project.folder / "made.yaml").read_text("utf-8") + said.stderr
    unset = project.aish("run", "made.yaml", env={"MODEL_KEY": KEY})
    assert unset.code == 2
    assert "`SERVICE_API_KEY` is not set" in unset.stderr
    assert unset.stderr.count(" is not set") == 1


def test_servers_of_npm_in_an_mcp_json_run_where_it_stands(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    node, script = npm_server("server-filesystem")
    project.write("data/note.txt", "hello from a note")
    server = {"command": node, "args": [script, "data"]}
    project.write(".mcp.json", json.dumps({"mcpServers": {"files": server}}))
    imported(project, ".mcp.json")
    path = {"path": str(project.folder.resolve() / "data" / "note.txt")}
    endpoint = model_endpoint(call("files__read_text_file", path))

    run(project, endpoint, "--allow", "files__read_text_file")

    assert "hello from a note" in results(endpoint)


@pytest.mark.slow(reason="starts real servers")
def test_the_servers_of_an_editor_run_in_the_folder_of_the_workspace(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    subprocess.run(["git", "init", "-q", str(project.folder)], check=True)
    project.write("new.txt", "new")
    project.write(
        ".vscode/mcp.json",
        f"""
        {{
          // what the workspace needs
          "inputs": [
            {{"type": "promptString", "id": "api-key", "description": "The key", "password": true}},
            {{"type": "promptString", "id": "where", "description": "Place", "default": "."}},
          ],
          "servers": {{
            "git": {{
              "type": "stdio",
              "command": "{python_server("mcp-server-git")}",
              "args": ["--repository", "${{workspaceFolder}}"],
              "env": {{"SERVICE_KEY": "${{input:api-key}}", "WHERE": "${{input:where}}"}},
            }},
          }},
        }}
        """,
    )
    said = imported(project, ".vscode/mcp.json")
    endpoint = model_endpoint(call("git__git_status", {"repo_path": str(project.folder)}))

    run(project, endpoint, "--allow", "git__git_status", API_KEY=KEY)

    assert "new.txt" in results(endpoint)
    assert "  API_KEY: The key: the variable `SERVICE_KEY` of the server `git`\n" in said.stderr


def test_a_server_over_http_of_an_editor_runs(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    port = free_port()
    argv = (*npm_server("server-everything"), "streamableHttp")
    headers = {"Authorization": f"Bearer {KEY}", "X-Team": "docs"}
    with listening(*argv, port=port, environment={"PORT": str(port)}) as origin:
        server = {"type": "http", "url": f"{origin}/mcp", "headers": headers}
        project.write(".vscode/mcp.json", json.dumps({"servers": {"everything": server}}))
        said = imported(project, ".vscode/mcp.json")
        endpoint = model_endpoint(call("everything__echo", {"message": "hi"}))

        run(project, endpoint, "--allow", "everything__echo", EVERYTHING_TOKEN=KEY)

    assert "Echo: hi" in results(endpoint)
    made = (project.folder / "made.yaml").read_text("utf-8")
    assert "auth_env: EVERYTHING_TOKEN\n" in made
    assert "X-Team: docs\n" in made
    assert "EVERYTHING_TOKEN: the token alone, without `Bearer `" in said.stderr


@pytest.mark.slow(reason="starts real servers")
def test_a_configuration_of_codex_runs_with_what_it_approves(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write(
        ".codex/config.toml",
        f"""
        model = "gpt-5"
        approval_policy = "on-request"

        [mcp_servers.clock]
        command = "{python_server("mcp-server-time")}"
        args = ["--local-timezone", "UTC"]
        env_vars = ["TZ"]
        startup_timeout_sec = 60
        enabled_tools = ["get_current_time"]

        [mcp_servers.clock.env]
        DEBUG = "1"

        [mcp_servers.clock.tools.get_current_time]
        approval_mode = "approve"
        """,
    )
    said = imported(project, ".codex/config.toml")
    endpoint = model_endpoint(call("clock__get_current_time", {"timezone": "UTC"}))

    result = run(project, endpoint)

    assert [one["tool"] for one in result["steps"]["main"]["tool_calls"]] == [
        "clock__get_current_time"
    ]
    assert [one["function"]["name"] for one in endpoint.requests[0].json["tools"]] == [
        "clock__get_current_time"
    ]
    assert "config.toml:2:1: model: " in said.stderr


@pytest.mark.slow(reason="starts real servers")
def test_a_recipe_of_goose_runs_with_its_parameters(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("code.py", "print('reviewed')\n")
    project.write(
        "recipe.yaml",
        f"""
        version: "1.0.0"
        title: Time of a review
        description: Says when a file was reviewed
        instructions: You are brief. The zone is {{{{ zone }}}}.
        prompt: |
          At most {{{{ words }}}} words about:
          {{{{ source }}}}
        parameters:
          - {{key: zone, input_type: select, requirement: optional, default: UTC,
             description: A zone, options: [UTC, CET]}}
          - {{key: words, input_type: number, requirement: optional, default: "10",
             description: How many}}
          - {{key: source, input_type: file, requirement: required, description: The file}}
        extensions:
          - type: stdio
            name: Clock
            cmd: {python_server("mcp-server-time")}
            args: [--local-timezone, UTC]
            timeout: 300
            description: Tells the time
        settings: {{goose_provider: openai, goose_model: gpt-4o, temperature: 0.2, max_turns: 8}}
        response:
          json_schema:
            type: object
            properties: {{zone: {{type: string}}}}
            required: [zone]
        """,
    )
    imported(project, "recipe.yaml")
    answer = '{"zone": "UTC"}'
    endpoint = model_endpoint(call("Clock__get_current_time", {"timezone": "UTC"}, answer))

    url = f"models.main.base_url={endpoint.base_url}"
    result = run(
        project,
        endpoint,
        "-i",
        "source=code.py",
        "--allow",
        "Clock__*",
        "--set",
        url,
        OPENAI_API_KEY=KEY,
    )

    assert result["steps"]["main"]["output"] == {"zone": "UTC"}
    assert '"timezone": "UTC"' in results(endpoint)
    system, user = endpoint.requests[0].json["messages"][:2]
    assert "You are brief. The zone is UTC." in system["content"]
    assert user["content"].startswith("At most 10 words about:\nprint('reviewed')")


@pytest.mark.slow(reason="starts real servers")
def test_a_configuration_of_promptfoo_is_recorded_and_tested(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        lambda request: text_reply(
            "Bonjour, Ada" if "French" in request["messages"][-1]["content"] else "Guten Tag"
        )
    )
    project.write(
        "promptfooconfig.yaml",
        f"""
        description: Greetings
        prompts:
          - 'Greet {{{{name}}}} in {{{{language | trim}}}}.'
        providers:
          - id: openai:chat:scripted
            config: {{apiBaseUrl: {endpoint.base_url}, apiKeyEnvar: GREETING_KEY, temperature: 0}}
        defaultTest:
          vars: {{name: Ada}}
          assert:
            - {{type: not-contains, value: language model}}
        tests:
          - description: in French
            vars: {{language: French}}
            assert:
              - {{type: icontains, value: "bonjour, {{{{name}}}}"}}
              - {{type: javascript, value: output.length < 100}}
          - vars: {{language: German}}
            assert:
              - {{type: contains-any, value: [Hallo, Guten Tag]}}
        """,
    )
    said = imported(project, "promptfooconfig.yaml")

    env = {"GREETING_KEY": KEY}
    recorded = project.aish("test", "made.yaml", "--record", env=env)
    replayed = project.aish("test", "made.yaml")
    ran = project.aish("run", "made.yaml", "-q", "-i", "name=Ada", "-i", "language=French", env=env)

    assert recorded.code == 0, recorded.stdout + recorded.stderr
    assert replayed.code == 0, replayed.stdout
    assert "in French PASSED" in replayed.stdout
    assert (ran.code, ran.stdout) == (0, "Bonjour, Ada\n")
    assert "`javascript`: left out: `expression: …`" in said.stderr
