"""Follows names over the modules below a folder, by what `module_facts` found in them (K37).

Imports, aliases, inheritance, attributes of `self`, local instances and annotations are followed.
Nothing is read here: a module whose facts are needed is put into `missing`, and the caller asks
again when it has them. What cannot be followed is `None`.
"""

import builtins
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from aish.core.frozen import frozen
from aish.packs.py.python_files import PythonFile

_DEEPEST = 40
_MOST_BASES = 200
_SUFFIXES = (".py", ".pyi", ".pyw")
_BUILTINS = frozenset(dir(builtins))

Facts = dict[str, Any]
_EMPTY: Facts = {"scopes": [], "stars": []}


@frozen
class Ref:
    """What a name is: a definition by the file and its number there, or a name from elsewhere.

    `instance` is one of a class; `external` something that is not below the folder, by its name;
    `super` is what follows a class in the order of its bases.
    """

    kind: Literal[
        "module", "folder", "class", "function", "instance", "super", "external", "builtin"
    ]
    path: str
    scope: int = 0


class Modules:
    """The modules below a folder, by their paths from the root."""

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
        self._known: dict[tuple[Any, ...], Ref | None] = {}
        self._orders: dict[tuple[str, int], list[Ref]] = {}

    def add(self, files: Iterable[PythonFile], found: Iterable[tuple[PythonFile, Any]]) -> None:
        """Take the facts of some files; what was found without them is forgotten.

        A file that could not be read is one with nothing in it.
        """
        self.facts.update((file.path, _EMPTY) for file in files)
        self.facts.update((file.path, facts) for file, facts in found)
        self.missing.clear()
        self._known.clear()
        self._orders.clear()

    def scopes(self, path: str) -> Sequence[Facts]:
        """The scopes of a module; none if it was not read yet."""
        if path not in self.facts:
            self.missing.add(path)
        facts = self.facts.get(path)
        return facts["scopes"] if facts is not None else ()

    def scope(self, ref: Ref) -> Facts:
        """The scope of a class, an instance of it, or a function."""
        return self.scopes(ref.path)[ref.scope]

    def definitions(self, name: str, kinds: frozenset[str]) -> list[Ref]:
        """What has a dotted name, after the name of its module or without; else what ends so."""
        exact: list[Ref] = []
        others: list[Ref] = []
        for path, facts in self.facts.items():
            module = _module_name(path)
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
        return exact or self._imported(name, kinds) or others

    def _imported(self, name: str, kinds: frozenset[str]) -> list[Ref]:
        """What a module has imported that the name begins with, such as all of `from ._api`."""
        module, _, own = name.rpartition(".")
        paths = [path for path in self._paths if f".{_module_name(path)}".endswith(f".{module}")]
        found = [self.attribute(Ref("module", path), own) for path in sorted(paths) if module]
        return [ref for ref in dict.fromkeys(found) if ref is not None and ref.kind in kinds]

    def resolve(self, path: str, scope: int, steps: Sequence[str], deep: int = 0) -> Ref | None:
        """What an expression is that stands in a scope."""
        if deep > _DEEPEST:
            return None
        first, *rest = steps
        found: Ref | None
        if first == '"':
            found = Ref("builtin", "str")
        elif first == "?":
            return None
        elif first == "super" and rest[:1] == ["()"]:
            found, rest = self._super(path, scope), rest[1:]
        else:
            found = self.name(path, scope, first, deep)
        for step in rest:
            if found is None or step == "[]":
                return None
            found = (
                self._called(found, deep) if step == "()" else self.attribute(found, step[1:], deep)
            )
        return found

    def name(self, path: str, scope: int, name: str, deep: int = 0) -> Ref | None:
        """What a name is in a scope, or around it, or a builtin."""
        key = ("name", path, scope, name)
        if key not in self._known:
            # Also what a circle of names comes to.
            self._known[key] = None
            self._known[key] = self._name(path, scope, name, deep)
        return self._known[key]

    def _name(self, path: str, scope: int, name: str, deep: int) -> Ref | None:
        scopes = self.scopes(path)
        index = scope
        while 0 < index < len(scopes):
            here = scopes[index]
            # The names of a class are not seen in the functions within it.
            if here["kind"] != "class" or index == scope:
                if (owner := self._owner(path, index, name)) is not None:
                    return owner
                if name in here["binds"]:
                    return self._first(here["binds"][name], path, index, deep)
            index = here["up"]
        found, is_bound = self._in_module(path, name, deep)
        if not is_bound and name in _BUILTINS:
            return Ref("builtin", name)
        return found

    def _owner(self, path: str, index: int, name: str) -> Ref | None:
        """The class or an instance of it, for the first parameter of a method."""
        scopes = self.scopes(path)
        here = scopes[index]
        if here["kind"] != "function" or here["params"][:1] != [name]:
            return None
        if scopes[here["up"]]["kind"] != "class" or "staticmethod" in here["marks"]:
            return None
        is_class = "classmethod" in here["marks"] or here["name"].endswith(".__new__")
        return Ref("class" if is_class else "instance", path, here["up"])

    def _super(self, path: str, scope: int) -> Ref | None:
        scopes = self.scopes(path)
        index = scope
        while 0 < index < len(scopes):
            up = scopes[index]["up"]
            if scopes[index]["kind"] == "function" and scopes[up]["kind"] == "class":
                return Ref("super", path, up)
            index = up
        return None

    def _first(
        self, bindings: Sequence[Sequence[Any]], path: str, scope: int, deep: int
    ) -> Ref | None:
        """The last binding that can be followed, a definition or import rather than a value."""
        other: Ref | None = None
        for binding in reversed(bindings):
            found = self._bound(binding, path, scope, deep + 1)
            if found is not None and found.kind not in {"external", "builtin"}:
                return found
            other = other or found
        return other

    def _bound(self, binding: Sequence[Any], path: str, scope: int, deep: int) -> Ref | None:
        match binding[0]:
            case "scope":
                return Ref(self.scopes(path)[binding[1]]["kind"], path, binding[1])
            case "import":
                module = self.locate(binding[1], path)
                if module is None:
                    return Ref("external", ".".join(filter(None, binding[1:3])))
                return self.attribute(module, binding[2], deep) if binding[2] else module
            case "value":
                return self.resolve(path, scope, binding[1], deep)
            case "type":
                found = self.resolve(path, scope, binding[1], deep)
                return self._called(found, deep) if found and found.kind != "function" else None
        return None

    def attribute(self, ref: Ref, name: str, deep: int = 0) -> Ref | None:
        """What an attribute is."""
        if deep > _DEEPEST:
            return None
        key = ("attribute", ref, name)
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._attribute(ref, name, deep)
        return self._known[key]

    def _attribute(self, ref: Ref, name: str, deep: int) -> Ref | None:
        match ref.kind:
            case "module":
                found, is_bound = self._in_module(ref.path, name, deep)
                if not is_bound and _stem(ref.path.rpartition("/")[2]) == "__init__":
                    return self._below(ref.path.rpartition("/")[0], name)
                return found
            case "folder":
                return self._below(ref.path, name)
            case "external" | "builtin":
                return Ref(ref.kind, f"{ref.path}.{name}")
            case "class" | "instance" | "super":
                return self._member(ref, name, deep)
        return None

    def _member(self, ref: Ref, name: str, deep: int) -> Ref | None:
        """A method or attribute of a class, its own or inherited."""
        order = self.order(Ref("class", ref.path, ref.scope), deep)
        for each in order[1:] if ref.kind == "super" else order:
            if each.kind != "class":
                continue
            scope = self.scope(each)
            if name in scope["binds"]:
                found = self._first(scope["binds"][name], each.path, each.scope, deep)
                if found and found.kind == "function" and ref.kind != "class":
                    marks = self.scope(found)["marks"]
                    if "property" in marks or "cached_property" in marks:
                        return self._called(found, deep)
                if found is not None:
                    return found
            # Their last part is the method that assigns them.
            for binding in reversed(scope["attributes"].get(name, ())):
                found = self._bound(binding[:-1], each.path, binding[-1], deep + 1)
                if found is not None:
                    return found
        return None

    def _called(self, ref: Ref, deep: int) -> Ref | None:
        """What a call returns."""
        if ref.kind == "class":
            return Ref("instance", ref.path, ref.scope)
        if ref.kind == "function":
            scope = self.scope(ref)
            if scope["returns"]:
                return self._bound(["type", scope["returns"]], ref.path, scope["up"], deep + 1)
            return None
        if ref.kind in {"external", "builtin"}:
            return Ref(ref.kind, f"{ref.path}()")
        return None

    def bases(self, ref: Ref, deep: int = 0) -> list[Ref | None]:
        """The classes that a class is derived from, `None` for each that cannot be followed."""
        scope = self.scope(ref)
        found = [self.resolve(ref.path, scope["up"], steps, deep) for steps, _ in scope["bases"]]
        return [
            base if base and base.kind in {"class", "external", "builtin"} else None
            for base in found
        ]

    def order(self, ref: Ref, deep: int = 0) -> list[Ref]:
        """A class and those it inherits from, in the order in which members are looked up."""
        key = (ref.path, ref.scope)
        if key in self._orders:
            return self._orders[key]
        self._orders[key] = [ref]
        waiting = [ref]
        seen: list[Ref] = []
        while waiting and len(seen) < _MOST_BASES:
            here = waiting.pop()
            seen.append(here)
            if here.kind == "class" and seen.count(here) == 1:
                waiting.extend(
                    base for base in reversed(self.bases(here, deep + 1)) if base is not None
                )
        # A class that several others share comes after all of these.
        order = list(dict.fromkeys(reversed(seen)))
        order.remove(ref)
        order.append(ref)
        self._orders[key] = order[::-1]
        return self._orders[key]

    def _in_module(self, path: str, name: str, deep: int) -> tuple[Ref | None, bool]:
        """What a module binds a name to, and whether it binds it at all."""
        scopes = self.scopes(path)
        if not scopes:
            return None, False
        binds = scopes[0]["binds"]
        if name in binds:
            return self._first(binds[name], path, 0, deep), True
        if name.startswith("_") or deep > _DEEPEST:
            return None, False
        for star in self.facts[path]["stars"]:
            module = self.locate(star, path)
            if module is not None and module.kind == "module" and module.path != path:
                key = ("star", module.path, name)
                if key not in self._known:
                    self._known[key] = None
                    self._known[key] = self.attribute(module, name, deep + 1)
                if self._known[key] is not None:
                    return self._known[key], True
        return None, False

    def locate(self, module: str, importer: str) -> Ref | None:
        """The module that an import in a file means, if it is below the folder."""
        folder = importer.rpartition("/")[0]
        level = len(module) - len(module.lstrip("."))
        names = [name for name in module.lstrip(".").split(".") if name]
        if level:
            for _ in range(level - 1):
                if not folder:
                    return None
                folder = folder.rpartition("/")[0]
            return self._walked(folder, names)
        candidates = self._importable.get(names[0], []) if names else []
        around = [each for each in candidates if _contains(each, folder)]
        for each in sorted(around, key=len, reverse=True):
            if (found := self._walked(each, names)) is not None:
                return found
        if names and names[0] in sys.stdlib_module_names:
            return None
        for each in candidates:
            if (found := self._walked(each, names)) is not None:
                return found
        return None

    def _walked(self, folder: str, names: Sequence[str]) -> Ref | None:
        """The module below a folder, or the folder itself as a package."""
        found: Ref | None = self._package(folder)
        for name in names:
            if found is None or (
                found.kind == "module" and _stem(found.path.rpartition("/")[2]) != "__init__"
            ):
                return None
            above = found.path if found.kind == "folder" else found.path.rpartition("/")[0]
            found = self._below(above, name)
        return found

    def _package(self, folder: str) -> Ref | None:
        for suffix in _SUFFIXES[:2]:
            path = _join(folder, "__init__" + suffix)
            if path in self._paths:
                return Ref("module", path)
        return Ref("folder", folder) if folder in self._folders else None

    def _below(self, folder: str, name: str) -> Ref | None:
        below = _join(folder, name)
        package = self._package(below)
        if package is not None and package.kind == "module":
            return package
        for suffix in _SUFFIXES:
            if below + suffix in self._paths:
                return Ref("module", below + suffix)
        return package


def _stem(name: str) -> str:
    return next((name.removesuffix(each) for each in _SUFFIXES if name.endswith(each)), name)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _contains(folder: str, other: str) -> bool:
    return not folder or other == folder or other.startswith(folder + "/")


def _module_name(path: str) -> str:
    return _stem(path).removesuffix("/__init__").replace("/", ".")
