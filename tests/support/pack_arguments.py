"""Arguments of tools, made up from their schemas: tests over all tools meet a new one by itself."""

from importlib import import_module
from typing import Any

from aish.packs.catalogue import PACKS, tool_marks
from aish.packs.framework.pack import PackTool

_VALUES: dict[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}


def declared_tools() -> dict[str, PackTool]:
    """All tools of all packs by their names."""
    return {
        tool.name: tool for pack in PACKS.values() for tool in import_module(pack.module).PACK.tools
    }


def made_up_arguments(name: str, path: str) -> dict[str, Any]:
    """Arguments that fit the schema of a tool: those that it needs, and `path` if it has one.

    A text is the name of its parameter, and `name` is `f`, as of a function in most test files.
    """
    schema: Any = declared_tools()[name].input_schema
    found: dict[str, Any] = {}
    for key, described in schema["properties"].items():
        if key == "path":
            found[key] = path
        elif key in schema.get("required", ()):
            kind = described["type"]
            plain = ("f" if key == "name" else key) if kind == "string" else _VALUES[kind]
            found[key] = described["enum"][0] if "enum" in described else plain
    return found


def tools_without(calls: set[str], packs: list[str]) -> list[str]:
    """The tools of some packs that no call in a table is of, in order."""
    return [
        name for name, marks in tool_marks().items() if marks.pack in packs and name not in calls
    ]
