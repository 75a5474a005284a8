"""`py_rename`: another name for a symbol, in all files that use it.

What `semantic` usages find is renamed. The result is read again before anything is written: every
place of the new name has to mean the renamed symbol, or what it meant before.
"""

import builtins
import codecs
import keyword
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.normal_form import compatible_form
from aish.core.phrases import counted, first_lines
from aish.core.text import for_line
from aish.packs.framework.pack import CHANGES_BELOW, PARSE_CODES, WRITE_CODES, tool
from aish.packs.pack_error import PackError
from aish.packs.py.name_resolution import Binding, Facts, Ref, module_name
from aish.packs.py.python_files import (
    SECONDS,
    PythonFile,
    PythonFiles,
    SearchPath,
    ask_child,
    read_python_files,
)
from aish.packs.py.usages import MeaningSearch, files_with
from aish.packs.tool_results import Answer
from aish.packs.workspace.file_change import (
    FileChange,
    change_of_text,
    changes_answer,
    check_change,
    check_path_below,
    in_thread,
    read_existing,
    replace_files,
)
from aish.packs.workspace.file_text import check_fits, decode_text
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import lock_files

_MOST_LISTED = 20
_MOST_FILES = 1_000
_MOST_PLACES = 50_000
_LINE_END = re.compile(r"(\r\n|\r|\n)")

Place = tuple[str, int, int]
"""Path, line and column of a name."""


@tool(
    CHANGES_BELOW,
    codes=tuple(dict.fromkeys((*WRITE_CODES, *PARSE_CODES, "exists"))),
    result={
        "changes": "array",
        "diffs": "object",
        "uncertain": "array",
        "mentions": "integer",
        "truncated": "boolean",
    },
    rows={
        "changes": {"path": "string", "places": "integer", "sha256": "string"},
        "uncertain": {"path": "string", "line": "integer", "text": "string"},
    },
)
async def py_rename(
    place: Workspace,
    path: SearchPath,
    name: str,
    new_name: str,
    line: int | None = None,
    *,
    force: bool = False,
) -> Answer:
    """Renames a function, class, method or variable wherever Python files use it, or nowhere.

    Imports and `__all__` are changed too, and methods that override it; strings and comments are
    not. Nothing is changed if it is not certain what some uses mean, or if the new name would
    clash. Uses outside of `path` are not seen.

    Args:
        name: the dotted name, as in `Class.method`
        new_name: the new name, without dots
        line: a line of the definition, where the files have several
        force: whether it is renamed although some uses are uncertain; those stay as they are
    """
    own = name.rpartition(".")[2]
    _check_names(name, own, new_name)
    deadline = anyio.current_time() + SECONDS
    found = await read_python_files(place, path)
    before = _RenameSearch(place, found, deadline, name)
    await before.load()
    target = await before.find_target(line)
    mentions = await _mentions(place, found, deadline, own)
    edits = _edits(target, mentions)
    if len(target.certain) > _MOST_PLACES or len(edits) > _MOST_FILES:
        message = (
            f"`{name}` is used at {len(target.certain):,} places in {len(edits):,} files; "
            f"{_MOST_PLACES:,} and {_MOST_FILES:,} are the most"
        )
        raise PackError("too_large", message, limit=_MOST_PLACES)
    for file in edits:
        check_path_below(path, file)
    unread = found.note if found.stopped or found.skipped else ""
    if (target.uncertain or unread) and not force:
        raise _uncertain_error(name, target.uncertain, unread)
    async with lock_files(place, *edits):
        changes = await in_thread(lambda: _read_and_change(place, found, edits, own, new_name))
        shift = _make_shift(edits, len(new_name) - len(own))
        await _check_meaning(before, target, shift, changes, new_name)
        for change in changes:
            await check_change(place, change)
        await in_thread(lambda: replace_files(place, changes))
    listed = sum(map(len, edits.values())) - len({*target.certain})
    rest = sum(map(len, mentions.values())) - listed
    names = name, new_name
    return await in_thread(lambda: _rename_answer(names, target, edits, changes, rest))


