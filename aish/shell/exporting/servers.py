"""The servers and models that an exported file takes over, said from where it stands (S7). Pure."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from aish.config.model import ServerEntry
from aish.core.errors import AishError
from aish.core.json import JsonObject

_FOLDERS = ("root", "cwd")


class NotExportedError(AishError):
    """The session cannot be said as a pipeline; nothing was written."""

    code = "not_exported"


def models_of(data: JsonObject, aliases: Sequence[str]) -> dict[str, Any]:
    """The entries of models, and of what they fall back to, in the order of the file."""
    declared: Any = data.get("models") or {}
    found: set[str] = set()
    waiting = list(aliases)
    while waiting:
        alias = waiting.pop()
        if alias in declared and alias not in found:
            found.add(alias)
            waiting += declared[alias].get("fallback") or []
    return {alias: entry for alias, entry in declared.items() if alias in found}


def servers_of(
    data: JsonObject,
    connected: Mapping[str, ServerEntry],
    shown: Collection[str],
    folder: Path,
    target: Path,
) -> dict[str, Any]:
    """The entries of the servers whose tools models were shown.

    Raises:
        NotExportedError: it is not known where one of them is.
    """
    mcp: Any = data.get("mcp") or {}
    declared: Any = mcp.get("servers") or {}
    entries = {
        alias: moved(entry, folder, target) for alias, entry in declared.items() if alias in shown
    }
    entries |= {alias: _said(one, target) for alias, one in connected.items() if alias in shown}
    unknown = sorted(set(shown) - set(entries))
    if unknown:
        raise NotExportedError(
            f"where the server `{unknown[0]}` is, this part of the session does not know",
            hint=f"`:mcp connect URL {unknown[0]}` connects to it again, then export",
        )
    return entries


def moved(entry: Any, folder: Path, target: Path) -> Any:
    """A server's entry with its folders said from `target`."""
    if folder.resolve() == target.resolve():
        return entry
    found = dict(entry)
    if "command" in found:
        found.setdefault("cwd", ".")
    for key in _FOLDERS:
        # What a variable says is not known here; most are whole paths.
        if key in found and "${" not in str(found[key]):
            found[key] = _from(target, folder / str(found[key]))
    return found


def _from(target: Path, path: Path) -> str:
    return os.path.relpath(path.resolve(), target.resolve())


def _said(entry: ServerEntry, target: Path) -> dict[str, Any]:
    if entry.command:
        started: Any = {"command": list(entry.command)}
        return dict(moved(started, entry.cwd or target, target))
    said: dict[str, Any] = {"url": entry.url}
    return said | ({"auth_env": entry.auth_env} if entry.auth_env else {})
