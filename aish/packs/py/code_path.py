"""`py_derive_code_path`: which functions a function calls, over several files."""

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import anyio
import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS_ANYWHERE, Bounds, Older, tool
from aish.packs.pack_error import PackError
from aish.packs.py.name_resolution import ModuleSearch, Ref
from aish.packs.py.python_files import (
    SECONDS,
    PythonFile,
    PythonFiles,
    SearchPath,
    count_lines_that_fit,
    read_python_files,
)
from aish.packs.tool_results import Answer
from aish.packs.workspace.workspace import Workspace

MOST_NODES = 500
MOST_UNRESOLVED = 500
DEEPEST = 100
_MOST_NAMED = 20
_CALLABLE = frozenset({"function", "class"})


@tool(
    READS_ANYWHERE,
    codes=(*PATH_CODES, *PARSE_CODES),
    result={"nodes": "array", "unresolved": "array", "truncated": "boolean"},
    rows={
        "nodes": {
            "path": "string",
            "name": "string",
            "line": "integer",
            "depth": "integer",
            "cycle": "boolean",
        },
        "unresolved": {"name": "string", "path": "string", "line": "integer"},
    },
    older={"derive_code_path": Older(rename={"max_depth": "depth"})},
)
async def py_derive_code_path(
    place: Workspace,
    target: str,
    path: SearchPath = ".",
    depth: Annotated[int, Bounds(1, DEEPEST)] = 5,
) -> Answer:
    """Shows which functions a function calls, which these call, and so on, over several files.

    Each row comes after the function that calls it, one deeper; a function's own calls are listed
    where it is first reached. `cycle` marks a call of a function that is being called already.
    Followed are imports, aliases, inheritance, `self`, `super()`, local instances and annotations.
    `unresolved` lists the other calls, those of libraries among them; builtins are left out.

    Args:
        target: the function, dotted as in `Class.method`, or after its module as in `app.main.run`
        depth: how many calls deep to follow, up to 100
    """
    if not all(part.isidentifier() for part in target.split(".")):
        raise PackError("bad_arguments", "`target` is not the name of a function")
    deadline = anyio.current_time() + SECONDS
    files = await read_python_files(place, path)
    return await _CallSearch(place, files, deadline).calls_of(target, depth)


_Key = tuple[str, str]
"""A function by its file and its dotted name: what is defined twice there counts as one."""


@frozen
class _Unresolved:
    name: str
    path: str
    line: int


@slotted
class _CallNode:
    """A function that was reached: its definitions, and what they call in order."""

    refs: list[Ref]
    line: int
    depth: int
    caller: _Key | None
    calls: list[_Key] = field(default_factory=list)


