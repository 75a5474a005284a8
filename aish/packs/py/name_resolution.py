"""Follows names over the modules below a folder, by what `module_facts` found in them.

Imports, aliases, inheritance, attributes of `self`, local instances and annotations are followed.
`Modules` reads nothing: a module whose facts are needed is put into `missing`, and `ModuleSearch`
asks again when it has them. What cannot be followed is `None`.
"""

import builtins
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import anyio.to_thread

from aish.packs.py.python_files import PythonFile, PythonFiles, ask_child
from aish.packs.workspace.workspace import Workspace

Result = TypeVar("Result")

_MAX_DEPTH = 40
_MAX_BASES = 200
_SUFFIXES = (".py", ".pyi", ".pyw")
_BUILTINS = frozenset(dir(builtins))

Facts = dict[str, Any]
_EMPTY: Facts = {"scopes": [], "stars": []}


class Ref(NamedTuple):
    """The meaning of a name: a definition by its file and number, or a name from elsewhere.

    `instance` is one of a class; `external` something that is not below the folder, by its name;
    `super` is what follows a class in the order of its bases.
    """

    kind: Literal[
        "module", "folder", "class", "function", "instance", "super", "external", "builtin"
    ]
    path: str
    scope: int = 0


class Binding(NamedTuple):
    """The place that binds a name: the file, the number of the scope there, and the name."""

    path: str
    scope: int
    name: str


