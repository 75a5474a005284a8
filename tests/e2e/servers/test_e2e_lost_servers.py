"""Servers that die during a run: a crash costs its call, and none is worked without (M5, M10)."""

import json
import sys
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, text_reply, tool_reply

SERVER = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"id": {"type": "string"}}}
        answer["result"] = {"tools": [{"name": "lookup", "inputSchema": schema}]}
    elif message["method"] == "tools/call":
        row = message["params"]["arguments"]["id"]
        if row in sys.argv[1:]:
            os._exit(1)
        answer["result"] = {"content": [{"type": "text", "text": f"row {row} is blue"}]}
    if "id" in message:
        print(json.dumps(answer), flush=True)
"""
ROWS = [str(number) for number in range(1, 13)]
DIED = "[aish] tool transport error: the server ended with exit code 1"


def looking_up(project: Project, crashes: list[str], step: str) -> None:
    project.write("server.py", SERVER)
    project.write("rows.csv", "".join(f"{one}\n" for one in ["id", *ROWS]))
    command = json.dumps([sys.executable, "server.py", *crashes])
    project.pipeline(
        f"""
        mcp:
          servers: {{stock: {{command: {command}, protocol: legacy}}}}
          auto_approve: [stock__lookup]
        foreach: {{file: rows.csv}}
        as: row
        key: row.id
        {step}
        """
    )


def answered(body: Any) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "user":
        row = json.dumps({"id": last["content"].split()[3]})
        return tool_reply([("c1", "stock__lookup", row)])
    return text_reply(last["content"])


PROMPT = 'prompt: "What is row {{ row.id }} like?"'
CALL = 'call: stock__lookup\n        with: {id: "{{ row.id }}"}'


@pytest.mark.parametrize("width", [1, 2])
def test_a_crash_costs_the_call_that_it_happened_in(
    project: Project, model_endpoint: ModelEndpoints, width: int
) -> None:
    """The case `batch-server-crash-twice`."""
    project.uses(model_endpoint(answered))
    looking_up(project, ["3", "7"], f"concurrency: {width}\n        {PROMPT}")

    done = project.run("-q", "-o", "out.jsonl")

    assert done.code == 0, done.stderr
    lines = (project.folder / "out.jsonl").read_text("utf-8").splitlines()
    said = {row["key"]: row["text"] for row in map(json.loads, lines)}
    died = {key for key, text in said.items() if text == DIED}
    assert {"3", "7"} <= died, said
    # A call beside it may be lost with its process.
    assert len(died) <= 2 * width
    rest = said.keys() - died
    assert {key: said[key] for key in rest} == {key: f"row {key} is blue" for key in rest}
    assert said.keys() == set(ROWS)


@pytest.mark.parametrize("step", [PROMPT, f"on_error: continue\n        {CALL}"])
def test_no_row_is_begun_without_a_required_server(
    project: Project, model_endpoint: ModelEndpoints, step: str
) -> None:
    project.uses(model_endpoint(answered))
    looking_up(project, ROWS[2:], f"concurrency: 1\n        {step}")

    found = project.result()

    assert found["exit"]["code"] == 5
    reason = "mcp server `stock`: the server ended with exit code 1, again after it was restarted"
    assert reason in found["exit"]["reason"]
    begun = [item["key"] for item in found["steps"]["main"]["items"]]
    assert begun == ROWS[:6], "two answers, and four crashes without one"