class _CallSearch(ModuleSearch):
    """Follows calls breadth first."""

    def __init__(self, place: Workspace, files: PythonFiles, deadline: float) -> None:
        super().__init__(place, files, deadline, calls=True)
        self._nodes: dict[_Key, _CallNode] = {}
        self._unresolved: dict[tuple[str, str], _Unresolved] = {}
        self._truncated = False

    async def calls_of(self, target: str, depth: int) -> Answer:
        root = await self._find_root(target)
        self._nodes[root] = self._make_node(root, 0, None)
        level = [root]
        for deep in range(1, depth + 1):
            calls = await self._find_calls(level)
            below: list[_Key] = []
            for caller, called in calls:
                node = self._nodes[caller]
                for key in called:
                    if key not in self._nodes:
                        if len(self._nodes) >= MOST_NODES:
                            self._truncated = True
                            continue
                        self._nodes[key] = self._make_node(key, deep, caller)
                        below.append(key)
                    node.calls.append(key)
            level = below
            if not level:
                break
        return self._answer(root)

    async def _find_root(self, target: str) -> _Key:
        own = target.rpartition(".")[2]
        await self._read(await anyio.to_thread.run_sync(_files_that_define, self.found.files, own))
        called = await self._call_targets(await self._find_definitions(target, _CALLABLE))
        keys = list(dict.fromkeys(map(self._key_of, called)))
        if not keys:
            message = f"there is no function `{target}` here"
            raise PackError("no_match", self.found.with_note(message), target=target)
        if len(keys) > 1:
            named: list[JsonValue] = [
                f"{key[0]}:{self._make_node(key, 0, None).line}: {key[1]}"
                for key in keys[:_MOST_NAMED]
            ]
            more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
            listing = "; ".join(for_line(str(key)) for key in named)
            message = (
                f"there are {len(keys)} functions `{target}`: {listing}{more}; "
                "name one with its class or module, or a smaller `path`"
            )
            raise PackError("ambiguous", message, candidates=named)
        return keys[0]

    async def _call_targets(self, refs: list[Ref]) -> list[Ref]:
        """The functions that calls of these run: of a class its `__init__`."""
        return await self._repeat_until_read(
            lambda: [self._call_target(ref) or ref for ref in refs]
        )

    def _key_of(self, ref: Ref) -> _Key:
        return ref.path, self._modules.scope(ref)["name"]

    def _same_named_definitions(self, key: _Key) -> list[Ref]:
        """All definitions of one name in one file: overloads, setters, branches."""
        path, name = key
        return [
            Ref(scope["kind"], path, index)
            for index, scope in enumerate(self._modules.scopes(path))
            if scope["name"] == name and scope["kind"] in _CALLABLE
        ]

    def _make_node(self, key: _Key, depth: int, caller: _Key | None) -> _CallNode:
        refs = self._same_named_definitions(key)
        return _CallNode(refs, self._modules.scope(refs[0])["line"], depth, caller)

    async def _find_calls(self, level: list[_Key]) -> list[tuple[_Key, list[_Key]]]:
        """Find the calls of these functions, without repeats."""
        calls, unresolved = await self._repeat_until_read(lambda: self._list_calls(level))
        # Each name once a file.
        for call in unresolved:
            self._unresolved.setdefault((call.path, call.name), call)
        return calls

    def _list_calls(
        self, level: list[_Key]
    ) -> tuple[list[tuple[_Key, list[_Key]]], list[_Unresolved]]:
        calls = []
        unresolved: list[_Unresolved] = []
        for key in level:
            called: dict[_Key, None] = {}
            for ref in self._nodes[key].refs:
                if ref.kind == "class":
                    # Without an `__init__` below the folder.
                    continue
                for steps, line in self._modules.scope(ref)["calls"]:
                    callee = self._modules.resolve(ref.path, ref.scope, steps)
                    target = self._call_target(callee)
                    if target is not None:
                        called[self._key_of(target)] = None
                    elif callee is None or callee.kind != "builtin":
                        unresolved.append(_Unresolved(_format_path(steps), ref.path, line))
            calls.append((key, list(called)))
        return calls, unresolved

    def _call_target(self, ref: Ref | None) -> Ref | None:
        """The function that a call runs; for a class its `__init__`, or the class itself."""
        if ref is None or ref.kind == "function":
            return ref
        if ref.kind == "class":
            method = self._modules.resolve_attribute(
                Ref("instance", ref.path, ref.scope), "__init__"
            )
            return method if method is not None and method.kind == "function" else ref
        if ref.kind == "instance":
            method = self._modules.resolve_attribute(ref, "__call__")
            return method if method is not None and method.kind == "function" else None
        return None

    def _answer(self, root: _Key) -> Answer:
        self._truncated = self._truncated or bool(self.found.stopped)
        rows, lines = self._list_tree(root)
        unresolved = sorted(self._unresolved.values(), key=lambda call: (call.path, call.line))
        if unresolved:
            lines.append("not resolved:")
            lines += [f"  {call.name} {for_line(call.path)}:{call.line}" for call in unresolved]
        count = min(count_lines_that_fit(lines), len(rows) + 1 + MOST_UNRESOLVED)
        if count < len(lines):
            self._truncated = True
            unresolved = unresolved[: max(count - len(rows) - 1, 0)]
            rows, lines = rows[:count], lines[:count]
        hint = f"cut after {len(rows)} functions; ask with a smaller `depth`"
        is_cut = self._truncated and not self.found.stopped
        lines += self.found.last_line(hint if is_cut else "", truncated=self._truncated)
        others: list[JsonValue] = [
            {"name": call.name, "path": call.path, "line": call.line} for call in unresolved
        ]
        data: dict[str, JsonValue] = {
            "nodes": rows,
            "unresolved": others,
            "truncated": self._truncated,
        }
        return Answer("\n".join(lines), data)

    def _list_tree(self, root: _Key) -> tuple[list[JsonValue], list[str]]:
        """The rows: below each function what it calls, where it was reached first."""
        rows: list[JsonValue] = []
        lines: list[str] = []
        waiting: list[tuple[_Key, int, _Key | None]] = [(root, 0, None)]
        while waiting and len(rows) < MOST_NODES:
            key, depth, caller = waiting.pop()
            node = self._nodes[key]
            is_first = node.caller == caller and node.depth == depth
            is_cycle = not is_first and self._is_above(key, caller)
            path, name = key
            row: dict[str, JsonValue] = {
                "path": path,
                "name": name,
                "line": node.line,
                "depth": depth,
                "cycle": is_cycle,
            }
            rows.append(row)
            is_elsewhere = not is_first and bool(node.calls)
            mark = " (cycle)" if is_cycle else " (listed elsewhere)" if is_elsewhere else ""
            lines.append(f"{'  ' * depth}{name} {for_line(path)}:{node.line}{mark}")
            if is_first:
                waiting.extend((below, depth + 1, key) for below in reversed(node.calls))
        self._truncated = self._truncated or bool(waiting)
        return rows, lines

    def _is_above(self, key: _Key, caller: _Key | None) -> bool:
        """Return true if a function is among those that led to its caller."""
        while caller is not None:
            if caller == key:
                return True
            caller = self._nodes[caller].caller
        return False


def _format_path(steps: Sequence[str]) -> str:
    first = {'"': "str", "?": "…"}.get(steps[0], steps[0])
    return for_line("".join([first, *steps[1:]]))


def _files_that_define(files: list[PythonFile], name: str) -> list[PythonFile]:
    """The files that may define a name; one beyond ASCII has several forms."""
    sought = re.compile(rb"\b(?:def|class)[\s\\]+%b\b" % re.escape(name.encode()))
    return [
        file
        for file in files
        if sought.search(file.data) or not (name.isascii() or file.data.isascii())
    ]
