"""All packs, and what is known of their tools without loading one (K1, K2, K9, K10).

A new pack is one module and one line here. `manifest.json` has the marks and the older names of
all tools; `docs/generate.py` writes it, and a test holds it against the packs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool

_PATHS = frozenset({"path", "new_path", "cwd", "glob"})
"""Parameters that are paths below the root, in all packs."""


@frozen
class PackEntry:
    """Where a pack is: its module is loaded when a server names the pack.

    `needs` are libraries that it cannot do without, `extra` the extra that has them.
    """

    module: str
    needs: tuple[str, ...] = ()
    extra: str = ""


PACKS: Mapping[str, PackEntry] = {
    "fs": PackEntry("aish.packs.fs"),
    "edit": PackEntry("aish.packs.edit"),
    "git": PackEntry("aish.packs.git", needs=("pygit2",), extra="git"),
    "shell": PackEntry("aish.packs.shell"),
    "proc": PackEntry("aish.packs.proc"),
    "web": PackEntry("aish.packs.web.tools", extra="web"),
    "lang": PackEntry("aish.packs.lang"),
    "c": PackEntry(
        "aish.packs.c.c_pack",
        needs=("tree_sitter", "tree_sitter_c", "tree_sitter_cpp"),
        extra="c",
    ),
    "py": PackEntry("aish.packs.py.pack", extra="py"),
    "ml": PackEntry("aish.packs.ml.ml_pack"),
    "metrics": PackEntry("aish.packs.metrics"),
    "perf": PackEntry("aish.packs.perf", needs=("psutil",), extra="perf"),
    "rag": PackEntry("aish.packs.rag.rag_pack", extra="rag"),
    "issues": PackEntry("aish.packs.issues.issue_tools"),
    "browser": PackEntry("aish.packs.browser.browser_pack", needs=("websockets",), extra="browser"),
    "ws": PackEntry("aish.packs.ws.ws_pack", needs=("websockets",), extra="ws"),
    "ide": PackEntry("aish.packs.ide.ide_pack", extra="ide"),
}

_MANIFEST = Path(__file__).with_name("manifest.json")


@frozen
class ToolMarks:
    """What rules and a resumed run have to know of a tool."""

    pack: str
    read_only: bool
    destructive: bool
    open_world: bool
    parallel: bool
    changes: bool


@frozen
class OlderName:
    """The tool that an older name stands for; how its parameters were called, which it sets."""

    tool: str
    rename: Mapping[str, str]
    set: Mapping[str, JsonValue]


@cache
def _manifest() -> Mapping[str, Any]:
    manifest: Mapping[str, Any] = json.loads(_MANIFEST.read_text("utf-8"))
    return manifest


@cache
def tool_marks() -> Mapping[str, ToolMarks]:
    """The marks of every tool by its name."""
    return {name: ToolMarks(**marks) for name, marks in _manifest()["tools"].items()}


@cache
def older_names() -> Mapping[str, OlderName]:
    """Names that users of other servers know: they can be called and are not listed."""
    return {name: OlderName(**one) for name, one in _manifest()["older_names"].items()}


@cache
def older_parameters() -> Mapping[str, Mapping[str, str]]:
    """Older names of parameters by tool, and their own names."""
    found: Mapping[str, Mapping[str, str]] = _manifest()["older_parameters"]
    return found


def pack_needs_root(name: str) -> bool:
    """Whether a pack has tools only where its server has a root (K4)."""
    return bool(_manifest()["packs"].get(name, {}).get("root") == "needed")


def tools_of(packs: Sequence[str]) -> Iterator[tuple[str, ToolMarks]]:
    """The tools of these packs."""
    return ((name, marks) for name, marks in tool_marks().items() if marks.pack in packs)


def own_name(packs: Sequence[str], name: str) -> str:
    """The own name of a tool of these packs; any other name as it is (K10)."""
    older = older_names().get(name) if packs else None
    if older is None or tool_marks()[older.tool].pack not in packs:
        return name
    return older.tool


def own_public_name(called: str) -> str:
    """The name, with a prefix or without, that callers see of the tool with an older name."""
    prefix, separator, name = called.rpartition("__")
    older = older_names().get(name)
    return called if older is None else f"{prefix}{separator}{older.tool}"


def call_arguments(called: str, tool: Tool, arguments: JsonObject) -> JsonObject:
    """The arguments of a call by the name `called`, as rules and the tool see them.

    They have their own names, paths below the root are relative to it, and an optional text that is
    empty is left out.

    Raises:
        ValueError: a parameter is given under two names, or is one that the older name sets.
    """
    required = tool.input_schema.get("required")
    return {
        key: _relative(value, tool.root) if key in _PATHS and isinstance(value, str) else value
        for key, value in own_arguments(called, tool.name.name, arguments).items()
        if not (isinstance(value, str) and not value)
        or (isinstance(required, Sequence) and key in required)
    }


def _relative(path: str, root: Sequence[str]) -> str:
    for folder in root:
        above = folder.rstrip("/")
        if path == above or path.startswith(f"{above}/"):
            return path[len(above) :].lstrip("/") or "."
    return path


def own_arguments(called: str, name: str, arguments: JsonObject) -> JsonObject:
    """The arguments of a call of the tool `name` by the name `called`, under their own names.

    Raises:
        ValueError: a parameter is given under two names, or is one that the older name sets.
    """
    called = called.rpartition("__")[2]
    older = older_names().get(called)
    renamed = {**older_parameters().get(name, {}), **(older.rename if older else {})}
    given: dict[str, JsonValue] = {}
    for key, value in arguments.items():
        own = renamed.get(key, key)
        if own in given or (own != key and own in arguments):
            raise ValueError(f"`{key}` is an older name of `{own}`, and both are given")
        given[own] = value
    for key, value in older.set.items() if older else ():
        if key in given:
            raise ValueError(f"`{called}` sets `{key}` itself")
        given[key] = value
    return given
