"""The contents of a lock, its differences from the current state, and its JSON. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from aish.core.events import UNCONFINED
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, canonical
from aish.core.patterns import lazy_pattern
from aish.core.text import for_terminal
from aish.core.tools import HINTS, Annotations, Tool, ToolName

Transport = Literal["http", "stdio", "pack"]
ADDRESS_KEYS: Mapping[Transport, str] = {"http": "url", "stdio": "command", "pack": "pack"}
"""The key of the pipeline file that says where a server is."""


@frozen
class ToolPin:
    """Pinned tool: the hash of its definition, and the definition if it could be kept.

    `accepted`: a person has found nothing wrong with what is suspicious in it.
    """

    sha256: str
    definition: JsonObject | None = None
    accepted: bool = False


@frozen
class ServerPin:
    """Pinned server: its address as in the file (`${VAR}` unresolved), and its tools.

    `instructions` are its own, if the file adds them to prompts. `sandbox` is what a child process
    may use, `None` without one.
    """

    transport: Transport
    address: tuple[str, ...]
    tools: Mapping[str, ToolPin]
    instructions: str = ""
    sandbox: JsonObject | None = None

    def is_at(self, other: "ServerPin") -> bool:
        """Return true if both are the same url, argv or packs."""
        return (self.transport, self.address) == (other.transport, other.address)


@frozen
class Package:
    """A package that was installed: `path` is where, if that is not its name alone."""

    name: str
    version: str
    integrity: str
    path: str = ""

    @property
    def row(self) -> JsonObject:
        row = {"name": self.name, "version": self.version, "integrity": self.integrity}
        return {**row, "path": self.path} if self.path else row


@frozen
class PackagePin:
    """The packages that a server was installed of, and how the file names it.

    `files` is the platform, and the digest of the installed files, which differ between platforms.
    """

    spec: str
    resolved: tuple[Package, ...]
    files: str

    @property
    def digest(self) -> str:
        rows = canonical([package.row for package in self.resolved])
        return hashlib.sha256(rows.encode("ascii")).hexdigest()

    @property
    def row(self) -> JsonObject:
        resolved = [package.row for package in self.resolved]
        return {"spec": self.spec, "resolved": resolved, "files": self.files}

    def has_other_files(self, other: "PackagePin") -> bool:
        """Return true if both are of one platform, and the files differ."""
        of_one = self.files.rpartition(" ")[0] == other.files.rpartition(" ")[0]
        return of_one and self.files != other.files


def package_pin(row: JsonObject) -> PackagePin:
    """The pin that a `row` describes."""
    rows = cast("list[Mapping[str, str]]", row["resolved"])
    return PackagePin(str(row["spec"]), tuple(Package(**one) for one in rows), str(row["files"]))


@frozen
class Lock:
    """Everything pinned: servers by alias, model ids by alias, hashes of prompts by step.

    `keys` are the commands that make keys, by their path in the file; `${VAR}` unresolved.
    `packages` are those of fetched servers. `served` are the names that a model may answer under,
    by its alias.
    """

    servers: Mapping[str, ServerPin]
    models: Mapping[str, str]
    prompts: Mapping[str, str]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    packages: Mapping[str, PackagePin] = field(default_factory=dict)
    served: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@frozen
class FieldChange:
    """Changed field; `None` means that it is absent."""

    field: str
    before: JsonValue
    after: JsonValue


DifferenceKind = Literal["tool", "server", "model", "prompt", "key", "package"]


@frozen
class Difference:
    """Difference from the lock. `name` is `alias__tool`, an alias, a step's id, or a path."""

    kind: DifferenceKind
    name: str
    change: Literal["changed", "added", "removed"]
    fields: tuple[FieldChange, ...] = ()


def hash_of(name: str, definition: JsonObject) -> str:
    """SHA-256 of the canonical JSON of a tool's name and definition; key order is irrelevant."""
    subject = canonical({"name": name, **definition})
    return hashlib.sha256(subject.encode("ascii")).hexdigest()


def pin_of(name: str, definition: JsonObject) -> ToolPin:
    """The pin of a tool with this definition."""
    return ToolPin(hash_of(name, definition), definition)


def tool_from_pin(
    name: ToolName, pin: ToolPin, *, trusted: bool, builtin: bool = False
) -> Tool | None:
    """The tool as it was pinned; `None` where only its hash is known."""
    definition = pin.definition
    if definition is None:
        return None
    claims, schema = definition.get("annotations"), definition.get("inputSchema")
    output = definition.get("outputSchema")
    said = claims if isinstance(claims, Mapping) else {}
    return Tool(
        name=name,
        wire=str(name),
        description=str(definition.get("description", "")),
        input_schema=schema if isinstance(schema, Mapping) else {},
        output_schema=output if isinstance(output, Mapping) else None,
        annotations=Annotations(**{key: said.get(word) for key, word in HINTS.items()}),  # type: ignore[arg-type] # the schema of lock files says which is text and which a flag
        trusted=trusted,
        builtin=builtin,
    )


