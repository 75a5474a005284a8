"""`py_get_hierarchy`: the subclasses of a class, over the files of a folder (K37)."""

import builtins
import re
from collections import defaultdict
from operator import itemgetter
from typing import Annotated

import anyio
import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS, Bounds, tool
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
DEEPEST = 100
_MOST_NAMES = 16
"""Names that files are searched for; with more of them every file is read."""
_MOST_UNRESOLVED = 20
_LONGEST_BASES = 200
_CLASS = frozenset({"class"})
_BUILTINS = frozenset(dir(builtins))


@tool(
    READS,
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
    path: str,
    name: str,
    line: int | None = None,
    depth: Annotated[int, Bounds(1, DEEPEST)] = 1,
) -> Answer:
    """Lists the subclasses of a class, followed over files through imports and aliases.

    Also of a class that is defined elsewhere, such as `Exception` or `unittest.TestCase`. A class
    derived from several others is listed once, at its smallest depth.

    Args:
        place: the root folder
        path: the file or folder to look in, from the root folder; what `.gitignore` files exclude
            is left out
        name: the class, dotted as in `Outer.Inner`, or after its module as in `package.base.Class`
        line: a line of the class, where a file has several of that name
        depth: 1 for direct subclasses, 2 for theirs too, and so on, up to 100
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise PackError("bad_arguments", "`name` is not the name of a class")
    deadline = anyio.current_time() + SECONDS
    found = await read_python_files(place, path)
    search = _Search(place, found, deadline)
    return await search.subclasses(name, line, depth)


class _Search:
    """Reads files as they are needed, and finds who derives from whom."""

    def __init__(self, place: Workspace, found: PythonFiles, deadline: float) -> None:
        self._place = place
        self._found = found
        self._deadline = deadline
        self._files = {file.path: file for file in found.files}
        self._modules = Modules(self._files)
        self._searched: set[str] = set()
        self._below_builtin: frozenset[str] = frozenset()

    async def subclasses(self, name: str, line: int | None, depth: int) -> Answer:
        """The result of the tool."""
        self._below_builtin = _builtins_below(name.removeprefix("builtins."))
        await self._read_with({name.rpartition(".")[2], *self._below_builtin})
        roots = self._modules.definitions(name, _CLASS)
        while not roots and self._modules.missing:
            await self._read([self._files[path] for path in sorted(self._modules.missing)])
            roots = self._modules.definitions(name, _CLASS)
        if line is not None:
            roots = self._with_line(roots, line)
        frontier = set(roots)
        outside = name if not roots and line is None else ""
        levels: list[list[Ref]] = []
        known = set(frontier)
        count = 0
        while len(levels) < depth and (frontier or outside):
            below = await self._derived(frontier, outside)
            outside = ""
            below = [each for each in below if each not in known]
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
                await self._read_with({self._own_name(each) for each in below})
        if not roots and not levels and name not in _BUILTINS:
            message = f"there is no class `{name}` here, and no class is derived from one"
            raise PackError("no_match", self._found.qualified(message), name=name)
        return self._answer(name, roots, levels)

    def _own_name(self, ref: Ref) -> str:
        name: str = self._modules.scope(ref)["name"].rpartition(".")[2]
        return name

    def _with_line(self, roots: list[Ref], line: int) -> list[Ref]:
        """The innermost class of those with this line in it."""
        scopes = [(self._modules.scope(each), each) for each in roots]
        around = [pair for pair in scopes if pair[0]["start"] <= line <= pair[0]["end"]]
        if not around:
            message = f"line {line} is in no class of that name"
            raise PackError("no_match", message, lines=[scope["line"] for scope, _ in scopes])
        latest = max(scope["start"] for scope, _ in around)
        return [each for scope, each in around if scope["start"] == latest]

    async def _read_with(self, names: set[str]) -> None:
        """Read the files in which one of these names may be a base, also by another name."""
        while new := names - self._searched:
            self._searched |= new
            left = [file for path, file in self._files.items() if path not in self._modules.facts]
            left = await anyio.to_thread.run_sync(_mentioning, left, new)
            await self._read(left)
            names = self._aliases()

    def _aliases(self) -> set[str]:
        """Names under which the searched ones are also known."""
        found: set[str] = set()
        for facts in self._modules.facts.values():
            for scope in facts["scopes"]:
                for name, bindings in scope["binds"].items():
                    if name not in self._searched and any(map(self._is_searched, bindings)):
                        found.add(name)
        return found

    def _is_searched(self, binding: list[object]) -> bool:
        if binding[0] == "import":
            return binding[2] in self._searched
        if binding[0] == "value":
            steps = binding[1]
            assert isinstance(steps, list)
            return steps[-1].lstrip(".") in self._searched
        return False

    async def _read(self, files: list[PythonFile]) -> None:
        rows = await ask_child(
            self._place,
            "aish.packs.py.module_facts:facts",
            self._found,
            files,
            self._deadline,
            calls=False,
        )
        self._modules.add(files, rows)

    async def _derived(self, frontier: set[Ref], outside: str) -> list[Ref]:
        """The classes with a base among these, by path and line."""
        while True:
            below = await anyio.to_thread.run_sync(self._derived_now, frontier, outside)
            if not self._modules.missing:
                return below
            missing = [self._files[path] for path in sorted(self._modules.missing)]
            await self._read(missing)

    def _derived_now(self, frontier: set[Ref], outside: str) -> list[Ref]:
        below = []
        for path, facts in sorted(self._modules.facts.items()):
            for index, scope in enumerate(facts["scopes"]):
                # A base by a name that was not searched for is none of these.
                if scope["kind"] != "class" or not any(
                    steps[-1].lstrip(".") in self._searched for steps, _ in scope["bases"]
                ):
                    continue
                for base in self._modules.bases(Ref("class", path, index)):
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

    def _unresolved(self) -> list[str]:
        """Classes that may belong here: a base of theirs has the name, and cannot be followed."""
        found = []
        for path, facts in sorted(self._modules.facts.items()):
            for index, scope in enumerate(facts["scopes"]):
                if scope["kind"] != "class":
                    continue
                if not any(steps[-1].lstrip(".") in self._searched for steps, _ in scope["bases"]):
                    continue
                bases = self._modules.bases(Ref("class", path, index))
                for (steps, text), base in zip(scope["bases"], bases, strict=True):
                    if base is None and steps[-1].lstrip(".") in self._searched:
                        found.append(f"{path}:{scope['line']}: {scope['name']}({text})")
        return found

    def _answer(self, name: str, roots: list[Ref], levels: list[list[Ref]]) -> Answer:
        found: list[tuple[tuple[int, str, int], JsonValue]] = []
        lines: list[str] = []
        inside: dict[Ref | None, list[Ref]] = defaultdict(list)
        above = set(roots)
        for refs in levels:
            for ref in refs:
                bases = self._modules.bases(ref)
                inside[next((base for base in bases if base in above), None)].append(ref)
            above = set(refs)
        ahead = [(ref, 0) for ref in reversed(roots)] or [(ref, 1) for ref in inside[None][::-1]]
        while ahead:
            ref, depth = ahead.pop()
            ahead += [(below, depth + 1) for below in reversed(inside[ref])]
            lines.append(self._line(ref, depth))
            if depth:
                scope = self._modules.scope(ref)
                row: dict[str, JsonValue] = {
                    "path": ref.path,
                    "name": scope["name"],
                    "line": scope["line"],
                    "bases": [text for _, text in scope["bases"]],
                    "depth": depth,
                }
                found.append(((depth, ref.path, scope["line"]), row))
        truncated = bool(self._found.stopped)
        shown = fitting(lines)
        if shown < len(lines) or len(found) >= MOST_NODES:
            lines, found = lines[:shown], found[: max(shown - len(roots), 0)]
            truncated = True
        rows = [row for _, row in sorted(found, key=itemgetter(0))]
        if not levels:
            lines.append(f"no subclasses of `{name}` in {len(self._found.files)} files")
        lines += self._unresolved_lines()
        lines = lines[: fitting(lines)]
        notes = [self._found.note] if self._found.note else []
        if truncated and not self._found.stopped:
            notes.append(f"cut after {len(rows)} classes; ask with a smaller `path` or `depth`")
        if notes:
            lines.append(f"[{'truncated: true; ' if truncated else ''}{'; '.join(notes)}]")
        data: dict[str, JsonValue] = {
            "classes": rows,
            "files": len(self._found.files),
            "truncated": truncated,
        }
        return Answer("\n".join(lines), data)

    def _line(self, ref: Ref, depth: int) -> str:
        scope = self._modules.scope(ref)
        bases = ", ".join(text for _, text in scope["bases"])
        shown = f"({shorten(bases, _LONGEST_BASES)})" if bases else ""
        return for_line(f"{'  ' * depth}{ref.path}:{scope['line']}: class {scope['name']}{shown}")

    def _unresolved_lines(self) -> list[str]:
        found = self._unresolved()
        if not found:
            return []
        lines = [f"  {for_line(each)}" for each in found[:_MOST_UNRESOLVED]]
        if len(found) > _MOST_UNRESOLVED:
            lines.append(f"  and {len(found) - _MOST_UNRESOLVED} more")
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
    """Whether a class from elsewhere has this name, with its module or without."""
    name = name.removeprefix("builtins.")
    return base.kind in {"external", "builtin"} and f".{base.path}".endswith("." + name)


def _mentioning(files: list[PythonFile], names: set[str]) -> list[PythonFile]:
    """The files that may define one of these, derive from it, or give it another name.

    What follows tells: few files that mention `Exception` have it before a comma or a bracket that
    closes. A name beyond ASCII has several forms.
    """
    if len(names) > _MOST_NAMES or not all(map(str.isascii, names)):
        return files
    choices = b"|".join(re.escape(name.encode()) for name in sorted(names))
    # The line end of an import may be in a continued line, and a comment before a bracket.
    pattern = re.compile(
        rb"\b(?:class[ \t]+(?:%b)\b|(?:%b)[ \t]*(?:[],)[\r\n#;\\.]|as\b|\Z))" % (choices, choices)
    )
    return [file for file in files if not file.data.isascii() or pattern.search(file.data)]
