"""Tools that official clients refuse, and with them the whole list (M6): one bad tool costs itself.

The judges are the models of MCP's official Python library, one for each revision of the protocol.
"""

import json
import sys
from typing import Any

from e2e_project import ModelEndpoints, Project, of_type
from mcp_types._v2025_11_25 import ListToolsResult as ListOf2025
from mcp_types._v2026_07_28 import ListToolsResult as ListOf2026
from model_endpoint import text_reply
from served_hub import ServedHub

SERVER = """
import json, sys
TOOLS = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
WORD = {"word": {"type": "string"}}
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
MENDED: dict[str, tuple[Any, Any]] = {
    "no_type": ({"properties": WORD}, {"type": "object", "properties": WORD}),
    "null_type": ({"type": None, "properties": WORD}, {"type": "object", "properties": WORD}),
    "types": (
        {"type": ["object", "null"], "properties": WORD},
        {"type": "object", "properties": WORD},
    ),
    "any_of": (
        {"anyOf": [{"required": ["a"]}]},
        {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]},
    ),
    "null_properties": ({"type": "object", "properties": None}, OBJECT),
    "null_required": (
        {"type": "object", "properties": WORD, "required": None},
        {"type": "object", "properties": WORD},
    ),
    "boolean_required": ({**OBJECT, "required": True}, OBJECT),
    "any_word": (
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {}}},
    ),
    "no_word": (
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": {"a": {"not": {}}}},
    ),
    "null_word": (
        {"type": "object", "properties": {"a": None}},
        {"type": "object", "properties": {"a": {}}},
    ),
    "null_schema_word": ({**OBJECT, "$schema": None}, OBJECT),
}
"""Input schemas as servers send them, and as models and clients of the hub get them."""
PLAIN = {"any_word", "no_word"}
"""Those of them that mean the same as before: nothing is told."""
QUIET: dict[str, Any] = {"no_properties": {"type": "object"}, "none": None, "empty": {}}
"""Those of which nothing is told: what is meant is plain, and the first is what MCP recommends."""
ODD_ROWS: list[dict[str, Any]] = [
    {"name": "odd_words", "inputSchema": OBJECT, "title": None, "description": None},
    {"name": "odd_title", "inputSchema": OBJECT, "title": 7, "description": ["x"]},
    {"name": "odd_notes", "inputSchema": OBJECT, "annotations": None, "_meta": None},
    {"name": "odd_hints", "inputSchema": OBJECT, "annotations": {"readOnlyHint": "yes"}},
    {"name": "odd_icons", "inputSchema": OBJECT, "icons": None, "execution": None},
    {"name": "odd_icon", "inputSchema": OBJECT, "icons": [{"mimeType": "image/png"}]},
    {"name": "odd_task", "inputSchema": OBJECT, "execution": {"taskSupport": "maybe"}},
    {"name": "odd_output", "inputSchema": OBJECT, "outputSchema": {"properties": WORD}},
    {"name": "list_output", "inputSchema": OBJECT, "outputSchema": {"type": "array"}},
]
TASK = {"name": "task", "inputSchema": OBJECT, "execution": {"taskSupport": "required"}}


def rows(schemas: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]


def listing(project: Project, tools: list[dict[str, Any]], rest: str = "") -> None:
    project.write("server.py", SERVER)
    command = json.dumps([sys.executable, "server.py", json.dumps(tools)])
    entry = f"{{command: {command}, protocol: legacy}}"
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}, auto_approve: ['s__*']}}\n{rest}\n")


def test_models_get_schemas_of_objects_and_a_notice_names_the_tools(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("done"))
    project.uses(endpoint)
    sent = {name: schema for name, (schema, _) in MENDED.items()}
    listing(project, rows({**sent, **QUIET}), "prompt: Go")

    done = project.run()

    assert done.code == 0, done.stderr
    (asked,) = endpoint.asked
    found = {one["function"]["name"]: one["function"]["parameters"] for one in asked["tools"]}
    meant = {name: schema for name, (_, schema) in MENDED.items()} | dict.fromkeys(QUIET, OBJECT)
    assert found == {f"s__{name}": schema for name, schema in meant.items()}
    (notice,) = of_type(project.journal, "notice")
    assert (notice["level"], notice["code"]) == ("warning", "mended_schema")
    for name in MENDED.keys() - PLAIN:
        assert f"`{name}`" in notice["text"]
    for name in (*QUIET, *PLAIN):
        assert f"`{name}`" not in notice["text"]


def test_clients_of_the_hub_can_read_the_whole_list(project: Project) -> None:
    sent = {name: schema for name, (schema, _) in MENDED.items()}
    tools = [*rows({**sent, **QUIET}), *ODD_ROWS]
    listing(project, tools)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        found = hub.tools()

    assert [one["name"] for one in found] == [f"s__{one['name']}" for one in tools]
    ListOf2025.model_validate({"tools": found})
    ListOf2026.model_validate(
        {"tools": found, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    )
    for one in found:
        assert one["inputSchema"]["type"] == "object"
        # The TypeScript client refuses each of these, the Python client some.
        assert None not in one.values()
        assert all(isinstance(p, dict) for p in one["inputSchema"].get("properties", {}).values())
        assert one.get("outputSchema", OBJECT).get("type") == "object"


def test_the_lock_pins_the_mended_schema(project: Project) -> None:
    sent, meant = MENDED["no_type"]
    listing(project, rows({"t": sent}))
    assert project.aish("lock", "p.yaml").code == 0

    project.write("server.py", SERVER.replace("json.loads(sys.argv[1])", repr(rows({"t": meant}))))

    assert project.aish("lock", "p.yaml", "--check").code == 0


def test_a_tool_that_can_only_be_called_as_a_task_is_left_out_with_a_notice(
    project: Project,
) -> None:
    listing(project, [TASK, *rows({"fine": OBJECT})])

    done = project.aish("tools", "p.yaml")

    assert (done.code, done.stdout.split()[0]) == (0, "s__fine"), done.stderr
    assert "tool `task` is left out: it can only be called as a task" in done.stderr
