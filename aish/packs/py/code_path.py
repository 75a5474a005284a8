"""`py_derive_code_path`: which functions a function calls, over several files (K37)."""

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import anyio
import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS, Bounds, Older, tool
from aish.packs.pack_error import PackError
from aish.packs.py.name_resolution import Modules, Ref
from aish.packs.py.python_files import (
    SECONDS,
    PythonFile,
    PythonFiles,
    ask_child,
    fitting,
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
    READS,
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
    place: Workspace, target: str, path: str = ".", depth: Annotated[int, Bounds(1, DEEPEST)] = 5
) -> Answer:
    """Shows which functions a function calls, which these call, and so on, over several files.

    Each row comes after the function that calls it, one deeper; a function's own calls are listed
    where it is first reached. `cycle` marks a call of a function that is being called already.
    Followed are imports, aliases, inheritance, `self`, `super()`, local instances and annotations.
    `unresolved` lists the other calls, those of libraries among them; builtins are left out.

    Args:
        place: the root folder
        target: the function, dotted as in `Class.method`, or after its module as in `app.main.run`
        path: the file or folder to look in, from the root folder; what `.gitignore` files exclude
            is left out
        depth: how many calls deep to follow, up to 100
    """
    if not all(part.isidentifier() for part in target.split(".")):
        raise PackError("bad_arguments", "`target` is not the name of a function")
    deadline = anyio.current_time() + SECONDS
    found = await read_python_files(place, path)
    return await _Search(place, found, deadline).calls_of(target, depth)


_Key = tuple[str, str]
"""A function by its file and its dotted name: what is defined twice there counts as one."""


@frozen
class _Unresolved:
    name: str
    path: str
    line: int


@slotted
class _Node:
    """A function that was reached: its definitions, and what they call in order."""

    refs: list[Ref]
    line: int
    depth: int
    caller: _Key | None
    calls: list[_Key] = field(default_factory=list)