class Modules:
    def __init__(self, paths: Iterable[str]) -> None:
        self.facts: dict[str, Facts] = {}
        self.missing: set[str] = set()
        self._paths = set(paths)
        self._folders = {""}
        for path in self._paths:
            folder = path.rpartition("/")[0]
            while folder not in self._folders:
                self._folders.add(folder)
                folder = folder.rpartition("/")[0]
        packages = {
            path.rpartition("/")[0]
            for path in self._paths
            if path.rpartition("/")[2] in {"__init__.py", "__init__.pyi"}
        }
        # The folders that a program may import from: those that are not packages themselves.
        self._importable: dict[str, list[str]] = {}
        for path in sorted(self._paths | self._folders - {""}):
            folder, _, name = path.rpartition("/")
            if folder not in packages:
                self._importable.setdefault(_stem(name), []).append(folder)
        self._resolved: dict[tuple[Any, ...], Ref | None] = {}
        self._orders: dict[tuple[str, int], list[Ref]] = {}
        self._bindings: dict[tuple[Ref, str], Binding | None] = {}

    def add(self, files: Iterable[PythonFile], found: Iterable[tuple[PythonFile, Any]]) -> None:
        """Take the facts of some files; what was found without them is forgotten.

        A file that could not be read is one with nothing in it.
        """
        self.facts.update((file.path, _EMPTY) for file in files)
        self.facts.update((file.path, facts) for file, facts in found)
        self.missing.clear()
        self._resolved.clear()
        self._orders.clear()
        self._bindings.clear()

    def scopes(self, path: str) -> Sequence[Facts]:
        """The scopes of a module; none if it was not read yet."""
        if path not in self.facts:
            self.missing.add(path)
        facts = self.facts.get(path)
        return facts["scopes"] if facts is not None else ()

    def scope(self, ref: Ref) -> Facts:
        """The scope of a class, an instance of it, or a function."""
        return self.scopes(ref.path)[ref.scope]

    def find_definitions(self, name: str, kinds: frozenset[str]) -> list[Ref]:
        """Find a dotted name, after the name of its module or without; else names ending so."""
        exact: list[Ref] = []
        others: list[Ref] = []
        for path, facts in self.facts.items():
            module = module_name(path)
            for index, scope in enumerate(facts["scopes"]):
                if scope["kind"] not in kinds:
                    continue
                if scope["name"] == name:
                    exact.append(Ref(scope["kind"], path, index))
                    continue
                if not f".{module}.{scope['name']}".endswith("." + name):
                    continue
                # Longer than the definition's own name, or a part of it.
                is_whole = len(name) > len(scope["name"])
                (exact if is_whole else others).append(Ref(scope["kind"], path, index))
        return exact or self._find_imports(name, kinds) or others

    def _find_imports(self, name: str, kinds: frozenset[str]) -> list[Ref]:
        """Find imports of a module that the name begins with, such as all of `from ._api`."""
        module, _, own = name.rpartition(".")
        paths = [path for path in self._paths if f".{module_name(path)}".endswith(f".{module}")]
        refs = [
            self.resolve_attribute(Ref("module", path), own) for path in sorted(paths) if module
        ]
        return [ref for ref in dict.fromkeys(refs) if ref is not None and ref.kind in kinds]

    def resolve(self, path: str, scope: int, steps: Sequence[str], depth: int = 0) -> Ref | None:
        """Resolve an expression in a scope."""
        if depth > _MAX_DEPTH:
            return None
        first, *rest = steps
        ref: Ref | None
        if first == '"':
            ref = Ref("builtin", "str")
        elif first == "?":
            return None
        elif first == "super" and rest[:1] == ["()"]:
            ref, rest = self._resolve_super(path, scope), rest[1:]
        else:
            ref = self.resolve_name(path, scope, first, depth)
        for step in rest:
            if ref is None or step == "[]":
                return None
            ref = (
                self._resolve_call(ref, depth)
                if step == "()"
                else self.resolve_attribute(ref, step[1:], depth)
            )
        return ref

    def find_binding(self, path: str, scope: int, steps: Sequence[str]) -> Binding | None:
        """Find the binding of the last name of an expression in a scope."""
        *before, last = steps
        if before:
            owner = self.resolve(path, scope, before)
            return None if owner is None else self.find_member(owner, last.removeprefix("."))
        scopes = self.scopes(path)
        index = scope
        while 0 < index < len(scopes):
            here = scopes[index]
            is_seen = here["kind"] != "class" or index == scope
            if is_seen and last in here["binds"] and last not in here["outer"]:
                return self._follow_imports(Binding(path, index, last))
            index = here["up"]
        return self.find_member(Ref("module", path), last)

    def find_parameter(
        self, path: str, scope: int, steps: Sequence[str], name: str
    ) -> Binding | None:
        """Find the parameter that a call in a scope gives by its name."""
        called = self.resolve(path, scope, steps)
        if called is not None and called.kind == "class":
            method = self.resolve_attribute(Ref("instance", called.path, called.scope), "__init__")
            if method is None or method.kind != "function":
                # A data class: its fields are the parameters.
                return self.find_member(called, name)
            called = method
        if called is None or called.kind != "function":
            return None
        facts = self.scope(called)
        known = name in facts["params"] and name not in facts["unnamed"]
        return Binding(called.path, called.scope, name) if known else None

    def find_pattern(
        self, path: str, scope: int, steps: Sequence[str], name: str
    ) -> Binding | None:
        """Find the attribute that a pattern of `case` in a scope looks at."""
        matched = self.resolve(path, scope, steps)
        is_class = matched is not None and matched.kind == "class"
        return self.find_member(matched, name) if matched is not None and is_class else None

    def find_member(self, owner: Ref, name: str, depth: int = 0) -> Binding | None:
        """Find the binding of an attribute of a module or a class."""
        key = (owner, name)
        if key not in self._bindings and depth <= _MAX_DEPTH:
            # Also what a circle of imports comes to.
            self._bindings[key] = None
            self._bindings[key] = self._search_member(owner, name, depth)
        return self._bindings.get(key)

    def _search_member(self, owner: Ref, name: str, depth: int) -> Binding | None:
        if owner.kind in {"class", "instance", "super"}:
            order = self.method_order(Ref("class", owner.path, owner.scope))
            for base in order[1:] if owner.kind == "super" else order:
                if base.kind == "class":
                    scope = self.scope(base)
                    if name in scope["binds"] or name in scope["attributes"]:
                        return Binding(base.path, base.scope, name)
        elif owner.kind == "module" and (scopes := self.scopes(owner.path)):
            if name in scopes[0]["binds"]:
                return self._follow_imports(Binding(owner.path, 0, name), depth)
            for star in self.facts[owner.path]["stars"]:
                module = self.find_module(star, owner.path)
                if module is None or (name.startswith("_") and not self._lists_exports(module)):
                    continue
                if ref := self.find_member(module, name, depth + 1):
                    return ref
        return None

    def _lists_exports(self, module: Ref) -> bool:
        """Return true if a module says itself what a star takes of it, private names too."""
        scopes = self.scopes(module.path) if module.kind == "module" else ()
        return bool(scopes) and "__all__" in scopes[0]["binds"]

    def _follow_imports(self, binding: Binding, depth: int = 0) -> Binding:
        """Follow imports from a binding to the first one."""
        scope = self.scopes(binding.path)[binding.scope]
        for kind, *rest in reversed(scope["binds"][binding.name]):
            module = (
                self.find_module(rest[0], binding.path) if kind == "import" and rest[1] else None
            )
            if module is not None and (ref := self.find_member(module, rest[1], depth + 1)):
                return ref
        return binding

    def resolve_name(self, path: str, scope: int, name: str, depth: int = 0) -> Ref | None:
        """Resolve a name in a scope, or around it, or a builtin."""
        key = ("name", path, scope, name)
        if key not in self._resolved:
            # Also what a circle of names comes to.
            self._resolved[key] = None
            self._resolved[key] = self._resolve_name_uncached(path, scope, name, depth)
        return self._resolved[key]

    def _resolve_name_uncached(self, path: str, scope: int, name: str, depth: int) -> Ref | None:
        scopes = self.scopes(path)
        index = scope
        while 0 < index < len(scopes):
            here = scopes[index]
            # The names of a class are not seen in the functions within it.
            if here["kind"] != "class" or index == scope:
                if (owner := self._implicit_argument(path, index, name)) is not None:
                    return owner
                if name in here["binds"]:
                    return self._follow_last(here["binds"][name], path, index, depth)
            index = here["up"]
        ref, is_bound = self._resolve_in_module(path, name, depth)
        if not is_bound and name in _BUILTINS:
            return Ref("builtin", name)
        return ref

    def _implicit_argument(self, path: str, index: int, name: str) -> Ref | None:
        """The class or an instance of it, for the first parameter of a method."""
        scopes = self.scopes(path)
        here = scopes[index]
        if here["kind"] != "function" or here["params"][:1] != [name]:
            return None
        if scopes[here["up"]]["kind"] != "class" or "staticmethod" in here["marks"]:
            return None
        is_class = "classmethod" in here["marks"] or here["name"].endswith(".__new__")
        return Ref("class" if is_class else "instance", path, here["up"])

    def _resolve_super(self, path: str, scope: int) -> Ref | None:
        scopes = self.scopes(path)
        index = scope
        while 0 < index < len(scopes):
            up = scopes[index]["up"]
            if scopes[index]["kind"] == "function" and scopes[up]["kind"] == "class":
                return Ref("super", path, up)
            index = up
        return None

    def _follow_last(
        self, bindings: Sequence[Sequence[Any]], path: str, scope: int, depth: int
    ) -> Ref | None:
        """The last binding that can be followed, a definition or import rather than a value."""
        other: Ref | None = None
        for binding in reversed(bindings):
            ref = self._follow_binding(binding, path, scope, depth + 1)
            if ref is not None and ref.kind not in {"external", "builtin"}:
                return ref
            other = other or ref
        return other

    def _follow_binding(
        self, binding: Sequence[Any], path: str, scope: int, depth: int
    ) -> Ref | None:
        match binding[0]:
            case "scope":
                return Ref(self.scopes(path)[binding[1]]["kind"], path, binding[1])
            case "import":
                module = self.find_module(binding[1], path)
                if module is None:
                    return Ref("external", ".".join(filter(None, binding[1:3])))
                return self.resolve_attribute(module, binding[2], depth) if binding[2] else module
            case "value":
                return self.resolve(path, scope, binding[1], depth)
            case "type":
                ref = self.resolve(path, scope, binding[1], depth)
                return self._resolve_call(ref, depth) if ref and ref.kind != "function" else None
        return None

    def resolve_attribute(self, ref: Ref, name: str, depth: int = 0) -> Ref | None:
        if depth > _MAX_DEPTH:
            return None
        key = ("attribute", ref, name)
        if key not in self._resolved:
            self._resolved[key] = None
            self._resolved[key] = self._resolve_attribute_uncached(ref, name, depth)
        return self._resolved[key]

    def _resolve_attribute_uncached(self, ref: Ref, name: str, depth: int) -> Ref | None:
        match ref.kind:
            case "module":
                member, is_bound = self._resolve_in_module(ref.path, name, depth)
                if not is_bound and _stem(ref.path.rpartition("/")[2]) == "__init__":
                    return self._find_child(ref.path.rpartition("/")[0], name)
                return member
            case "folder":
                return self._find_child(ref.path, name)
            case "external" | "builtin":
                return Ref(ref.kind, f"{ref.path}.{name}")
            case "class" | "instance" | "super":
                return self._resolve_member(ref, name, depth)
        return None

    def _resolve_member(self, ref: Ref, name: str, depth: int) -> Ref | None:
        """A method or attribute of a class, its own or inherited."""
        order = self.method_order(Ref("class", ref.path, ref.scope), depth)
        for base in order[1:] if ref.kind == "super" else order:
            if base.kind != "class":
                continue
            scope = self.scope(base)
            if name in scope["binds"]:
                member = self._follow_last(scope["binds"][name], base.path, base.scope, depth)
                if member and member.kind == "function" and ref.kind != "class":
                    marks = self.scope(member)["marks"]
                    if "property" in marks or "cached_property" in marks:
                        return self._resolve_call(member, depth)
                if member is not None:
                    return member
            # Their last part is the method that assigns them.
            for binding in reversed(scope["attributes"].get(name, ())):
                member = self._follow_binding(binding[:-1], base.path, binding[-1], depth + 1)
                if member is not None:
                    return member
        return None

    def _resolve_call(self, ref: Ref, depth: int) -> Ref | None:
        if ref.kind == "class":
            return Ref("instance", ref.path, ref.scope)
        if ref.kind == "function":
            scope = self.scope(ref)
            if scope["returns"]:
                return self._follow_binding(
                    ["type", scope["returns"]], ref.path, scope["up"], depth + 1
                )
            return None
        if ref.kind in {"external", "builtin"}:
            return Ref(ref.kind, f"{ref.path}()")
        return None

    def find_bases(self, ref: Ref, depth: int = 0) -> list[Ref | None]:
        """The classes that a class is derived from, `None` for each that cannot be followed."""
        scope = self.scope(ref)
        refs = [self.resolve(ref.path, scope["up"], steps, depth) for steps, _ in scope["bases"]]
        return [
            base if base and base.kind in {"class", "external", "builtin"} else None
            for base in refs
        ]

    def method_order(self, ref: Ref, depth: int = 0) -> list[Ref]:
        """A class and its bases, in the order in which members are looked up."""
        key = (ref.path, ref.scope)
        if key in self._orders:
            return self._orders[key]
        self._orders[key] = [ref]
        waiting = [ref]
        refs: list[Ref] = []
        known: set[Ref] = set()
        while waiting and len(refs) < _MAX_BASES:
            here = waiting.pop()
            is_first = here not in known
            refs.append(here)
            known.add(here)
            if here.kind == "class" and is_first:
                waiting.extend(
                    base for base in reversed(self.find_bases(here, depth + 1)) if base is not None
                )
        # A class that several others share comes after all of these.
        order = list(dict.fromkeys(reversed(refs)))
        order.remove(ref)
        order.append(ref)
        self._orders[key] = order[::-1]
        return self._orders[key]

    def _resolve_in_module(self, path: str, name: str, depth: int) -> tuple[Ref | None, bool]:
        """Resolve a name in a module; tell if it is bound at all."""
        scopes = self.scopes(path)
        if not scopes:
            return None, False
        binds = scopes[0]["binds"]
        if name in binds:
            return self._follow_last(binds[name], path, 0, depth), True
        if name.startswith("_") or depth > _MAX_DEPTH:
            return None, False
        for star in self.facts[path]["stars"]:
            module = self.find_module(star, path)
            if module is not None and module.kind == "module" and module.path != path:
                key = ("star", module.path, name)
                if key not in self._resolved:
                    self._resolved[key] = None
                    self._resolved[key] = self.resolve_attribute(module, name, depth + 1)
                if self._resolved[key] is not None:
                    return self._resolved[key], True
        return None, False

    def find_module(self, module: str, importer: str) -> Ref | None:
        """The module that an import in a file means, if it is below the folder."""
        folder = importer.rpartition("/")[0]
        level = len(module) - len(module.lstrip("."))
        names = [name for name in module.lstrip(".").split(".") if name]
        if level:
            for _ in range(level - 1):
                if not folder:
                    return None
                folder = folder.rpartition("/")[0]
            return self._find_module_in(folder, names)
        candidates = self._importable.get(names[0], []) if names else []
        around = [candidate for candidate in candidates if _contains(candidate, folder)]
        for candidate in sorted(around, key=len, reverse=True):
            if (ref := self._find_module_in(candidate, names)) is not None:
                return ref
        if names and names[0] in sys.stdlib_module_names:
            return None
        for candidate in candidates:
            if (ref := self._find_module_in(candidate, names)) is not None:
                return ref
        return None

    def _find_module_in(self, folder: str, names: Sequence[str]) -> Ref | None:
        """The module below a folder, or the folder itself as a package."""
        ref: Ref | None = self._find_package(folder)
        for name in names:
            if ref is None or (
                ref.kind == "module" and _stem(ref.path.rpartition("/")[2]) != "__init__"
            ):
                return None
            above = ref.path if ref.kind == "folder" else ref.path.rpartition("/")[0]
            ref = self._find_child(above, name)
        return ref

    def _find_package(self, folder: str) -> Ref | None:
        for suffix in _SUFFIXES[:2]:
            path = _join(folder, "__init__" + suffix)
            if path in self._paths:
                return Ref("module", path)
        return Ref("folder", folder) if folder in self._folders else None

    def _find_child(self, folder: str, name: str) -> Ref | None:
        below = _join(folder, name)
        package = self._find_package(below)
        if package is not None and package.kind == "module":
            return package
        for suffix in _SUFFIXES:
            if below + suffix in self._paths:
                return Ref("module", below + suffix)
        return package


