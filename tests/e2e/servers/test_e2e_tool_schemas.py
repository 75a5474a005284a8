"""Schemas of servers as they are in the wild: patterns of JavaScript, older drafts, decimals."""

import json
import sys
from typing import Any

import pytest
from e2e_project import Project, of_type

SERVER = """
import json, sys
TOOLS = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": one} for name, one in TOOLS.items()]}
    elif message["method"] == "tools/call":
        text = json.dumps(message["params"]["arguments"]["v"])
        result = {"content": [{"type": "text", "text": text}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def of_v(schema: Any, **more: Any) -> Any:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"], **more}


PAIR = {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}
TOOLS: dict[str, Any] = {
    "letters": of_v({"type": "string", "pattern": r"^[\p{L}\p{N} ._-]+$"}),
    "date": of_v({"type": "string", "pattern": r"^(?<year>\d{4})-(?<month>\d\d)$"}),
    "behind": of_v({"type": "string", "pattern": r"(?<=a+)b"}),
    "deep": of_v({"$ref": "#/$defs/d"}, **{"$defs": {"d": {"pattern": r"^[^]\u{1f600}?$"}}}),
    "keys": of_v({"patternProperties": {r"^\p{Lu}$": {}}, "additionalProperties": False}),
    "rust": of_v({"type": "string", "pattern": r"\A(?P<n>a)\z", "maxLength": 3}),
    "price": of_v({"type": "number", "multipleOf": 0.01}),
    "pair": of_v(PAIR),
    "labelled": {"$schema": "https://json-schema.org/draft-07/schema#", **of_v(PAIR)},
    "word": of_v({"type": "string"}),
}
FITTING: dict[str, Any] = {
    "letters": "Zoë",
    "date": "2026-11",
    "behind": "aab",
    "deep": "\n",
    "keys": {"É": 1},
    "rust": "b",
    "price": 19.99,
    "pair": [1, "a"],
    "labelled": [1, "a"],
}


def serving(project: Project, rest: str = "", rules: str = '["s__*"]') -> None:
    project.write("server.py", SERVER)
    command = json.dumps([sys.executable, "server.py", json.dumps(TOOLS)])
    entry = f"{{command: {command}, protocol: legacy}}"
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}, auto_approve: {rules}}}\n{rest}\n")


def test_arguments_fit_patterns_drafts_and_decimals_as_their_server_means_them(
    project: Project,
) -> None:
    steps = [
        {"id": name, "call": f"s__{name}", "with": {"v": value}} for name, value in FITTING.items()
    ]
    again = {"id": "again", "call": "s__rust", "with": {"v": "c"}}
    serving(project, f"steps: {json.dumps([*steps, again])}")

    done = project.run("--format", "jsonl")

    assert done.code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = [one["text"] for one in of_type(events, "notice") if one["code"] == "schema_unchecked"]
    assert told == [
        r"s__rust: the pattern '\\A(?P<n>a)\\z' cannot be checked here, and is left to the server"
    ]


@pytest.mark.requirement("L17")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tool", "value", "said"),
    [
        ("letters", 7, "v: 7 is not of type 'string'"),
        ("letters", "a!", r"v: 'a!' does not match"),
        ("date", "2026-1", r"v: '2026-1' does not match"),
        ("behind", "b", r"v: 'b' does not match"),
        ("keys", {"É": 1, "a": 1}, "v.a: is not a known key"),
        ("rust", "bbbb", "v: has 4 characters and may have at most 3"),
        ("price", 1.005, "v: 1.005 is not a multiple of 0.01"),
        ("pair", ["a", 1], "v[0]: 'a' is not of type 'number'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_as_before(
    project: Project, tool: str, value: Any, said: str
) -> None:
    serving(project)

    done = project.aish("call", "p.yaml", f"s__{tool}", f"v:={json.dumps(value)}")

    assert done.code == 2
    assert said in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schema", "value", "code"),
    [
        ({"pattern": "^[a-z]+$"}, "abc", 0),
        ({"pattern": "^[a-z]+$"}, "abc\n", 3),
        ({"pattern": r"^\p{Ll}+$"}, "é", 0),
        ({"pattern": r"^\p{Ll}+$"}, "é\n", 3),
        ({"pattern": r"^\d+$"}, "٤٢", 3),
        ({"pattern": "(?i)abc"}, "abc", 2),
    ],
)
def test_a_rule_approves_what_its_pattern_matches_to_the_end(
    project: Project, schema: Any, value: str, code: int
) -> None:
    rules = json.dumps([{"tool": "s__word", "schema": of_v(schema)}])
    step = {"id": "a", "call": "s__word", "with": {"v": value}}
    serving(project, f"steps: [{json.dumps(step)}]", rules)

    assert project.run("-q").code == code


def test_a_schema_of_the_file_may_refer_to_itself_and_use_patterns_of_ecma_262_only(
    project: Project,
) -> None:
    order = "https://example.com/order"
    fits: Any = {
        "$id": order,
        "properties": {"n": {"$ref": f"{order}#/$defs/n"}, "m": {"$ref": "part"}},
        "$defs": {"n": {"type": "integer", "default": {"$ref": "https://example.com/x"}}},
        "definitions": {"part": {"$id": "part", "pattern": r"^\p{L}$"}},
    }
    prompt = {"prompt": {"user": "Go"}, "output": {"schema": fits}}
    project.pipeline(f"steps: [{json.dumps({'id': 'a', **prompt})}]")
    assert project.aish("validate", "p.yaml").code == 0

    fits["properties"] |= {"x": {"$ref": "other"}, "y": {"pattern": r"\Aa\Z"}}
    project.pipeline(f"steps: [{json.dumps({'id': 'a', **prompt})}]")
    done = project.aish("validate", "p.yaml")
    assert done.code == 2
    assert r"'\\Aa\\Z' is not a pattern of ECMA-262" in done.stderr

    fits["properties"].pop("y")
    project.pipeline(f"steps: [{json.dumps({'id': 'a', **prompt})}]")
    done = project.aish("validate", "p.yaml")
    assert "refers to nothing in the schema, and nothing is fetched" in done.stderr
