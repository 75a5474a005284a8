"""`py_find_usages`: where a name is used, in a file or below a folder."""

import builtins
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.normal_form import compatible_form
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS_ANYWHERE, Bounds, tool
from aish.packs.pack_error import PackError
from aish.packs.py.name_resolution import Binding, ModuleSearch, module_name
from aish.packs.py.python_files import (
    SECONDS,
    PythonFile,
    PythonFiles,
    SearchPath,
    ask_child,
    batches,
    count_lines_that_fit,
    read_python_files,
)
from aish.packs.tool_results import Answer
from aish.packs.workspace.workspace import Workspace

MOST_HITS = 5_000
_HIT = {"path": "string", "line": "integer", "column": "integer", "text": "string"}


@tool(
    READS_ANYWHERE,
    codes=(*PATH_CODES, *PARSE_CODES),
    result={"hits": "array", "files": "integer", "skipped": "integer", "truncated": "boolean"},
    rows={"hits": _HIT},
)
async def py_find_usages(
    place: Workspace,
    path: SearchPath,
    name: str,
    line: int | None = None,
    mode: Literal["identifier", "text", "semantic"] = "identifier",
    limit: Annotated[int, Bounds(1, MOST_HITS)] = 200,
) -> Answer:
    """Finds where a name is used in Python code: each place with path, line, column and the line.

    `identifier` finds the name, or dotted names such as `os.path`, wherever it is a token: not in
    strings and comments, but in the fields of f-strings. `text` finds an exact text anywhere.
    `semantic` finds what means the same as the first definition of the name: it follows imports
    and types, and leaves out other things of that name.

    Args:
        name: the name; for `semantic` dotted as in `Class.method`
        line: for `semantic` a line of the definition, where the file has several
        mode: how to look
        limit: the most places to return, up to 5,000
    """
    if mode == "text":
        if not name:
            raise PackError("bad_arguments", "`name` is empty")
    elif not all(part.isidentifier() for part in name.split(".")):
        message = "`name` is not a Python name; the mode `text` looks for any text"
        raise PackError("bad_arguments", message)
    deadline = anyio.current_time() + SECONDS
    files = await read_python_files(place, path)
    if mode == "semantic":
        hits = await MeaningSearch(place, files, deadline, name).hits(line)
        hits, is_cut = hits[:limit], len(hits) > limit or bool(files.stopped)
    else:
        hits, is_cut = await _literal(place, files, name, mode, limit, deadline)
    return _answer(files, hits, name, is_cut=is_cut)


Hits = list[tuple[str, list[int | str]]]


async def _literal(
    place: Workspace, files: PythonFiles, name: str, mode: str, limit: int, deadline: float
) -> tuple[Hits, bool]:
    """The places of a name or a text in order, and whether there may be more."""
    candidates = await anyio.to_thread.run_sync(files_with, files.files, name, mode)
    hits: Hits = []
    for batch in batches(candidates):
        rows = await ask_child(
            place,
            "aish.packs.py.code_text:usages",
            files,
            batch,
            deadline,
            name=name,
            mode=mode,
            # One more tells whether there are more.
            limit=limit + 1 - len(hits),
        )
        for file, places in rows:
            hits.extend((file.path, hit) for hit in places)
        if len(hits) > limit:
            return hits[:limit], True
        if files.stopped:
            break
    return hits, bool(files.stopped)


def files_with(files: list[PythonFile], name: str, mode: str) -> list[PythonFile]:
    """The files whose bytes have the name: nearly all others need not be parsed."""
    if not name.isascii():
        return [file for file in files if not file.data.isascii()]
    parts = [name.encode()] if mode == "text" else [part.encode() for part in name.split(".")]
    if b"\n" in parts[0]:
        return files
    return [
        file
        for file in files
        if all(part in file.data for part in parts)
        or (mode != "text" and not file.data.isascii() and _has_another_form(file.data, name))
    ]


def _has_another_form(data: bytes, name: str) -> bool:
    """Tell if the name is there in letters that Python takes for the same, such as wide ones."""
    return name.rpartition(".")[2] in compatible_form(data.decode("utf-8", "ignore"))