def _stem(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _contains(folder: str, other: str) -> bool:
    return not folder or other == folder or other.startswith(folder + "/")


def module_name(path: str) -> str:
    return _stem(path).removesuffix("/__init__").replace("/", ".")


class ModuleSearch:
    """Reads the modules of some files as they are needed, until a deadline."""

    def __init__(
        self, place: Workspace, found: PythonFiles, deadline: float, *, calls: bool
    ) -> None:
        self._place = place
        self.found = found
        self._deadline = deadline
        self._with_calls = calls
        self._files = {file.path: file for file in found.files}
        self._modules = Modules(self._files)

    async def _find_definitions(self, name: str, kinds: frozenset[str]) -> list[Ref]:
        refs = self._modules.find_definitions(name, kinds)
        while not refs and self._modules.missing:
            await self._read_missing()
            refs = self._modules.find_definitions(name, kinds)
        return refs

    async def _repeat_until_read(self, find: Callable[[], Result]) -> Result:
        """Repeat a search until all modules that it needs are read; returns its last result."""
        while True:
            result = await anyio.to_thread.run_sync(find)
            if not self._modules.missing:
                return result
            await self._read_missing()

    async def _read_missing(self) -> None:
        await self._read([self._files[path] for path in sorted(self._modules.missing)])

    async def _read(self, files: Sequence[PythonFile]) -> None:
        call = "aish.packs.py.module_facts:facts"
        rows = await ask_child(
            self._place, call, self.found, files, self._deadline, calls=self._with_calls
        )
        self._modules.add(files, rows)