def compare(pinned: Lock, now: Lock) -> tuple[Difference, ...]:
    """All differences of `now` from the lock: servers, tools, models, prompts."""
    tools = (
        found
        for alias, server in now.servers.items()
        for found in tool_differences(alias, pinned.servers.get(alias), server)
    )
    told = (
        found
        for alias, server in now.servers.items()
        if (found := instructions_difference(alias, pinned.servers.get(alias), server.instructions))
    )
    packages = (
        difference
        for alias in dict.fromkeys((*now.packages, *pinned.packages))
        if (
            difference := package_difference(
                alias, pinned.packages.get(alias), now.packages.get(alias)
            )
        )
    )
    served = (
        difference
        for alias, names in now.served.items()
        if (pins := pinned.served.get(alias))
        and (difference := served_difference(alias, pins, names))
    )
    addresses = address_differences(pinned, now)
    return (*addresses, *told, *tools, *packages, *stale_differences(pinned, now), *served)


def package_difference(
    alias: str, before: PackagePin | None, now: PackagePin | None
) -> Difference | None:
    """Return how the packages of a server differ from the pinned ones, if they do."""
    if before is None or now is None:
        change: Literal["added", "removed"] = "added" if before is None else "removed"
        specs = (None if pin is None else pin.spec for pin in (before, now))
        return Difference("package", alias, change, (FieldChange("spec", *specs),))
    fields = [FieldChange("spec", before.spec, now.spec)] if before.spec != now.spec else []
    old, new = (
        {package.path or package.name: package for package in pin.resolved} for pin in (before, now)
    )
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name), new.get(name)
        if one != other:
            fields.append(FieldChange(name, _describe(one, other), _describe(other, one)))
    if not fields and before.has_other_files(now):
        fields.append(FieldChange("files", before.files, now.files))
    return Difference("package", alias, "changed", tuple(fields)) if fields else None


def _describe(package: Package | None, other: Package | None) -> str | None:
    """The version of a package, and its checksums if they alone differ."""
    if package is None:
        return None
    same = other is not None and package.version == other.version
    return f"{package.version} {package.integrity}" if same else package.version


def address_differences(pinned: Lock, now: Lock) -> Iterator[Difference]:
    """Differences of servers that are new or have changed, or may use more."""
    for alias, server in now.servers.items():
        before = pinned.servers.get(alias)
        if before is None or not before.is_at(server):
            yield address_difference(alias, before, server)
        elif is_wider(before.sandbox, server.sandbox):
            field = FieldChange("sandbox", before.sandbox, server.sandbox or UNCONFINED)
            yield Difference("server", alias, "changed", (field,))


def is_wider(before: JsonObject | None, now: JsonObject | None) -> bool:
    """Return true if a sandbox lets its server use what a pinned one did not."""
    if before is None or now is None:
        return before is not None
    if now.get("best_effort") and not before.get("best_effort"):
        return True
    write = _folders(before, "write")
    if not all(_is_within(path, write) for path in _folders(now, "write")):
        return True
    read = (*_folders(before, "read"), *write)
    if not all(_is_within(path, read) for path in _folders(now, "read")):
        return True
    was, network = before.get("network"), now.get("network")
    if was == "full" or network == "none":
        return False
    return network == "full" or not set(_words(network)) <= set(_words(was))


def _folders(sandbox: JsonObject, key: str) -> tuple[PurePosixPath, ...]:
    return tuple(map(PurePosixPath, _words(sandbox.get(key))))


