"""What has the same meaning as a definition, by jedi: the mode `semantic` (K36).

Runs in the child that parses. jedi sees the files that the parent sent, at paths that exist
nowhere, and the standard library: it opens no file of the project, reads no configuration of it,
imports no module of it and starts no interpreter. An audit hook holds it to that.
"""

import errno
import importlib.machinery
import itertools
import os
import re
import sys
import sysconfig
import time
import types
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jedi
import parso.cache
from jedi import settings
from jedi.api.environment import InterpreterEnvironment
from jedi.file_io import FileIO, FolderIO, KnownContentFileIO
from jedi.inference import references as jedi_references
from jedi.inference import sys_path as jedi_sys_path

from aish.packs.pack_error import PackError
from aish.packs.py.code_text import Lines, decoded
from aish.packs.py.module_facts import facts

_MOST_FOLDERS = 50
_READ_FROM = tuple(
    f"{folder}/"
    for folder in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        str(Path(jedi.__file__).parent),
        str(Path(parso.__file__).parent),
    }
)
_INSTALLED = ("/site-packages", "/dist-packages")
"""Where the libraries of aish are: no part of any project."""
_LIBRARY = [
    path for path in sys.path if f"{path}/".startswith(_READ_FROM) and not path.endswith(_INSTALLED)
]
_FORBIDDEN = ("subprocess.", "os.exec", "os.system", "os.fork", "os.posix_spawn", "os.spawn")
_FORBIDDEN_TOO = ("socket.", "ctypes.", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.")
_calls = itertools.count()


def references(
    *sources: bytes,
    paths: list[str],
    name: str,
    line: int | None,
    limit: int,
    most_seconds: float,
) -> dict[str, Any]:
    """Path, line, column and text of each use of the first definition of a name.

    Raises:
        PackError: there is no such definition, or none was found in time.
    """
    deadline = time.monotonic() + most_seconds
    # Another one for each call: jedi remembers what was at a path.
    root = f"/aish-{os.urandom(8).hex()}-{next(_calls)}"
    texts = {f"{root}/{path}": decoded(one) for path, one in zip(paths, sources, strict=True)}
    with _only_these(texts, root, deadline) as left_out:
        script, place = _definition(texts, root, name, line, deadline)
        found = script.get_references(*place, include_builtins=False)
        rows = _rows(found, texts, root)
    return {"hits": rows[:limit], "more": len(rows) > limit, "in_time": not left_out}


def _rows(found: list[Any], texts: dict[str, str], root: str) -> list[list[Any]]:
    """The places of names, in order; only those in the files that were sent."""
    rows = set()
    lines: dict[str, Lines] = {}
    for each in found:
        path = str(each.module_path)
        if path not in texts or each.line is None:
            continue
        if path not in lines:
            lines[path] = Lines(texts[path])
        offset = lines[path].start(each.line) + each.column
        rows.add((path.removeprefix(root + "/"), *lines[path].hit(offset)))
    return [list(row) for row in sorted(rows)]


def _definition(
    texts: dict[str, str], root: str, name: str, line: int | None, deadline: float
) -> tuple[Any, tuple[int, int]]:
    """The file with the first definition of a name, and where that is in it.

    Raises:
        PackError: there is none, or it is not found by the deadline.
    """
    own = name.rpartition(".")[2]
    # Facts take time: those of the files that may define the name, and of these one at a time.
    known = cache(lambda path: _facts(texts[path], deadline, name))
    defining = _paths(texts, rf"\b(?:def|class)\s+{re.escape(own)}\b")
    project = jedi.Project(
        root,
        load_unsafe_extensions=False,
        smart_sys_path=False,
        sys_path=[*_import_folders(texts, root), *_LIBRARY],
    )
    for matches in (_is_whole, _ends_with):
        for path in defining:
            module = path.removeprefix(root).rpartition(".")[0].removesuffix("/__init__")
            found = [
                scope
                for scope in known(path)[1:]
                if matches(scope["name"], name, module.replace("/", "."))
            ]
            if line is not None:
                # The innermost of those around the line.
                found = [each for each in found if each["start"] <= line <= each["end"]][-1:]
            place = _header(texts[path], found[0]["line"], own) if found else None
            if place is not None:
                return _script(path, texts[path], project), place
    for path in _paths(texts, rf"\b{re.escape(own)}\b"):
        if any(map(_assigns, known(path), itertools.repeat(own))):
            script = _script(path, texts[path], project)
            place = _assignment(script, name, own, line)
            if place is not None:
                return script, place
    message = f"there is no definition of `{name}` here"
    raise PackError("no_match", message, name=name)


def _paths(texts: dict[str, str], pattern: str) -> list[str]:
    """The paths of the files in which something is found, in order."""
    sought = re.compile(pattern)
    return [path for path, text in texts.items() if sought.search(text)]


def _facts(text: str, deadline: float, name: str) -> list[dict[str, Any]]:
    if time.monotonic() > deadline:
        message = f"looking for the definition of `{name}` took too long; name a smaller `path`"
        raise PackError("too_slow", message, name=name)
    (found,) = facts(text.encode("utf-8", "surrogatepass"), calls=True)
    scopes: list[dict[str, Any]] = found["scopes"]
    return scopes


def _is_whole(defined: str, name: str, module: str) -> bool:
    """Whether this is the name of a definition, or with its module before it."""
    is_longer = len(name) > len(defined)
    return defined == name or (is_longer and f"{module}.{defined}".endswith("." + name))


def _ends_with(defined: str, name: str, module: str) -> bool:
    """Whether a definition within another one has this name."""
    del module
    return defined.endswith("." + name)


def _header(text: str, number: int, own: str) -> tuple[int, int] | None:
    """Where the name is in the first line of a `def` or `class`."""
    line = text.split("\n")[number - 1]
    found = re.search(rf"\b(?:def|class)\s+({re.escape(own)})\b", line)
    return (number, found.start(1)) if found else None


def _assigns(scope: dict[str, Any], own: str) -> bool:
    bindings = scope["binds"].get(own, ())
    return own in scope["attributes"] or any(
        binding[0] not in {"import", "scope"} for binding in bindings
    )


def _assignment(script: Any, name: str, own: str, line: int | None) -> tuple[int, int] | None:
    """Where a variable or attribute is assigned first."""
    for each in script.get_names(all_scopes=True, definitions=True):
        # An import brings a name from elsewhere: it defines nothing.
        if each.name != own or each.get_line_code().lstrip().startswith(("import ", "from ")):
            continue
        if line is not None and each.line != line:
            continue
        if own == name or f".{each.full_name}".endswith("." + name):
            return each.line, each.column
    return None


def _script(path: str, text: str, project: jedi.Project) -> Any:
    return jedi.Script(code=text, path=path, project=project, environment=_Library())


class _Library(InterpreterEnvironment):  # type: ignore[misc]  # jedi has no types
    """The standard library of the Python that runs, and no interpreter started."""

    @staticmethod
    def get_sys_path() -> list[str]:
        """Where compiled modules may come from."""
        return list(_LIBRARY)


def _import_folders(texts: dict[str, str], root: str) -> list[str]:
    """The folders that programs import from: those with packages in them, and of scripts."""
    folders = {path.rpartition("/")[0] for path in texts}
    packages = {path.rpartition("/")[0] for path in texts if "/__init__.py" in path}
    found = {root}
    for folder in folders:
        above = folder
        while above in packages and above != root:
            above = above.rpartition("/")[0]
        found.add(above)
    return sorted(found, key=lambda each: (each.count("/"), each))[:_MOST_FOLDERS]


@contextmanager
def _only_these(texts: dict[str, str], root: str, deadline: float) -> Generator[set[str]]:
    """While this lasts jedi sees these texts as files, and of the disk only the library.

    Yields a set that gets the paths for which the time was not enough.
    """
    left_out: set[str] = set()
    finder = _Finder(texts, root)
    patches = [
        (FileIO, "read", _reading(texts, FileIO.read)),
        (FileIO, "get_last_modified", lambda _: None),
        (KnownContentFileIO, "get_last_modified", lambda _: None),
        (FolderIO, "list", lambda self: sorted(finder.names(str(self.path)))),
        (FolderIO, "walk", lambda _: iter(())),
        (
            jedi_references,
            "get_module_contexts_containing_name",
            _contexts(texts, deadline, left_out),
        ),
        (
            jedi_references,
            "_find_names",
            _finding(jedi_references._find_names, deadline, left_out),  # ruff: ignore[private-member-access] - the version is pinned, and a test covers it
        ),
        (jedi_sys_path, "check_sys_path_modifications", lambda _: []),
        (parso.cache, "_load_from_file_system", lambda *_, **__: None),
        (parso.cache, "_save_to_file_system", lambda *_, **__: None),
        (settings, "auto_import_modules", []),
        (settings, "dynamic_params_for_other_modules", False),
    ]
    before = [(owner, key, getattr(owner, key)) for owner, key, _ in patches]
    for owner, key, value in patches:
        setattr(owner, key, value)
    sys.meta_path.insert(0, finder)
    _guard.start()
    try:
        yield left_out
    finally:
        _guard.stop()
        sys.meta_path.remove(finder)
        for owner, key, value in before:
            setattr(owner, key, value)
        for known in parso.cache.parser_cache.values():
            for path in [path for path in known if str(path).startswith(root)]:
                del known[path]


def _reading(texts: dict[str, str], read: Any) -> Any:
    def reading(self: Any) -> Any:
        path = str(self.path)
        if path in texts:
            return texts[path]
        if not path.startswith(_READ_FROM):
            raise FileNotFoundError(path)
        return read(self)

    return reading


def _contexts(texts: dict[str, str], deadline: float, left_out: set[str]) -> Any:
    """What jedi looks in for a name: here it has limits of ours, and no shortest name."""

    def contexts(
        inference_state: Any, module_contexts: list[Any], name: str, limit_reduction: int = 1
    ) -> Iterator[Any]:
        del limit_reduction
        done = set()
        for context in module_contexts:
            if not context.is_compiled():
                done.add(str(context.py__file__()))
                yield context
        sought = re.compile(rf"\b{re.escape(name)}\b")
        for path, text in texts.items():
            if path in done or not sought.search(text):
                continue
            if time.monotonic() > deadline:
                left_out.add(path)
                return
            try:
                context = jedi_references._check_fs(  # ruff: ignore[private-member-access] - as above
                    inference_state, KnownContentFileIO(path, text), sought
                )
                if context is None:
                    continue
                # Deep trees are too much for it: found out here, where a file can be left out.
                context.tree_node.get_used_names()
            except RecursionError:
                continue
            yield context

    return contexts


def _finding(find: Any, deadline: float, left_out: set[str]) -> Any:
    """What a name means in a module, as jedi says; after the deadline nothing."""

    def finding(module_context: Any, tree_name: Any) -> Any:
        if time.monotonic() > deadline:
            left_out.add(str(module_context.py__file__()))
            return set()
        try:
            return find(module_context, tree_name)
        except RecursionError:
            return set()

    return finding


class _Finder:
    """Finds modules among the texts, as an entry of `sys.meta_path` that jedi asks."""

    def __init__(self, texts: dict[str, str], root: str) -> None:
        self._texts = texts
        self._root = root
        self._below: dict[str, set[str]] = {}
        for path in texts:
            folder = path
            while folder != root:
                folder, _, name = folder.rpartition("/")
                self._below.setdefault(folder, set()).add(name)

    def names(self, folder: str) -> set[str]:
        """The names in a folder."""
        return self._below.get(folder, set())

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A module for jedi to read; nothing that could be loaded."""
        del target
        if path is None and name in sys.builtin_module_names:
            return None
        own = name.rpartition(".")[2]
        for entry in sys.path if path is None else path:
            folder = str(entry)
            names = self.names(folder)
            for file, is_package in ((f"{own}/__init__", True), (own, False)):
                for suffix in (".py", ".pyw"):
                    where = f"{folder}/{file}{suffix}"
                    if where in self._texts:
                        loader: Any = _Source(where, self._texts[where], is_package=is_package)
                        return importlib.machinery.ModuleSpec(name, loader, origin=where)
            if own in names and self.names(f"{folder}/{own}"):
                spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
                locations: Any = types.SimpleNamespace(_path=[f"{folder}/{own}"])
                spec.submodule_search_locations = locations
                return spec
        return None


class _Source:
    """What jedi asks a loader of a module; it loads nothing."""

    def __init__(self, path: str, text: str, *, is_package: bool) -> None:
        self._path = path
        self._text = text
        self._is_package = is_package

    def get_source(self, name: str) -> str:
        """The text of the module."""
        del name
        return self._text

    def get_filename(self, name: str) -> str:
        """Where it would be."""
        del name
        return self._path

    def is_package(self, name: str) -> bool:
        """Whether it is an `__init__.py`."""
        del name
        return self._is_package

    @staticmethod
    def create_module(spec: Any) -> Any:
        """Refuse to be imported."""
        raise ImportError(f"{spec.name} is only read")


class _Guard:
    """An audit hook that cannot be removed, and is asleep between calls."""

    def __init__(self) -> None:
        self._is_awake = False
        self._is_added = False

    def start(self) -> None:
        """Refuse what jedi has no business with, from now on."""
        if not self._is_added:
            sys.addaudithook(self._check)
            self._is_added = True
        self._is_awake = True

    def stop(self) -> None:
        """Allow everything again."""
        self._is_awake = False

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_awake:
            return
        if event in {"open", "os.listdir", "os.scandir"}:
            path = arguments[0]
            if isinstance(path, bytes):
                path = os.fsdecode(path)
            writes = (
                event == "open"
                and isinstance(arguments[1], str)
                and arguments[1] not in {"r", "rb"}
            )
            if isinstance(path, (str, Path)) and (writes or not str(path).startswith(_READ_FROM)):
                # As if it were not there, which jedi and the finders of modules can deal with.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        elif event == "import":
            first = arguments[0].partition(".")[0]
            if first not in sys.stdlib_module_names and first not in {"jedi", "parso"}:
                raise ImportError(f"{first} is not imported here")
        elif event.startswith(_FORBIDDEN) or event.startswith(_FORBIDDEN_TOO):
            raise PermissionError(f"{event} is not done here")


_guard = _Guard()
