"""Finds packs by name: built-in ones by their manifest, others by the metadata of distributions.

Metadata is read, and code of others imported, only where a name is not built in. An import runs in
a thread of its own: one that does not end is given up.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from contextvars import copy_context
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread, current_thread, main_thread
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from aish.core.errors import UnavailableError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.system.foreign_output import foreign_output

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "aish.packs"
"""Entry points of this group are packs: `NAME = "MODULE:PACK"`."""
IMPORT_SECONDS = 10.0
_LONGEST_REASON = 300
_INSTALLED = ("site-packages", "dist-packages")


class PackLoadError(UnavailableError):
    """A pack that cannot be loaded or opened; for a run it is a server that does not start."""

    retryable = False


@frozen
class OfferedPack:
    """A pack that an installed distribution offers."""

    name: str
    distribution: str
    version: str
    entry: "EntryPoint"

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    def error(self, what: str, hint: str | None = None) -> PackLoadError:
        """Return the error that says what is wrong with the pack, and what to do."""
        hint = hint or f"update `{self.distribution}`, or remove the pack from the file"
        where = f"`{self.entry.value}` of {self.distribution} {self.version}"
        return PackLoadError(f"the pack `{self.name}` ({where}) {what}", hint=hint)


@cache
def offered_packs() -> Mapping[str, tuple[OfferedPack, ...]]:
    """The packs of all distributions by name; of one name there should be one.

    Only folders of installed packages count: what is found in a project, where a hostile one might
    be tried out, offers nothing.
    """
    offers: dict[str, dict[str, OfferedPack]] = {}
    folders = [path for path in sys.path if Path(path).name in _INSTALLED]
    for about in (about for folder in folders for about in _pack_metadata(folder)):
        # Imported here, as nearly all runs have built-in packs only.
        from importlib.metadata import PathDistribution

        distribution = PathDistribution(about)
        # Damaged metadata of some distribution is no matter here.
        with suppress(ValueError, KeyError, AttributeError, OSError):
            for entry in distribution.entry_points.select(group=GROUP):
                name, version = distribution.metadata["Name"], distribution.version
                offer = OfferedPack(entry.name, name, version, entry)
                # The first folder with a distribution is the one that is imported from.
                offers.setdefault(entry.name, {}).setdefault(name.lower(), offer)
    return {name: tuple(packs.values()) for name, packs in offers.items()}


def _pack_metadata(folder: str) -> Iterator[Path]:
    """The metadata in a folder that has the group; that of all others takes too long to read."""
    for ending in ("dist-info", "egg-info"):
        for file in sorted(Path(folder).glob(f"*.{ending}/entry_points.txt")):
            with suppress(OSError):
                if f"[{GROUP}]".encode() in file.read_bytes():
                    yield file.parent


def find_offered_pack(name: str) -> OfferedPack | None:
    """The pack of a distribution; `None` if none is installed that offers it.

    Raises:
        UsageError: two distributions offer it.
    """
    offers = offered_packs().get(name, ())
    if len(offers) > 1:
        both = " and ".join(f"`{offer.requirement}`" for offer in offers)
        hint = f"uninstall one of them: `pip uninstall {offers[0].distribution}`"
        raise UsageError(f"the pack `{name}` is offered by {both}", hint=hint)
    return offers[0] if offers else None


@cache
def _import(name: str) -> Any:
    """Return what the entry point of a pack names, or the error of loading it."""
    offer = find_offered_pack(name)
    if offer is None:
        return PackLoadError(
            f"there is no pack `{name}`", hint=f"`pip install` the distribution {entry_point(name)}"
        )
    outcome: list[Any] = []

    def load() -> None:
        try:
            outcome.append(offer.entry.load())
        except BaseException as error:  # ruff: ignore[blind-except] - it may even exit
            outcome.append(_import_error(offer, error))

    with foreign_output():
        run = copy_context().run
    thread = Thread(target=run, args=(load,), name=f"import of the pack {name}", daemon=True)
    # Nothing else prints while the main thread waits: what a logger keeps as stdout is stderr.
    waits = current_thread() is main_thread()
    with redirect_stdout(sys.stderr) if waits else nullcontext():
        thread.start()
        thread.join(IMPORT_SECONDS)
    return outcome[0] if outcome else offer.error(f"is not imported in {IMPORT_SECONDS:g} seconds")


def _import_error(offer: OfferedPack, error: BaseException) -> PackLoadError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    hint = None
    if isinstance(error, ImportError) and offer.entry.extras:
        extras = ",".join(offer.entry.extras)
        hint = f"pip install '{offer.distribution}[{extras}]'"
    why = shorten(f"{type(error).__name__}: {error}", _LONGEST_REASON)
    return offer.error(f"cannot be imported: {why}{place}", hint)


def entry_point(name: str) -> str:
    return f"with the entry point `{name}` in the group `{GROUP}`"


def load_offered_pack(name: str) -> Any:
    """Import what the entry point of a pack names; once in a process.

    Raises:
        PackLoadError: it cannot be imported, or not in time.
        UsageError: two distributions offer it.
    """
    loaded = _import(name)
    if isinstance(loaded, PackLoadError):
        raise loaded
    return loaded


@cache
def pack_manifest() -> Mapping[str, Any]:
    """Facts about the built-in packs and their tools, without loading one."""
    path = Path(__file__).parents[1] / "packs" / "manifest.json"
    manifest: Mapping[str, Any] = json.loads(path.read_bytes())
    return manifest


@cache
def options_class(pack: str) -> type[Any] | None:
    """Import the class of a pack's options; that of a built-in one stands in a small module.

    Raises:
        PackLoadError: a pack of a distribution cannot be loaded, or cannot have such options.
        UsageError: two distributions offer it.
    """
    row = pack_manifest()["packs"].get(pack)
    if row is None:
        return _offered_options(pack)
    module, _, name = row.get("options", "").partition(":")
    kind: type[Any] | None = getattr(import_module(module), name) if module else None
    return kind


def _offered_options(pack: str) -> type[Any] | None:
    loaded, offer = load_offered_pack(pack), find_offered_pack(pack)
    assert offer is not None, "it is loaded"
    try:
        kind: type[Any] | None = loaded.options
        if kind is not None:
            options_schema(kind)
            with foreign_output():
                kind()
    except Exception as error:
        what = f"is not declared as it should be: {type(error).__name__}: {error}"
        raise offer.error(what) from error
    return kind


def options_schema(kind: Any) -> JsonObject:
    """The JSON Schema of a class of options, by the types of its fields.

    Raises:
        TypeError: a field is of a type that no option has.
    """
    types = get_type_hints(kind)
    properties = {field.name: _option_schema(types[field.name], field) for field in fields(kind)}
    required = [field.name for field in fields(kind) if _is_required(field)]
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
    return schema | {"required": required, "additionalProperties": False}


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _option_schema(kind: Any, field: "Field[Any]") -> JsonObject:
    some = [choice for choice in get_args(kind) if choice is not type(None)]
    if isinstance(kind, UnionType) and len(some) == 1:
        return _option_schema(some[0], field)
    if is_dataclass(kind):
        return options_schema(kind)
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": some}
    if kind == tuple[str, ...]:
        return {"type": "array", "items": {"type": "string"}}
    if kind is str and "variable" in field.metadata:
        return {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    raise TypeError(f"the option `{field.name}` is of the type `{kind}`")


_TYPES: Mapping[Any, str] = {
    str: "string",
    Path: "string",
    float: "string",
    int: "integer",
    bool: "boolean",
}
"""Types of options; a `float` is a time, which a file has with its unit: `1m30s`."""
