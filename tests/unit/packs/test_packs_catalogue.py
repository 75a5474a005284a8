"""The code of the packs and the catalogue of their contract, compared both ways (K9)."""

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from aish.core.json import JsonObject, JsonValue
from aish.core.pack_options import PackOptions
from aish.core.tools import Tool, ToolName
from aish.packs.catalogue import PACKS, call_arguments
from aish.packs.framework.pack import Pack, PackTool

CATALOGUE = json.loads(
    (Path(__file__).parents[2] / "data" / "contract" / "packs.json").read_text("utf-8")
)
BUILT = (
    *("fs", "edit", "lang", "py", "c", "git", "web", "shell", "proc"),
    *("metrics", "perf", "rag", "issues", "ws", "ml", "ide", "browser"),
)
"""The packs that exist; the catalogue has more."""
PRESENT = [name for name in BUILT if name in PACKS]
SETTLED = {
    "file_read": {"too_large"},
    "file_summary": {"too_large"},
    "py_region_wrap": {"unsupported"},
}
"""Codes that the contract has settled beside the catalogue: files over 64 MiB are refused, and what
is no Python file."""
SETTLED_KEYS = {"git": {"text": "string"}}
"""Keys of the results of a pack that the contract has settled beside the catalogue."""
_NOT_SCHEMA = {"description", "minimum", "maximum"}


def pack(name: str) -> Pack:
    found: Pack = import_module(PACKS[name].module).PACK
    return found


def tools(name: str) -> list[tuple[str, PackTool]]:
    return [(one.name, one) for one in pack(name).tools]


TOOLS = [row for name in PRESENT for row in tools(name)]


def bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what the catalogue leaves out."""
    return {
        key: {name: bare(one) for name, one in value.items()}
        if key == "properties"
        else set(value)
        if key in {"required", "enum"}
        else value
        for key, value in schema.items()
        if key not in _NOT_SCHEMA
    }


@pytest.mark.requirement("K9")
@pytest.mark.parametrize("name", PRESENT)
def test_a_pack_is_as_the_catalogue_says(name: str) -> None:
    said = CATALOGUE["packs"][name]
    assert [tool for tool, _ in tools(name)] == said["tools"]
    assert (pack(name).root, list(PACKS[name].needs)) == (said["root"], said["needs"])
    assert PACKS[name].extra == (said["extra"] or "")
    options = getattr(PackOptions(), name, None)
    names = {one.name for one in fields(options)} if options else set()
    # The names that a file hides are an option of every pack that shows files.
    assert names - {"deny_names"} == set(said["options"])


@pytest.mark.requirement("K9", "K10", "K14", "K15", "K17")
@pytest.mark.parametrize(("name", "tool"), TOOLS, ids=[name for name, _ in TOOLS])
def test_a_tool_is_as_the_catalogue_says(name: str, tool: PackTool) -> None:
    said = CATALOGUE["tools"][name]
    assert bare(tool.input_schema) == bare(said["input_schema"])
    assert dict(tool.annotations) == said["annotations"]
    assert tool.parallel is said["parallel"]
    assert set(tool.codes) == {*said["codes"], *SETTLED.get(name, ())}
    assert len(set(tool.codes)) == len(tool.codes)
    properties = tool.output_schema["properties"]
    assert isinstance(properties, dict)
    assert {key: one.get("type", ["any"])[0] for key, one in properties.items()} == {
        **SETTLED_KEYS.get(said["pack"], {}),
        **said["result"],
    }
    rows = {
        key: {row: one["type"][0] for row, one in value["items"]["properties"].items()}
        for key, value in properties.items()
        if "items" in value
    }
    assert rows == said.get("rows", {})
    older = {old: one for old, one in CATALOGUE["older_names"].items() if one["tool"] == name}
    assert {
        old: {"tool": name, "rename": dict(one.rename), "set": dict(one.set)}
        for old, one in tool.older.items()
    } == older
    assert dict(tool.older_parameters) == CATALOGUE["older_parameters"].get(name, {})
    parameters = set(said["input_schema"]["properties"])
    assert {*tool.older_parameters.values()} <= parameters
    assert {key for one in tool.older.values() for key in (*one.rename.values(), *one.set)} <= (
        parameters
    )


ROOT = ("/home/ada/link", "/data/project")


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"path": "/home/ada/link/src/a.py"}, {"path": "src/a.py"}),
        ({"path": "/data/project//src/"}, {"path": "src/"}),
        ({"path": "/data/project"}, {"path": "."}),
        ({"path": "/data/project-two/a"}, {"path": "/data/project-two/a"}),
        ({"path": "/data/project/../a"}, {"path": "../a"}),
        ({"path": "/etc/passwd"}, {"path": "/etc/passwd"}),
        ({"path": 7}, {"path": 7}),
        ({"path": "", "after": "", "limit": 0}, {"path": "", "limit": 0}),
        ({"content": "/data/project/a"}, {"content": "/data/project/a"}),
        ({"new_path": "/data/project/b", "cwd": "/data/project/c"}, {"new_path": "b", "cwd": "c"}),
        ({"glob": "/data/project/**/*.py"}, {"glob": "**/*.py"}),
    ],
)
def test_arguments_are_seen_relative_to_the_root_and_without_empty_ones(
    given: dict[str, JsonValue], seen: dict[str, JsonValue]
) -> None:
    schema: JsonObject = {"type": "object", "required": ["path"]}
    tool = Tool(ToolName("repo", "dir_list"), "repo__dir_list", "", schema, root=ROOT)
    assert call_arguments("repo__dir_list", tool, given) == seen


def test_a_path_below_the_root_of_the_system_is_relative_to_it() -> None:
    tool = Tool(ToolName("all", "dir_list"), "all__dir_list", "", {}, root=("/",))
    assert call_arguments("all__dir_list", tool, {"path": "/etc"}) == {"path": "etc"}
