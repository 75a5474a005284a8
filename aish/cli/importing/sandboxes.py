"""Proposes a `sandbox` for an imported server that is well known.

Only for a server that is installed: a launcher (`npx`, `uvx`) fetches it at each start, which takes
a network and, in an empty home, longer than a connection may take.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from aish.core.json import JsonValue

_INTERPRETERS = re.compile(r"(?:python|node)[\d.]*\Z")
_PLAIN = re.compile(r"[^~$][^$]*")
"""A path as it stands in a pipeline file: no variable, and no home folder."""


def sandbox_of_server(command: Sequence[str], *, relative: bool) -> Mapping[str, JsonValue] | None:
    """The sandbox of a server that is well known; `None` of any other.

    Without `relative` its relative paths are not those of the file, so there is none.
    """
    if not command:
        return None
    program, *arguments = command
    name = Path(program).name
    if _INTERPRETERS.match(name):
        is_module = arguments[:1] == ["-m"]
        first, *arguments = (*arguments[is_module:], "")
        name = first.replace("_", "-") if is_module else _script(first)
    needs = _SERVERS.get(name)
    if needs is None:
        return None
    sandbox = needs(arguments)
    home = Path(os.path.expanduser("~"))  # ruff: ignore[os-path-expanduser] - never raises
    paths = [Path(str(path)) for path in _items(sandbox.get("write"))]
    is_usable = all(
        _PLAIN.fullmatch(str(path))
        and (relative or path.is_absolute())
        and not home.is_relative_to(path)
        for path in paths
    )
    return sandbox if is_usable else None


def _script(program: str) -> str:
    """The server whose program is in an installed package of JavaScript."""
    parts = Path(program).parts
    if "node_modules" not in parts:
        return ""
    after = parts[parts.index("node_modules") + 1 :]
    scoped = after[:1] == ("@modelcontextprotocol",) and len(after) > 1
    return f"mcp-{after[1]}" if scoped else ""


def _items(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, (list, tuple)) else ()


def _no_network(_: Sequence[str]) -> Mapping[str, JsonValue]:
    return {"network": "none"}


def _network(_: Sequence[str]) -> Mapping[str, JsonValue]:
    return {"network": "full"}


def _folders(arguments: Sequence[str]) -> Mapping[str, JsonValue]:
    return {"write": [word for word in arguments if word and not word.startswith("-")]}


def _repositories(arguments: Sequence[str]) -> Mapping[str, JsonValue]:
    names = ("-r", "--repository")
    return {"write": [word for option, word in pairwise(arguments) if option in names]}


_SERVERS: Final[Mapping[str, Callable[[Sequence[str]], Mapping[str, JsonValue]]]] = {
    "mcp-server-filesystem": _folders,
    "mcp-server-git": _repositories,
    "mcp-server-time": _no_network,
    "mcp-server-sequential-thinking": _no_network,
    "mcp-server-fetch": _network,
}