class _Search:
    """Reads files as they are needed, and follows calls breadth first."""

    def __init__(self, place: Workspace, found: PythonFiles, deadline: float) -> None:
        self._place = place
        self._found = found
        self._deadline = deadline
        self._files = {file.path: file for file in found.files}
        self._modules = Modules(self._files)
        self._nodes: dict[_Key, _Node] = {}
        self._unresolved: dict[tuple[str, str], _Unresolved] = {}
        self._truncated = False

    async def calls_of(self, target: str, depth: int) -> Answer:
        """The result of the tool."""
        root = await self._root(target)
        self._nodes[root] = self._node(root, 0, None)
        level = [root]
        for deep in range(1, depth + 1):
            calls = await self._calls(level)
            below: list[_Key] = []
            for caller, called in calls:
                node = self._nodes[caller]
                for key in called:
                    if key not in self._nodes:
                        if len(self._nodes) >= MOST_NODES:
                            self._truncated = True
                            continue
                        self._nodes[key] = self._node(key, deep, caller)
                        below.append(key)
                    node.calls.append(key)
            level = below
            if not level:
                break
        return self._answer(root)

    async def _root(self, target: str) -> _Key:
        own = target.rpartition(".")[2]
        await self._read(await anyio.to_thread.run_sync(_defining, self._found.files, own))
        refs = self._modules.definitions(target, _CALLABLE)
        while not refs and self._modules.missing:
            await self._read_missing()
            refs = self._modules.definitions(target, _CALLABLE)
        called = await self._resolved(refs)
        keys = list(dict.fromkeys(map(self._key, called)))
        if not keys:
            message = f"there is no function `{target}` here"
            raise PackError("no_match", self._found.qualified(message), target=target)
        if len(keys) > 1:
            named: list[JsonValue] = [
                f"{path}:{self._line(key)}: {key[1]}"
                for key in keys[:_MOST_NAMED]
                for path in key[:1]
            ]
            more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
            shown = "; ".join(for_line(str(each)) for each in named)
            message = (
                f"there are {len(keys)} functions `{target}`: {shown}{more}; "
                "name one with its class or module, or a smaller `path`"
            )
            raise PackError("ambiguous", message, candidates=named)
        return keys[0]

    async def _resolved(self, refs: list[Ref]) -> list[Ref]:
        """The functions that calls of these run: of a class its `__init__`."""
        while True:
            called = [self._callable(ref) or ref for ref in refs]
            if not self._modules.missing:
                return called
            await self._read_missing()

    async def _read_missing(self) -> None:
        await self._read([self._files[path] for path in sorted(self._modules.missing)])

    async def _read(self, files: Sequence[PythonFile]) -> None:
        rows = await ask_child(
            self._place,
            "aish.packs.py.module_facts:facts",
            self._found,
            files,
            self._deadline,
            calls=True,
        )
        self._modules.add(files, rows)

    def _key(self, ref: Ref) -> _Key:
        return ref.path, self._modules.scope(ref)["name"]

    def _line(self, key: _Key) -> int:
        line: int = self._modules.scope(self._twins(key)[0])["line"]
        return line

    def _twins(self, key: _Key) -> list[Ref]:
        """All definitions of one name in one file: overloads, setters, branches."""
        path, name = key
        return [
            Ref(scope["kind"], path, index)
            for index, scope in enumerate(self._modules.scopes(path))
            if scope["name"] == name and scope["kind"] in _CALLABLE
        ]

    def _node(self, key: _Key, depth: int, caller: _Key | None) -> _Node:
        refs = self._twins(key)
        return _Node(refs, self._modules.scope(refs[0])["line"], depth, caller)

    async def _calls(self, level: list[_Key]) -> list[tuple[_Key, list[_Key]]]:
        """What each of these functions calls, without repeats."""
        while True:
            calls, unresolved = await anyio.to_thread.run_sync(self._calls_now, level)
            if not self._modules.missing:
                # Each name once a file.
                for one in unresolved:
                    self._unresolved.setdefault((one.path, one.name), one)
                return calls
            await self._read_missing()

    def _calls_now(
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
                    found = self._modules.resolve(ref.path, ref.scope, steps)
                    target = self._callable(found)
                    if target is not None:
                        called[self._key(target)] = None
                    elif found is None or found.kind != "builtin":
                        unresolved.append(_Unresolved(_shown(steps), ref.path, line))
            calls.append((key, list(called)))
        return calls, unresolved

    def _callable(self, ref: Ref | None) -> Ref | None:
        """The function that a call runs: that of a class is `__init__`, or itself without one."""
        if ref is None or ref.kind == "function":
            return ref
        if ref.kind == "class":
            made = self._modules.attribute(Ref("instance", ref.path, ref.scope), "__init__")
            return made if made is not None and made.kind == "function" else ref
        if ref.kind == "instance":
            made = self._modules.attribute(ref, "__call__")
            return made if made is not None and made.kind == "function" else None
        return None

    def _answer(self, root: _Key) -> Answer:
        self._truncated = self._truncated or bool(self._found.stopped)
        rows, lines = self._tree(root)
        unresolved = sorted(self._unresolved.values(), key=lambda one: (one.path, one.line))
        if unresolved:
            lines.append("not resolved:")
            lines += [f"  {each.name} {for_line(each.path)}:{each.line}" for each in unresolved]
        shown = min(fitting(lines), len(rows) + 1 + MOST_UNRESOLVED)
        if shown < len(lines):
            self._truncated = True
            unresolved = unresolved[: max(shown - len(rows) - 1, 0)]
            rows, lines = rows[:shown], lines[:shown]
        notes = [self._found.note] if self._found.note else []
        if self._truncated and not self._found.stopped:
            notes.append(f"cut after {len(rows)} functions; ask with a smaller `depth`")
        if notes:
            mark = "truncated: true; " if self._truncated else ""
            lines.append(f"[{mark}{'; '.join(notes)}]")
        others: list[JsonValue] = [
            {"name": each.name, "path": each.path, "line": each.line} for each in unresolved
        ]
        data: dict[str, JsonValue] = {
            "nodes": rows,
            "unresolved": others,
            "truncated": self._truncated,
        }
        return Answer("\n".join(lines), data)

    def _tree(self, root: _Key) -> tuple[list[JsonValue], list[str]]:
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
        """Whether a function is among those through which its caller was reached."""
        while caller is not None:
            if caller == key:
                return True
            caller = self._nodes[caller].caller
        return False


def _shown(steps: Sequence[str]) -> str:
    first = {'"': "str", "?": "…"}.get(steps[0], steps[0])
    return for_line("".join([first, *steps[1:]]))


def _defining(files: list[PythonFile], name: str) -> list[PythonFile]:
    """The files that may define a name; one beyond ASCII has several forms."""
    sought = re.compile(rb"\b(?:def|class)[\s\\]+%b\b" % re.escape(name.encode()))
    return [
        file
        for file in files
        if sought.search(file.data) or not (name.isascii() or file.data.isascii())
    ]
