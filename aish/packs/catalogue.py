"""All packs, and facts about their tools that need no loading.

A new pack is one module and one line here. `manifest.json` has the marks and the older names of all
tools; `docs/generate.py` writes it, and a test compares it with the packs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Reach, Tool
from aish.system.pack_index import entry_point, find_offered_pack, pack_manifest

_PATHS = frozenset({"path", "new_path", "cwd", "glob"})
"""Parameters that are paths below the root, in all packs."""


@frozen
class PackEntry:
    """The module of a pack, loaded when a server names the pack.

    `needs` are required libraries, `extra` is the extra that has them.
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
        "aish.packs.c.c_pack", needs=("tree_sitter", "tree_sitter_c", "tree_sitter_cpp"), extra="c"
    ),
    "py": PackEntry("aish.packs.py.pack", needs=("tree_sitter", "tree_sitter_python"), extra="py"),
    "ml": PackEntry("aish.packs.ml.ml_pack"),
    "metrics": PackEntry("aish.packs.metrics"),
    "perf": PackEntry("aish.packs.perf", needs=("psutil",), extra="perf"),
    "rag": PackEntry("aish.packs.rag.rag_pack", extra="rag"),
    "issues": PackEntry("aish.packs.issues.issue_tools"),
    "browser": PackEntry("aish.packs.browser.browser_pack", needs=("websockets",), extra="browser"),
    "ws": PackEntry("aish.packs.ws.ws_pack", needs=("websockets",), extra="ws"),
    "ide": PackEntry("aish.packs.ide.ide_pack", extra="ide"),
}


@frozen
class ToolMarks:
    """Facts about a tool for rules, flows and a resumed run.

    A tool that `reads_untrusted` returns text that anybody may have written; one that `sends` can
    carry data to anybody.
    """

    pack: str
    read_only: bool
    destructive: bool
    open_world: bool
    parallel: bool
    changes: bool
    reach: Reach = ""
    reads_files: bool = False
    reads_untrusted: bool = False
    sends: bool = False


@frozen
class OlderName:
    """The tool that an older name refers to, the older names of its parameters, and set values."""

    tool: str
    rename: Mapping[str, str]
    set: Mapping[str, JsonValue]


@cache
def tool_marks() -> Mapping[str, ToolMarks]:
    return {name: ToolMarks(**marks) for name, marks in pack_manifest()["tools"].items()}


@cache
def older_names() -> Mapping[str, OlderName]:
    """Return older tool names, which can be called and are not listed."""
    return {name: OlderName(**entry) for name, entry in pack_manifest()["older_names"].items()}


@cache
def older_parameters() -> Mapping[str, Mapping[str, str]]:
    """Return older names of parameters by tool, with their own names."""
    names: Mapping[str, Mapping[str, str]] = pack_manifest()["older_parameters"]
    return names


def is_builtin(packs: Sequence[str]) -> bool:
    """Return true if a server has only built-in packs, so that their marks can be trusted."""
    return bool(packs) and all(pack in PACKS for pack in packs)


def check_pack_name(name: str) -> None:
    """Check that a pack is built in, or offered by a distribution.

    Raises:
        UsageError: it is neither, or two distributions offer it.
    """
    if name in PACKS:
        return
    if find_offered_pack(name) is None:
        hint = f"there are: {', '.join(PACKS)}; `pip install` the distribution {entry_point(name)}"
        raise UsageError(f"there is no tool pack `{name}`", hint=hint)


def pack_needs_root(name: str) -> bool:
    """Return true if the tools of a pack need a root."""
    return bool(pack_manifest()["packs"].get(name, {}).get("root") == "needed")


def tools_of(packs: Sequence[str]) -> Iterator[tuple[str, ToolMarks]]:
    return ((name, marks) for name, marks in tool_marks().items() if marks.pack in packs)


def own_name(packs: Sequence[str], name: str) -> str:
    """The current name of a tool of these packs; other names are returned unchanged."""
    older = older_names().get(name) if packs else None
    if older is None or tool_marks()[older.tool].pack not in packs:
        return name
    return older.tool


def own_public_name(called: str) -> str:
    """Return the public name, with or without a prefix, of the tool with an older name."""
    prefix, separator, name = called.rpartition("__")
    older = older_names().get(name)
    return called if older is None else f"{prefix}{separator}{older.tool}"


def call_arguments(called: str, tool: Tool, arguments: JsonObject) -> JsonObject:
    """Return the arguments of a call by the name `called`, as rules and the tool see them.

    Parameters have their own names, paths below the root are relative to it, and optional texts
    that are empty are omitted.

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
    """Return the arguments of a call of the tool `name` by the name `called`, under its own names.

    Raises:
        ValueError: a parameter is given under two names, or is one that the older name sets.
    """
    called = called.rpartition("__")[2]
    older = older_names().get(called)
    renamed = {**older_parameters().get(name, {}), **(older.rename if older else {})}
    values: dict[str, JsonValue] = {}
    for key, value in arguments.items():
        own = renamed.get(key, key)
        if own in values or (own != key and own in arguments):
            raise ValueError(f"`{key}` is an older name of `{own}`, and both are given")
        values[own] = value
    for key, value in older.set.items() if older else ():
        if key in values:
            raise ValueError(f"`{called}` sets `{key}` itself")
        values[key] = value
    return values
