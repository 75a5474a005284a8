"""`py_get_hierarchy`: the subclasses of a class, over the files of a folder."""

import builtins
import re
from collections import defaultdict
from functools import partial
from operator import itemgetter
from typing import Annotated

import anyio
import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS_ANYWHERE, Bounds, tool
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
DEEPEST = 100
_MOST_UNRESOLVED = 20
_LONGEST_BASES = 200
_CLASS = frozenset({"class"})
_BUILTINS = frozenset(dir(builtins))


@tool(
    READS_ANYWHERE,
    codes=(*PATH_CODES, *PARSE_CODES),
    result={"classes": "array", "files": "integer", "truncated": "boolean"},
    rows={
        "classes": {
            "path": "string",
            "name": "string",
            "line": "integer",
            "bases": "array",
            "depth": "integer",
        }
    },
    older_parameters={"class_name": "name"},
)
async def py_get_hierarchy(
    place: Workspace,
    path: SearchPath,
    name: str,
    line: int | None = None,
    depth: Annotated[int, Bounds(1, DEEPEST)] = 1,
) -> Answer:
    """Lists the subclasses of a class, followed over files through imports and aliases.

    Also of a class that is defined elsewhere, such as `Exception` or `unittest.TestCase`. A class
    derived from several others is listed once, at its smallest depth.

    Args:
        name: the class, dotted as in `Outer.Inner`, or after its module as in `package.base.Class`
        line: a line of the class, where a file has several of that name
        depth: 1 for direct subclasses, 2 for theirs too, and so on, up to 100
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise PackError("bad_arguments", "`name` is not the name of a class")
    deadline = anyio.current_time() + SECONDS
    files = await read_python_files(place, path)
    search = _HierarchySearch(place, files, deadline)
    return await search.subclasses(name, line, depth)


class _HierarchySearch(ModuleSearch):
    """Finds who derives from whom."""

    def __init__(self, place: Workspace, files: PythonFiles, deadline: float) -> None:
        super().__init__(place, files, deadline, calls=False)
        self._searched: set[str] = set()
        self._mentions: dict[str, set[bytes]] = {}
        self._below_builtin: frozenset[str] = frozenset()

    async def subclasses(self, name: str, line: int | None, depth: int) -> Answer:
        self._below_builtin = _builtins_below(name.removeprefix("builtins."))
        await self._read_files_naming({name.rpartition(".")[2], *self._below_builtin})
        roots = await self._find_definitions(name, _CLASS)
        if line is not None:
            roots = self._innermost_at(roots, line)
        frontier = set(roots)
        outside = name if not roots and line is None else ""
        levels: list[list[Ref]] = []
        known = set(frontier)
        count = 0
        while len(levels) < depth and (frontier or outside):
            below = await self._repeat_until_read(partial(self._find_subclasses, frontier, outside))
            outside = ""
            below = [ref for ref in below if ref not in known]
            if not below:
                break
            if count + len(below) > MOST_NODES:
                below = below[: MOST_NODES - count]
            levels.append(below)
            count += len(below)
            known.update(below)
            if count >= MOST_NODES:
                break
            frontier = set(below)
            if len(levels) < depth:
                await self._read_files_naming(
                    {self._modules.scope(ref)["name"].rpartition(".")[2] for ref in below}
                )
        if not roots and not levels and name not in _BUILTINS:
            message = f"there is no class `{name}` here, and no class is derived from one"
            raise PackError("no_match", self.found.with_note(message), name=name)
        return self._answer(name, roots, levels)

    def _innermost_at(self, roots: list[Ref], line: int) -> list[Ref]:
        """The innermost class of those with this line in it."""
        scopes = [(self._modules.scope(ref), ref) for ref in roots]
        around = [pair for pair in scopes if pair[0]["start"] <= line <= pair[0]["end"]]
        if not around:
            message = f"line {line} is in no class of that name"
            raise PackError("no_match", message, lines=[scope["line"] for scope, _ in scopes])
        latest = max(scope["start"] for scope, _ in around)
        return [ref for scope, ref in around if scope["start"] == latest]

    async def _read_files_naming(self, names: set[str]) -> None:
        """Read the files in which one of these names may be a base, also by another name."""
        while new := names - self._searched:
            self._searched |= new
            await self._read(await anyio.to_thread.run_sync(self._unread_files_naming, new))
            names = self._aliases()

    def _unread_files_naming(self, names: set[str]) -> list[PythonFile]:
        """The unread files that may define one of these, derive from it, or rename it."""
        left = [file for path, file in self._files.items() if path not in self._modules.facts]
        if not all(map(str.isascii, names)):
            return left
        words = set(map(str.encode, names))
        # A name beyond ASCII has several forms.
        self._mentions = self._mentions or {
            file.path: _mentions_of(file.data) for file in left if file.data.isascii()
        }
        return [file for file in left if not words.isdisjoint(self._mentions.get(file.path, words))]

    def _aliases(self) -> set[str]:
        """Other names of the searched classes."""
        names: set[str] = set()
        for facts in self._modules.facts.values():
            for scope in facts["scopes"]:
                for name, bindings in scope["binds"].items():
                    if name not in self._searched and any(map(self._renames_searched, bindings)):
                        names.add(name)
        return names

    def _renames_searched(self, binding: list[object]) -> bool:
        if binding[0] == "import":
            return binding[2] in self._searched
        if binding[0] == "value":
            steps = binding[1]
            assert isinstance(steps, list)
            return steps[-1].lstrip(".") in self._searched
        return False

    def _find_subclasses(self, frontier: set[Ref], outside: str) -> list[Ref]:
        """The classes with a base among these, by path and line."""
        below = []
        for path, facts in sorted(self._modules.facts.items()):
            for index, scope in enumerate(facts["scopes"]):
                # A base by a name that was not searched for is none of these.
                if scope["kind"] != "class" or not any(
                    steps[-1].lstrip(".") in self._searched for steps, _ in scope["bases"]
                ):
                    continue
                for base in self._modules.find_bases(Ref("class", path, index)):
                    if base is None:
                        continue
                    if base in frontier or (
                        outside
                        and (
                            _is_named(base, outside)
                            or (base.kind == "builtin" and base.path in self._below_builtin)
                        )
                    ):
                        below.append(Ref("class", path, index))
                        break
        return below

    def _list_possible_subclasses(self) -> list[str]:
        """Classes that may belong here: a base of theirs has the name, and cannot be followed."""
        lines = []
        for path, facts in sorted(self._modules.facts.items()):
            for index, scope in enumerate(facts["scopes"]):
                if scope["kind"] != "class":
                    continue
                if not any(steps[-1].lstrip(".") in self._searched for steps, _ in scope["bases"]):
                    continue
                bases = self._modules.find_bases(Ref("class", path, index))
                for (steps, text), base in zip(scope["bases"], bases, strict=True):
                    if base is None and steps[-1].lstrip(".") in self._searched:
                        lines.append(f"{path}:{scope['line']}: {scope['name']}({text})")
        return lines

    def _answer(self, name: str, roots: list[Ref], levels: list[list[Ref]]) -> Answer:
        nodes: list[tuple[tuple[int, str, int], JsonValue]] = []
        lines: list[str] = []
        inside: dict[Ref | None, list[Ref]] = defaultdict(list)
        above = set(roots)
        for refs in levels:
            for ref in refs:
                bases = self._modules.find_bases(ref)
                inside[next((base for base in bases if base in above), None)].append(ref)
            above = set(refs)
        ahead = [(ref, 0) for ref in reversed(roots)] or [(ref, 1) for ref in inside[None][::-1]]
        while ahead:
            ref, depth = ahead.pop()
            ahead += [(below, depth + 1) for below in reversed(inside[ref])]
            lines.append(self._format_class(ref, depth))
            if depth:
                scope = self._modules.scope(ref)
                row: dict[str, JsonValue] = {
                    "path": ref.path,
                    "name": scope["name"],
                    "line": scope["line"],
                    "bases": [text for _, text in scope["bases"]],
                    "depth": depth,
                }
                nodes.append(((depth, ref.path, scope["line"]), row))
        truncated = bool(self.found.stopped)
        count = count_lines_that_fit(lines)
        if count < len(lines) or len(nodes) >= MOST_NODES:
            lines, nodes = lines[:count], nodes[: max(count - len(roots), 0)]
            truncated = True
        rows = [row for _, row in sorted(nodes, key=itemgetter(0))]
        if not levels:
            lines.append(f"no subclasses of `{name}` in {len(self.found.files)} files")
        lines += self._format_possible()
        lines = lines[: count_lines_that_fit(lines)]
        hint = ""
        if truncated and not self.found.stopped:
            hint = f"cut after {len(rows)} classes; ask with a smaller `path` or `depth`"
        lines += self.found.last_line(hint, truncated=truncated)
        files = len(self.found.files)
        return Answer("\n".join(lines), {"classes": rows, "files": files, "truncated": truncated})

    def _format_class(self, ref: Ref, depth: int) -> str:
        scope = self._modules.scope(ref)
        bases = ", ".join(text for _, text in scope["bases"])
        suffix = f"({shorten(bases, _LONGEST_BASES)})" if bases else ""
        return for_line(f"{'  ' * depth}{ref.path}:{scope['line']}: class {scope['name']}{suffix}")

    def _format_possible(self) -> list[str]:
        classes = self._list_possible_subclasses()
        if not classes:
            return []
        lines = [f"  {for_line(line)}" for line in classes[:_MOST_UNRESOLVED]]
        if len(classes) > _MOST_UNRESOLVED:
            lines.append(f"  and {len(classes) - _MOST_UNRESOLVED} more")
        return ["not resolved:", *lines]


def _builtins_below(name: str) -> frozenset[str]:
    """The built-in classes that are derived from a built-in one."""
    top = getattr(builtins, name, None)
    if not isinstance(top, type):
        return frozenset()
    below = {
        key for key, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, top)
    }
    return frozenset(below - {name})


def _is_named(base: Ref, name: str) -> bool:
    """Return true if an outside class has this name, with its module or without."""
    name = name.removeprefix("builtins.")
    return base.kind in {"external", "builtin"} and f".{base.path}".endswith("." + name)


_WORD = re.compile(rb"\w+")
_CLASS_NAMES = re.compile(rb"class[\s\\]++(\w++)")
# A header or a list without an end goes on: more names are found, and none is missed.
_BASES = re.compile(rb"class[\s\\]++\w++\s*+(?:\[[^(]*+)?\((.*?)(?:\)[\s\\]*+:|\Z)", re.DOTALL)
_IMPORTS = re.compile(rb"import[\s\\]*+(\((?:[^)#]++|#[^\n]*+)*+|(?:[^\n\\;]++|\\[\s\S])*+)")
_ASSIGNED = re.compile(rb"=[\s\\]*+(?:\w++[\s\\]*+\.[\s\\]*+)*+(\w++)[ \t]*+(?:[;#\r\n\\]|\Z)")


def _mentions_of(data: bytes) -> set[bytes]:
    """The names of the classes of a file and of their bases, and what it gives another name."""
    names = {*_CLASS_NAMES.findall(data), *_ASSIGNED.findall(data)}
    for part in _BASES.findall(data):
        names.update(_WORD.findall(part))
    for part in _IMPORTS.findall(data):
        if b"as" in part:
            names.update(_WORD.findall(part))
    return names