def _words(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _is_within(path: PurePosixPath, folders: tuple[PurePosixPath, ...]) -> bool:
    return any(
        path.is_relative_to(folder) and path.parts[len(folder.parts) :][:1] != ("..",)
        for folder in folders
    )


def stale_differences(pinned: Lock, now: Lock) -> Iterator[Difference]:
    """Differences of removed servers, and of changed models, prompts and commands for keys."""
    for alias in pinned.servers:
        if alias not in now.servers:
            yield Difference("server", alias, "removed")
    yield from _differences("model", "model", pinned.models, now.models)
    yield from _differences("prompt", "sha256", pinned.prompts, now.prompts)
    yield from _differences("key", "command", pinned.keys, now.keys)


def served_difference(
    alias: str, pins: tuple[str, ...], names: Sequence[str | None]
) -> Difference | None:
    """Return how the names that a model answered under differ from the pinned ones, if they do."""
    if set(names) <= set(pins):
        return None
    field = FieldChange("served", ", ".join(pins), ", ".join(name or _NO_NAME for name in names))
    return Difference("model", alias, "changed", (field,))


def instructions_difference(alias: str, before: ServerPin | None, now: str) -> Difference | None:
    """Return how the instructions of a server differ from the pinned ones, if they do."""
    if before is None or before.instructions == now:
        return None
    field = FieldChange("instructions", before.instructions or None, now or None)
    return Difference("server", alias, "changed", (field,))


def address_difference(alias: str, before: ServerPin | None, now: ServerPin) -> Difference:
    """The difference of a server that is new or has changed."""
    if before is None:
        field = FieldChange(ADDRESS_KEYS[now.transport], None, _address(now))
        return Difference("server", alias, "added", (field,))
    if before.transport != now.transport:
        fields = (
            FieldChange(ADDRESS_KEYS[before.transport], _address(before), None),
            FieldChange(ADDRESS_KEYS[now.transport], None, _address(now)),
        )
        return Difference("server", alias, "changed", fields)
    field = FieldChange(ADDRESS_KEYS[now.transport], _address(before), _address(now))
    return Difference("server", alias, "changed", (field,))


def tool_differences(alias: str, before: ServerPin | None, now: ServerPin) -> Iterator[Difference]:
    """The differences of the tools of one server, in the order of their names."""
    pins = before.tools if before is not None else {}
    for name in sorted({*pins, *now.tools}):
        found = tool_difference(alias, name, pins.get(name), now.tools.get(name))
        if found is not None:
            yield found


def tool_difference(
    alias: str, name: str, before: ToolPin | None, now: ToolPin | None
) -> Difference | None:
    """Return how a tool differs from its pin, if it does."""
    shown = f"{alias}__{name}"
    if now is None:
        return Difference("tool", shown, "removed")
    if before is None:
        fields = tuple(FieldChange(key, None, value) for key, value in _fields(now).items())
        return Difference("tool", shown, "added", fields)
    if before.sha256 == now.sha256:
        return None
    old, new = _fields(before), _fields(now)
    fields = tuple(
        FieldChange(key, old.get(key), new.get(key))
        for key in dict.fromkeys((*old, *new))
        if canonical(old.get(key)) != canonical(new.get(key))
    )
    if before.definition is None or now.definition is None:
        fields = (FieldChange("sha256", before.sha256, now.sha256),)
    return Difference("tool", shown, "changed", fields)


_NO_NAME = "(no name)"


def _differences(
    kind: DifferenceKind,
    field: str,
    before: Mapping[str, str] | Mapping[str, tuple[str, ...]],
    now: Mapping[str, str] | Mapping[str, tuple[str, ...]],
) -> Iterator[Difference]:
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        change: Literal["changed", "added", "removed"] = "changed"
        if old is None or new is None:
            change = "added" if old is None else "removed"
        yield Difference(kind, name, change, (FieldChange(field, old, new),))


def _address(server: ServerPin) -> JsonValue:
    return server.address[0] if server.transport == "http" else list(server.address)


def _fields(pin: ToolPin) -> JsonObject:
    return pin.definition if pin.definition is not None else {"sha256": pin.sha256}


VERSION = 1
SCHEMA = "lock.schema.json"
_VERSION_KEY = "aish_lock"
DEEPEST = 48
"""Levels of a definition that is kept: readers of JSON files give up at 64 for the whole file."""
_BEYOND_ASCII = lazy_pattern(r"[^\n -~]")
_BASIC_PLANE = 0xFFFF


class BadLockError(ValueError):
    """A lock that this version cannot use; `hint` says what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def lock_text(lock: Lock) -> str:
    """The file's text: sorted, one per line, odd characters escaped; ends with a line end."""
    packages = {alias: pin.row for alias, pin in lock.packages.items()}
    data = {
        _VERSION_KEY: VERSION,
        "models": {alias: _model(id, lock.served.get(alias)) for alias, id in lock.models.items()},
        "prompts": lock.prompts,
        **({"keys": lock.keys} if lock.keys else {}),
        **({"packages": packages} if packages else {}),
        "servers": {alias: _server(pin) for alias, pin in lock.servers.items()},
    }
    text = json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True, default=dict)
    return _BEYOND_ASCII.sub(_visible, text) + "\n"


def can_be_kept(definition: JsonObject) -> bool:
    """Return true if a definition survives a round trip through the file unchanged."""
    try:
        json.dumps(definition, allow_nan=False, default=dict)
    except (ValueError, RecursionError):
        return False
    return _depth(definition) <= DEEPEST


