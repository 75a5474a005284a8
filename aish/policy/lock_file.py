"""A lock as the JSON of its file, and back. The text is read and written elsewhere."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import cast

from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_terminal
from aish.policy.lock import ADDRESS_KEYS, Lock, ServerPin, ToolPin, Transport, hash_of

VERSION = 1
SCHEMA = "lock.schema.json"
_VERSION_KEY = "aish_lock"
DEEPEST = 48
"""Levels of a definition that is kept: readers of JSON files give up at 64 for the whole file."""
_BEYOND_ASCII = re.compile(r"[^\n -~]")
_BASIC_PLANE = 0xFFFF


class BadLockError(ValueError):
    """Not a lock that this version can use; `hint` says what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def lock_text(lock: Lock) -> str:
    """The file's text: sorted, in a line each, odd characters spelled out; ends with a line end."""
    data = {
        _VERSION_KEY: VERSION,
        "models": lock.models,
        "prompts": lock.prompts,
        "servers": {alias: _server(pin) for alias, pin in lock.servers.items()},
    }
    text = json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True, default=dict)
    return _BEYOND_ASCII.sub(_visible, text) + "\n"


def can_be_kept(definition: JsonObject) -> bool:
    """Whether a definition comes back from the file as it was."""
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
    return Lock(
        servers={alias: _server_pin(alias, server) for alias, server in servers.items()},
        models=cast("Mapping[str, str]", data["models"]),
        prompts=cast("Mapping[str, str]", data["prompts"]),
    )


@cache
def lock_schema() -> JsonObject:
    """`schemas/lock.schema.json`."""
    from aish.system.paths import schema_text

    schema: JsonObject = json.loads(schema_text(SCHEMA))
    return schema


def _server(pin: ServerPin) -> JsonObject:
    address: JsonValue = pin.address[0] if pin.transport == "http" else list(pin.address)
    return {
        "transport": pin.transport,
        ADDRESS_KEYS[pin.transport]: address,
        "tools": {name: _tool(tool) for name, tool in pin.tools.items()},
    }


def _tool(pin: ToolPin) -> JsonObject:
    kept: JsonObject = {} if pin.definition is None else {"definition": pin.definition}
    return {"sha256": pin.sha256, **kept}


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
    )


def _tool_pin(alias: str, name: str, tool: JsonObject) -> ToolPin:
    pin = ToolPin(str(tool["sha256"]), cast("JsonObject | None", tool.get("definition")))
    if pin.definition is not None and hash_of(name, pin.definition) != pin.sha256:
        raise BadLockError(
            f"the definition of `{alias}__{name}` is not the one that its hash is of",
            "it was edited by hand or is damaged: restore it",
        )
    return pin


def _depth(value: JsonValue) -> int:
    """How many levels, found without recursion: a server decides how many there are."""
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