class MeaningSearch(ModuleSearch):
    """Finds the uses of a name that mean its first definition."""

    def __init__(self, place: Workspace, found: PythonFiles, deadline: float, name: str) -> None:
        super().__init__(place, found, deadline, calls=True)
        self.own = name.rpartition(".")[2]
        self._name = name
        self._uses: dict[str, list[Any]] = {}

    async def load(self) -> None:
        """Read the files that have the name."""
        files = await anyio.to_thread.run_sync(files_with, self.found.files, self.own, "identifier")
        call = "aish.packs.py.name_uses:uses"
        rows = await ask_child(self._place, call, self.found, files, self._deadline, name=self.own)
        self._modules.add(files, rows)
        self._uses = dict(sorted((file.path, facts["uses"]) for file, facts in rows))

    @property
    def paths(self) -> Iterable[str]:
        return self._uses

    def all_uses(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each place of the name, as `name_uses` has it, and its file."""
        return ((path, use) for path, uses in self._uses.items() for use in uses)

    async def find_subject(self, line: int | None) -> Binding:
        """The first definition of the name, or the one around a line."""
        subject = await self._repeat_until_read(lambda: self._search_subject(line))
        if subject is None:
            message = self.found.with_note(f"there is no definition of `{self._name}` here")
            raise PackError("no_match", message, name=self._name)
        return subject

    async def hits(self, line: int | None) -> Hits:
        await self.load()
        subject = await self.find_subject(line)

        def find() -> Hits:
            uses = self.all_uses()
            return [(path, use[3:]) for path, use in uses if self.meaning(path, use) == subject]

        return await self._repeat_until_read(find)

    def _search_subject(self, line: int | None) -> Binding | None:
        """Find the first definition of the name, else its first assignment."""
        for matches in (_is_whole, _ends_with):
            for path in self._uses:
                found = [
                    scope
                    for scope in self._modules.scopes(path)[1:]
                    if matches(scope["name"], self._name, path)
                ]
                if line is not None:
                    # The innermost of those around the line.
                    found = [each for each in found if each["start"] <= line <= each["end"]][-1:]
                if found:
                    return Binding(path, found[0]["up"], self.own)
        for path, uses in self._uses.items():
            for use in uses:
                binding = self.meaning(path, use) if line in {None, use[3]} else None
                if binding is not None and binding.path == path and self._is_variable(binding):
                    return binding
        return None

    def _is_variable(self, binding: Binding) -> bool:
        """Tell if a binding is an assignment, and has the dotted name that is looked for."""
        scope = self._modules.scopes(binding.path)[binding.scope]
        kinds = {kind for kind, *_ in scope["binds"].get(binding.name, ())}
        if binding.name not in scope["attributes"] and kinds <= {"import", "scope"}:
            return False
        dotted = ".".join(filter(None, (module_name(binding.path), scope["name"], binding.name)))
        return f".{dotted}".endswith(f".{self._name}")

    def meaning(self, path: str, use: Sequence[Any]) -> Binding | None:
        """Find what binds the name at one of its places; `None` if that is not known."""
        kind, scope, steps, *_ = use
        if kind == "name":
            return self._modules.find_binding(path, scope, steps)
        if kind == "keyword":
            return self._modules.find_parameter(path, scope, steps, self.own)
        if kind == "early":
            found, around = self.both_meanings(path, scope, steps)
            is_known = found == around or (around is None and self.own not in dir(builtins))
            return found if is_known else None
        if kind == "pattern":
            return self._modules.find_pattern(path, scope, steps, self.own)
        module = self._modules.find_module(steps[0], path)
        return None if module is None else self._modules.find_member(module, self.own)

    def both_meanings(
        self, path: str, scope: int, steps: Sequence[str]
    ) -> tuple[Binding | None, Binding | None]:
        """The binding of a name in the body of a class, and its binding around the class."""
        found = self._modules.find_binding(path, scope, steps)
        scopes = self._modules.scopes(path)
        while scope < len(scopes) and scopes[scope]["kind"] == "class":
            scope = scopes[scope]["up"]
        return found, self._modules.find_binding(path, scope, steps)


def _is_whole(defined: str, name: str, path: str) -> bool:
    """Tell if this is the name of a definition, or with its module before it."""
    is_longer = len(name) > len(defined)
    return defined == name or (is_longer and f".{module_name(path)}.{defined}".endswith("." + name))


def _ends_with(defined: str, name: str, path: str) -> bool:
    """Tell if a definition within another one has this name."""
    del path
    return defined.endswith("." + name)


def _answer(files: PythonFiles, hits: Hits, name: str, *, is_cut: bool) -> Answer:
    lines = [f"{for_line(path)}:{line}:{column}: {text}" for path, (line, column, text) in hits]
    count = count_lines_that_fit(lines)
    is_cut = is_cut or count < len(lines)
    rows: list[JsonValue] = [
        {"path": path, "line": line, "column": column, "text": text}
        for path, (line, column, text) in hits[:count]
    ]
    lines = lines[:count] or [f"no usages of `{for_line(name)}` in {len(files.files)} files"]
    cut = f"cut after {count} places; name a smaller `path`, or a larger `limit`" if is_cut else ""
    lines += files.last_line("name a smaller `path`" if files.stopped else cut, truncated=is_cut)
    data: dict[str, JsonValue] = {
        "hits": rows,
        "files": len(files.files),
        "skipped": files.skipped,
        "truncated": is_cut,
    }
    return Answer("\n".join(lines), data)