def lock_of_data(data: JsonValue) -> Lock:
    """The lock that a file's JSON holds.

    Raises:
        BadLockError: it is another version's, is not as the schema says, or its hashes are not
            those of the definitions beside them.
    """
    _check_version(data)
    assert isinstance(data, Mapping)
    _check_shape(data)
    servers = cast("Mapping[str, JsonObject]", data["servers"])
    keys = cast("Mapping[str, list[str]]", data.get("keys", {}))
    packages = cast("Mapping[str, JsonObject]", data.get("packages", {}))
    models = cast("Mapping[str, str | Mapping[str, Any]]", data["models"])
    return Lock(
        servers={alias: _server_pin(alias, server) for alias, server in servers.items()},
        models={
            name: one if isinstance(one, str) else one["model"] for name, one in models.items()
        },
        prompts=cast("Mapping[str, str]", data["prompts"]),
        keys={place: tuple(words) for place, words in keys.items()},
        packages={alias: package_pin(row) for alias, row in packages.items()},
        served={
            alias: tuple(model["served"])
            for alias, model in models.items()
            if not isinstance(model, str)
        },
    )


@cache
def lock_schema() -> JsonObject:
    """`schemas/lock.schema.json`."""
    from aish.system.files import schema_text

    schema: JsonObject = json.loads(schema_text(SCHEMA))
    return schema


def _model(id: str, served: tuple[str, ...] | None) -> JsonValue:
    return id if served is None else {"model": id, "served": list(served)}


def _server(pin: ServerPin) -> JsonObject:
    address: JsonValue = pin.address[0] if pin.transport == "http" else list(pin.address)
    return {
        "transport": pin.transport,
        ADDRESS_KEYS[pin.transport]: address,
        **({"instructions": pin.instructions} if pin.instructions else {}),
        **({} if pin.sandbox is None else {"sandbox": pin.sandbox}),
        "tools": {name: _tool(tool) for name, tool in pin.tools.items()},
    }


def _tool(pin: ToolPin) -> JsonObject:
    kept: JsonObject = {} if pin.definition is None else {"definition": pin.definition}
    return {"sha256": pin.sha256, **kept, **({"accepted": True} if pin.accepted else {})}


def _check_version(data: JsonValue) -> None:
    version = data.get(_VERSION_KEY) if isinstance(data, Mapping) else None
    if version is None or isinstance(version, bool):
        message = f"this is not a lock file of aish: `{_VERSION_KEY}` is missing"
        raise BadLockError(message, "`lock` names the file that `aish lock` writes")
    if version != VERSION:
        message = f"this is a lock file of version {version}; this aish reads version {VERSION}"
        raise BadLockError(message, "use the aish that wrote it, or delete it and lock again")


def _check_shape(data: JsonObject) -> None:
    from aish.system.schema.check import check

    problems = check(lock_schema(), data)
    if problems:
        raise BadLockError(str(problems[0]), "it was edited by hand or is damaged: restore it")


def _server_pin(alias: str, server: JsonObject) -> ServerPin:
    transport = cast("Transport", server["transport"])
    key = ADDRESS_KEYS[transport]
    if key not in server:
        message = f"servers.{alias}: `{key}` is missing, and its transport is `{transport}`"
        raise BadLockError(message, "it was edited by hand or is damaged: restore it")
    address = server[key]
    tools = cast("Mapping[str, JsonObject]", server["tools"])
    return ServerPin(
        transport=transport,
        address=(address,) if isinstance(address, str) else tuple(cast("list[str]", address)),
        tools={name: _tool_pin(alias, name, tool) for name, tool in tools.items()},
        instructions=cast("str", server.get("instructions", "")),
        sandbox=cast("JsonObject | None", server.get("sandbox")),
    )


def _tool_pin(alias: str, name: str, tool: JsonObject) -> ToolPin:
    definition = cast("JsonObject | None", tool.get("definition"))
    pin = ToolPin(str(tool["sha256"]), definition, tool.get("accepted") is True)
    if pin.definition is not None and hash_of(name, pin.definition) != pin.sha256:
        raise BadLockError(
            f"the definition of `{alias}__{name}` does not match its hash",
            "it was edited by hand or is damaged: restore it",
        )
    return pin


def _depth(value: JsonValue) -> int:
    """The depth, computed without recursion: the server controls how deep it is."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        found, level = waiting.pop()
        deepest = max(deepest, level)
        if isinstance(found, Mapping):
            waiting.extend((inner, level + 1) for inner in found.values())
        elif isinstance(found, (list, tuple)):
            waiting.extend((inner, level + 1) for inner in found)
    return deepest


def _visible(found: re.Match[str]) -> str:
    """A character as JSON escapes it if a reviewer would not see it."""
    character = found[0]
    if character.isprintable() and for_terminal(character) == character:
        return character
    code = ord(character)
    if code <= _BASIC_PLANE:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
