"""A server that lists two different tools under one name: neither is offered (M4, M6)."""

import json
import sys

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import text_reply

SERVER = """
import json, sys
def tool(name, description):
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}
TOOLS = [tool("same", "one"), tool("fine", "fine"), tool("same", "another")]
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
REASON = "the tool `s__same` is not offered: `s` lists two different tools of that name"


def serving(project: Project, steps: str, *, required: bool = True) -> None:
    project.write("server.py", SERVER)
    command = json.dumps([sys.executable, "server.py"])
    entry = f"{{command: {command}, protocol: legacy, required: {str(required).lower()}}}"
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}, auto_approve: ['s__*']}}\n{steps}\n")


@pytest.mark.parametrize("required", [True, False])
def test_a_run_goes_on_without_either_and_says_so_once(
    project: Project, model_endpoint: ModelEndpoints, *, required: bool
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("done"))
    project.uses(endpoint)
    steps = "steps: [{id: ask, prompt: Go}, {id: call, needs: [ask], call: s__fine}]"
    serving(project, steps, required=required)

    done = project.run()

    assert (done.code, done.stdout) == (0, "fine\n"), done.stderr
    (asked,) = endpoint.asked
    assert [one["function"]["name"] for one in asked["tools"]] == ["s__fine"]
    notices = of_type(project.journal, "notice")
    assert [(one["level"], one["code"]) for one in notices] == [("warning", "ambiguous_tool")]
    text = "mcp s: it lists two different tools as `same`: neither is offered"
    assert notices[0]["text"] == text


@pytest.mark.parametrize(
    "step",
    [
        "call: s__same",
        "{prompt: Go, tools: [s__same, s__fine]}",
        "{prompt: Go, tool_choice: s__same}",
    ],
)
def test_only_a_step_that_names_it_fails(
    project: Project, model_endpoint: ModelEndpoints, step: str
) -> None:
    endpoint = model_endpoint([])
    project.uses(endpoint)
    inner = step if step.startswith("{") else f"{{{step}}}"
    serving(project, f"steps:\n  - {{id: it, {inner[1:-1]}}}\n  - {{id: other, call: s__fine}}")

    done = project.run("--format", "json")

    found = json.loads(done.stdout)
    assert done.code == 1
    assert found["steps"]["it"]["error"]["message"] == REASON
    assert found["steps"]["other"]["text"] == "fine"
    assert endpoint.requests == []
