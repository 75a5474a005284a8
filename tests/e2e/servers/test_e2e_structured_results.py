"""Results with `structuredContent`: who gets it, and what it has to be (M7)."""

import json
import sys
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import text_reply, tool_reply

SERVER = """
import json, sys
TOOL, RESULT = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "rooms", "inputSchema": {"type": "object"}, **TOOL}]}
    elif message["method"] == "tools/call":
        result = RESULT
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
DATA: dict[str, Any] = {"rooms": ["blue", "grün"], "n": 2}
SUMMARY = "2 rooms found"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def result(*texts: str, data: Any = None, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text} for text in texts]
    return {"content": blocks, **({} if data is None else {"structuredContent": data}), **more}


def serving(
    project: Project, answer: dict[str, Any], schema: Any = None, rest: str = "", key: str = ""
) -> None:
    project.write("server.py", SERVER)
    tool = {} if schema is None else {"outputSchema": schema}
    command = json.dumps([sys.executable, "server.py", json.dumps([tool, answer])])
    entry = f"{{command: {command}, protocol: legacy{key}}}"
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}, auto_approve: ['s__*']}}\n{rest}\n")


def seen(project: Project, model_endpoint: ModelEndpoints, **options: Any) -> str:
    """What the model gets to see of the result."""
    endpoint = model_endpoint([tool_reply([("c1", "s__rooms", "{}")]), text_reply("done")])
    project.uses(endpoint)
    serving(project, rest="prompt: Go", **options)
    assert project.run().code == 0
    return str(endpoint.asked[-1]["messages"][-1]["content"])


@pytest.mark.requirement("M7")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "answer",
    [
        result(SUMMARY, data=DATA),
        result(SUMMARY, data=DATA, isError=True),
        result("2", data=DATA),
        result("2 rooms", data={"n": 2}),
        result("lookup done", data={"status": "ok"}),
        result('{"rooms": ["blue"]}', data=DATA),
    ],
)
def test_a_model_gets_the_data_that_the_text_does_not_hold(
    project: Project, model_endpoint: ModelEndpoints, answer: dict[str, Any]
) -> None:
    text = answer["content"][0]["text"]
    told = json.dumps(answer["structuredContent"], ensure_ascii=False)
    assert seen(project, model_endpoint, answer=answer) == f"{text}\n{told}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "answer",
    [
        result(json.dumps(DATA), data=DATA),
        result(json.dumps(DATA, indent=2, ensure_ascii=False, sort_keys=True), data=DATA),
        result(f"Found:\n```json\n{json.dumps(DATA, indent=4)}\n```", data=DATA),
        result("see", json.dumps(DATA), data=DATA),
        result("a text", data={"result": "a text"}),
        result("a text\n", data={"result": "a text"}),
        result("5", data={"result": 5}),
        result("true", data={"result": True}),
        result("a", "b", data={"result": ["a", "b"]}),
        result("1", "2", data={"result": [1, 2]}),
        result('{\n "a": 1\n}', '{\n "a": 2\n}', data={"result": [{"a": 1}, {"a": 2}]}),
        result(json.dumps([1, 2]), data={"items": [1, 2]}),
        result(SUMMARY),
    ],
)
def test_data_that_the_text_holds_is_not_told_twice(
    project: Project, model_endpoint: ModelEndpoints, answer: dict[str, Any]
) -> None:
    texts = "\n".join(block["text"] for block in answer["content"])
    assert seen(project, model_endpoint, answer=answer) == texts


@pytest.mark.slow(reason="starts a hub behind a run")
def test_the_text_of_a_pack_is_whole_behind_a_hub_too(project: Project) -> None:
    project.write("note.txt", "a note\n")
    project.pipeline("mcp: {servers: {f: {pack: fs, root: .}}, auto_approve: ['f__*']}", "hub.yaml")
    command = json.dumps([sys.executable, "-m", "aish", "serve", "hub.yaml"])
    project.pipeline(f"mcp: {{servers: {{h: {{command: {command}}}}}, auto_approve: ['h__*']}}")

    done = project.aish("call", "p.yaml", "h__f__file_read", "path=note.txt")

    assert (done.code, done.stdout) == (0, "a note\n"), done.stderr


def test_the_limit_of_a_result_holds_for_both(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answer = result(SUMMARY, data={"rooms": ["x" * 50] * 80})
    endpoint = model_endpoint([tool_reply([("c1", "s__rooms", "{}")]), text_reply("done")])
    project.uses(endpoint)
    serving(project, answer, rest="result_limit: 1KiB\nprompt: Go")

    assert project.run().code == 0

    told = endpoint.asked[-1]["messages"][-1]["content"]
    assert len(told.encode()) <= 1024
    assert told.startswith(SUMMARY)
    assert "bytes left out here" in told


def test_a_direct_call_prints_both_and_a_step_has_each_in_its_place(project: Project) -> None:
    serving(project, result(SUMMARY, data=DATA), rest="call: s__rooms")

    called = project.aish("call", "p.yaml", "s__rooms")
    found = project.result()

    assert called.stdout == f"{SUMMARY}\n{json.dumps(DATA, ensure_ascii=False)}\n"
    assert found["steps"]["main"]["output"] == DATA


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (result(SUMMARY, data={"n": "two"}), "n: "),
        (result(SUMMARY, data={}), "n"),
        (result(SUMMARY), "no `structuredContent`"),
    ],
)
def test_data_that_does_not_fit_the_output_schema_is_a_notice_or_an_error(
    project: Project, answer: dict[str, Any], why: str
) -> None:
    serving(project, answer, SCHEMA, "call: s__rooms")
    lenient = project.run()
    assert lenient.code == 0, lenient.stderr
    (notice,) = of_type(project.journal, "notice")
    assert (notice["level"], notice["code"]) == ("warning", "odd_output")
    assert why in notice["text"]

    serving(project, answer, SCHEMA, "call: s__rooms", ", strict_output: true")
    strict = project.aish("call", "p.yaml", "s__rooms")
    assert strict.code == 1
    assert "does not fit its output schema" in strict.stderr


@pytest.mark.parametrize("answer", [result("x", data={"n": 1}), result("no", isError=True)])
def test_what_fits_and_what_is_an_error_already_is_not_told(
    project: Project, answer: dict[str, Any]
) -> None:
    serving(project, answer, SCHEMA, "call: s__rooms", ", strict_output: true")

    done = project.run()

    assert not of_type(project.journal, "notice")
    assert done.code == (1 if answer.get("isError") else 0)