def _check_names(name: str, own: str, new_name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise PackError("bad_arguments", "`name` is not a dotted Python name")
    if not new_name.isidentifier() or new_name != compatible_form(new_name):
        raise PackError("bad_arguments", "`new_name` is not a Python name without dots")
    if keyword.iskeyword(new_name):
        raise PackError("bad_arguments", f"`{new_name}` is a keyword of Python")
    if own == new_name:
        raise PackError("bad_arguments", "`new_name` is the name that it has")
    for one in (own, new_name):
        if one.startswith("__"):
            message = f"`{one}`: names with two underscores at their start mean something to Python"
            raise PackError("bad_arguments", message)


@frozen
class _Target:
    """A symbol: what binds it, the places that certainly mean it, and those that may.

    `relatives` are the classes that an object of it may have. `exports` are modules that bind it,
    whose `__all__` may list it.
    """

    bindings: frozenset[Binding]
    certain: tuple[Place, ...]
    uncertain: tuple[tuple[str, int, str], ...]
    relatives: frozenset[tuple[str, int]]
    exports: frozenset[str]


class _RenameSearch(MeaningSearch):
    """Finds the uses of a name that mean one definition, and those that may."""

    def __init__(self, place: Workspace, found: PythonFiles, deadline: float, name: str) -> None:
        super().__init__(place, found, deadline, name)
        self._until = time.monotonic() + 2 * SECONDS

    async def find_target(self, line: int | None) -> _Target:
        subject = await self.find_subject(line)
        return await self._repeat_until_read(lambda: self._make_target(subject))

    def for_name(self, name: str, files: Sequence[PythonFile] | None = None) -> "_RenameSearch":
        """The same search for another name, in files as they would be."""
        found = self.found if files is None else PythonFiles([*files])
        return _RenameSearch(self._place, found, self._deadline, name)

    async def meanings(self) -> dict[Place, Binding | None]:
        """Read the files that have the name; returns the meaning of each use."""
        await self.load()

        def find() -> dict[Place, Binding | None]:
            return {
                (path, use[3], use[4]): self.meaning(path, use) for path, use in self.all_uses()
            }

        return await self._repeat_until_read(find)

    async def list_clashes(self, target: _Target, name: str) -> list[tuple[str, int, str]]:
        return await self._repeat_until_read(lambda: list(self._clashes(target, name)))

    def _make_target(self, subject: Binding) -> _Target:
        bindings = self._with_overrides(subject)
        relatives = self._relatives(bindings)
        certain: list[Place] = []
        uncertain = [*self._foreign_bases(bindings)]
        for path, use in self.all_uses():
            self._check_time()
            meaning = self.meaning(path, use)
            if meaning in bindings:
                certain.append((path, use[3], use[4]))
            elif meaning is None and self._may_mean(path, use, subject, relatives):
                uncertain.append((path, use[3], use[5]))
        exports = frozenset(
            path
            for path in self.paths
            if subject.scope == 0
            and self._modules.find_member(Ref("module", path), subject.name) in bindings
        )
        return _Target(bindings, tuple(certain), tuple(uncertain), relatives, exports)

    def _is_class(self, binding: Binding) -> bool:
        return bool(self._modules.scopes(binding.path)[binding.scope]["kind"] == "class")

    def _with_overrides(self, subject: Binding) -> frozenset[Binding]:
        """The binding, and those of classes above and below its own."""
        if not self._is_class(subject):
            return frozenset({subject})
        binders = {
            (path, index)
            for path, index, scope in self._classes()
            if subject.name in scope["binds"] or subject.name in scope["attributes"]
        }
        related: dict[tuple[str, int], set[tuple[str, int]]] = {}
        for one in binders:
            for other in self._order(*one) & binders:
                related.setdefault(one, set()).add(other)
                related.setdefault(other, set()).add(one)
        found: set[tuple[str, int]] = set()
        waiting = [(subject.path, subject.scope)]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += related.get(one, ())
        return frozenset(Binding(*one, subject.name) for one in found)

    def _classes(self) -> Iterator[tuple[str, int, Facts]]:
        for path in self.paths:
            for index, scope in enumerate(self._modules.scopes(path)):
                if scope["kind"] == "class":
                    self._check_time()
                    yield path, index, scope

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            message = f"`{self.own}` has too many uses; name a smaller `path`"
            raise PackError("too_slow", message)

    def _order(self, path: str, index: int) -> set[tuple[str, int]]:
        order = self._modules.method_order(Ref("class", path, index))
        return {(each.path, each.scope) for each in order if each.kind == "class"}

    def _relatives(self, bindings: frozenset[Binding]) -> frozenset[tuple[str, int]]:
        """The classes that an object may have together with one that binds the symbol."""
        own = {(one.path, one.scope) for one in bindings if self._is_class(one)}
        found: set[tuple[str, int]] = set()
        for path, index, _ in self._classes() if own else ():
            order = self._order(path, index)
            if order & own:
                found |= order
        return frozenset(found)

    def _foreign_bases(self, bindings: frozenset[Binding]) -> Iterator[tuple[str, int, str]]:
        """Yield classes whose bases are elsewhere, and may have the name."""
        for binding in sorted(bindings):
            if not self._is_class(binding):
                continue
            for path, index in sorted(self._order(binding.path, binding.scope)):
                scope = self._modules.scopes(path)[index]
                for base in self._modules.find_bases(Ref("class", path, index)):
                    if may_have(base, binding.name):
                        yield path, scope["line"], f"class {scope['name']}: its base may have it"

    def _may_mean(
        self, path: str, use: Sequence[Any], subject: Binding, relatives: frozenset[tuple[str, int]]
    ) -> bool:
        """Return true if a use without a known meaning may mean the symbol."""
        kind, scope, steps, *_ = use
        home = self._modules.scopes(subject.path)[subject.scope]
        if kind == "keyword":
            binds = home["binds"].get(subject.name, ())
            is_parameter = home["kind"] != "module" and subject.name not in home["unnamed"]
            return is_parameter and any(row[0] != "scope" for row in binds)
        if kind == "early":
            both = self.both_meanings(path, scope, steps)
            return any(one and (one == subject or one[:2] in relatives) for one in both)
        is_name = kind == "name" and len(steps) > 1 and home["kind"] != "function"
        if not is_name and (kind != "pattern" or home["kind"] != "class"):
            return False
        owner = self._modules.resolve(path, scope, steps[:-1] if kind == "name" else steps)
        if home["kind"] == "module":
            # An object of unknown type is a module only where it is called like one.
            module = module_name(subject.path).rpartition(".")[2]
            return owner is None and steps[-2].lstrip(".") == module
        return owner is None or _may_pass_on(owner) or self._may_inherit(owner, relatives)

    def _may_inherit(self, owner: Ref, relatives: frozenset[tuple[str, int]]) -> bool:
        """Return true if an object of a class without the name may have it all the same."""
        if owner.kind not in {"class", "instance", "super"}:
            return False
        order = self._modules.method_order(Ref("class", owner.path, owner.scope))
        classes = [each for each in order if each.kind == "class"]
        return (owner.path, owner.scope) in relatives or any(
            base is None for each in classes for base in self._modules.find_bases(each)
        )

    def _clashes(self, target: _Target, name: str) -> Iterator[tuple[str, int, str]]:
        """Yield classes that have the new name, and may be those of an object that is renamed."""
        for path, index in sorted(target.relatives):
            scope = self._modules.scopes(path)[index]
            bases = self._modules.find_bases(Ref("class", path, index))
            is_known = name in scope["binds"] or name in scope["attributes"]
            if is_known or any(base and may_have(base, name) for base in bases):
                yield path, scope["line"], f"class {scope['name']} has the name"


def _may_pass_on(owner: Ref) -> bool:
    """Return true if a thing from elsewhere may be an object of ours: the result of a function."""
    if owner.kind not in {"external", "builtin"}:
        return False
    called, is_call, _ = owner.path.partition("()")
    last = called.rpartition(".")[2]
    is_class = last[:1].isupper() or isinstance(getattr(builtins, last, None), type)
    # The type of an object may be a class of ours.
    return bool(is_call) and (not is_class or last == "type")


def may_have(base: Ref | None, name: str) -> bool:
    """Return true if a base class from elsewhere may have an attribute of that name."""
    if base is None:
        return True
    if base.kind not in {"external", "builtin"}:
        return False
    module, _, own = base.path.rpartition(".")
    if module.partition(".")[0] in sys.stdlib_module_names or base.kind == "builtin":
        # Only what is loaded anyway: nothing is imported to look at it.
        loaded = builtins if base.kind == "builtin" else sys.modules.get(module)
        known = getattr(loaded, own, None)
        return known is None or (isinstance(known, type) and hasattr(known, name))
    return True


async def _mentions(
    place: Workspace, found: PythonFiles, deadline: float, name: str
) -> dict[str, list[tuple[int, int, bool]]]:
    """Line and column of the name in strings and comments, and whether `__all__` lists it there."""
    files = files_with(found.files, name, "identifier")
    call = "aish.packs.py.code_text:mentions"
    rows = await ask_child(place, call, found, files, deadline, name=name)
    return {file.path: places for file, places in rows if places}


def _edits(
    target: _Target, mentions: Mapping[str, Sequence[tuple[int, int, bool]]]
) -> dict[str, list[tuple[int, int]]]:
    """Line and column of each name to be replaced, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path, line, column in target.certain:
        found.setdefault(path, []).append((line, column))
    for path in target.exports & mentions.keys():
        for line, column, is_listed in mentions[path]:
            if is_listed:
                found.setdefault(path, []).append((line, column))
    return {path: sorted({*places}) for path, places in sorted(found.items())}


def _read_and_change(
    place: Workspace,
    found: PythonFiles,
    edits: Mapping[str, Sequence[tuple[int, int]]],
    own: str,
    new_name: str,
) -> list[FileChange]:
    known = {file.path: file.data for file in found.files}
    return [
        _change(place, path, known[path], places, own, new_name) for path, places in edits.items()
    ]


def _change(
    place: Workspace,
    path: str,
    known: bytes,
    places: Sequence[tuple[int, int]],
    own: str,
    new_name: str,
) -> FileChange:
    original = read_existing(place, path, None)
    text, spelling = decode_text(original.content, path)
    if original.content != known and not spelling.codec.startswith("utf-16"):
        raise PackError("changed", f"`{path}` was changed meanwhile; call it again", path=path)
    check_fits(spelling, new_name, path)
    # Lines, and between them their ends.
    lines = _LINE_END.split(text)
    for line, columns in groupby(places, key=itemgetter(0)):
        here = lines[2 * line - 2]
        pieces: list[str] = []
        end = 0
        for _, column in columns:
            if not here.startswith(own, column - 1):
                message = f"`{path}` spells `{own}` in other letters in line {line}"
                raise PackError("unsupported", message, path=path, line=line)
            pieces += [here[end : column - 1], new_name]
            end = column - 1 + len(own)
        lines[2 * line - 2] = "".join([*pieces, here[end:]])
    return change_of_text(path, original, text, "".join(lines), spelling)


@frozen
class _Shift:
    """Finds places again after a rename: those behind the name in a line are elsewhere then."""

    columns: Mapping[tuple[str, int], Sequence[int]]
    longer: int

    def place(self, path: str, line: int, column: int) -> Place:
        earlier = bisect_left(self.columns.get((path, line), ()), column)
        return path, line, column + self.longer * earlier


def _make_shift(edits: Mapping[str, Sequence[tuple[int, int]]], longer: int) -> _Shift:
    columns: dict[tuple[str, int], list[int]] = {}
    for path, places in edits.items():
        for line, column in places:
            columns.setdefault((path, line), []).append(column)
    return _Shift(columns, longer)


async def _check_meaning(
    before: _RenameSearch,
    target: _Target,
    shift: _Shift,
    changes: Sequence[FileChange],
    new_name: str,
) -> None:
    """Check that the new name means the symbol where it was renamed, and nowhere else."""
    clashes = await before.list_clashes(target, new_name)
    known = await before.for_name(new_name).meanings()
    texts = {change.path: change.after for change in changes}
    files = [
        PythonFile(file.path, codecs.BOM_UTF8 + texts[file.path].encode("utf-8", "replace"))
        if file.path in texts
        else file
        for file in before.found.files
    ]
    meanings = await before.for_name(new_name, files).meanings()
    renamed = set(starmap(shift.place, target.certain))
    bindings = {binding._replace(name=new_name) for binding in target.bindings}
    wrong = {place for place, meaning in meanings.items() if meaning in bindings} ^ renamed
    for old_place, meaning in known.items():
        if meanings.get(place := shift.place(*old_place)) != meaning:
            wrong.add(place)
    lines = {change.path: change.before.split("\n") for change in changes}
    for path, line, _ in sorted(wrong):
        rows = lines.get(path, [])
        clashes.append((path, line, rows[line - 1].strip() if line <= len(rows) else ""))
    if clashes:
        listed = _list_rows(clashes)
        message = (
            f"nothing was renamed: `{new_name}` would clash or mean something else at\n{listed}"
        )
        raise PackError("exists", message, places=_json_rows(clashes[:_MOST_LISTED]))


_Row = tuple[str, int, str]
"""Path, line and text of a line."""


def _list_rows(rows: Sequence[_Row]) -> str:
    lines = [f"{for_line(path)}:{line}: {for_line(text)}" for path, line, text in rows]
    return "\n".join(first_lines(lines, _MOST_LISTED))


def _json_rows(rows: Sequence[_Row]) -> list[JsonValue]:
    return [
        {"path": for_line(path), "line": line, "text": for_line(text)} for path, line, text in rows
    ]


def _uncertain_error(name: str, rows: Sequence[_Row], note: str) -> PackError:
    parts = [f"{counted(len(rows), 'place')} may mean it:\n{_list_rows(rows)}\n"] if rows else []
    parts += [f"not every file was read ({note})\n"] if note else []
    message = (
        f"nothing was renamed, because not all uses of `{name}` are certain: {'; '.join(parts)}"
        "force=true renames the certain uses, and leaves the others as they are"
    )
    return PackError("ambiguous", message, places=_json_rows(rows[:_MOST_LISTED]))


def _rename_answer(
    names: tuple[str, str],
    target: _Target,
    edits: Mapping[str, Sequence[object]],
    changes: Sequence[FileChange],
    mentions: int,
) -> Answer:
    places = sum(map(len, edits.values()))
    old, new = map(for_line, names)
    where = f"{counted(places, 'place')} in {counted(len(changes), 'file')}"
    notes = []
    if mentions:
        notes.append(
            f"{counted(mentions, 'place')} in strings and comments still have the old name"
        )
    if target.uncertain:
        notes.append(f"left as they are:\n{_list_rows(target.uncertain)}")
    rows: list[JsonValue] = [
        {"path": one.path, "places": len(edits[one.path]), "sha256": one.sha256} for one in changes
    ]
    data: dict[str, JsonValue] = {
        "changes": rows,
        "uncertain": _json_rows(target.uncertain[:_MOST_LISTED]),
        "mentions": mentions,
    }
    return changes_answer(f"renamed `{old}` to `{new}` at {where}\n", changes, data, notes)
