"""The packs of one server, opened on its root: the in-process server (K1, K3, K4)."""

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue
from aish.packs.catalogue import NEEDS, OLDER_NAMES, PACKS
from aish.packs.framework.pack import PackTool
from aish.packs.tool_results import PackError, failure, success
from aish.packs.workspace.confined_path import Folder
from aish.packs.workspace.workspace import Workspace
from aish.system.process.reaper import Reaper
from aish.system.schema.check import check


class UnknownToolError(Exception):
    """There is no tool with this name: a JSON-RPC error, not a result (K3)."""


class Pack:
    """Built-in tools on one root. Without a root there are none, because each of them needs one."""

    def __init__(self, tools: Mapping[str, PackTool], place: Workspace | None) -> None:
        self.tools = tools
        self._place = place

    async def call(self, name: str, arguments: JsonObject) -> dict[str, JsonValue]:
        """A `CallToolResult`; it contains every error of the tool itself.

        Raises:
            UnknownToolError: there is no such tool.
        """
        tool = self.tools.get(name)
        if tool is None or self._place is None:
            raise UnknownToolError(f"unknown tool: {name}")
        problems = check(tool.input_schema, arguments)
        if problems:
            message = "; ".join(str(problem) for problem in problems[:5])
            return failure(PackError("bad_arguments", message))
        try:
            return success(await tool.function(self._place, **arguments))
        except PackError as error:
            return failure(error)
        except OSError as error:
            # The file name in it may be outside the root, so it is not included.
            return failure(PackError("system", (error.strerror or "input or output error").lower()))

    async def shutdown(self) -> None:
        """Close the root."""
        if self._place is not None:
            self._place.folder.close()


def open_packs(
    names: Sequence[str],
    root: Path | None,
    *,
    allow_broad_root: bool = False,
    reaper: Reaper | None = None,
    own_files: frozenset[Path] = frozenset(),
) -> Pack:
    """The tools of the named packs, on `root`; none of them writes one of `own_files` (K19).

    Raises:
        UsageError: there is no such pack, what it needs is not installed, or the root is no
            folder, or broader than was allowed.
    """
    unknown = [name for name in names if name not in PACKS]
    if unknown:
        hint = f"there are: {', '.join(PACKS)}"
        raise UsageError(f"there is no tool pack `{unknown[0]}`", hint=hint)
    for name in names:
        _check_installed(name)
    if root is None:
        return Pack({}, None)
    resolved = _checked_root(root, allow_broad_root=allow_broad_root)
    listed: dict[str, PackTool] = {}
    for name in names:
        listed.update({tool.name: tool for tool in import_module(PACKS[name]).TOOLS})
    older = {
        old: replace(listed[new], name=old, unlisted=True, older_of=new)
        for old, new in OLDER_NAMES.items()
        if new in listed
    }
    return Pack(listed | older, Workspace(Folder(resolved), resolved, reaper, own_files))


def _check_installed(name: str) -> None:
    library, extra = NEEDS.get(name, ("", ""))
    if library and find_spec(library) is None:
        raise UsageError(
            f"the tool pack `{name}` needs `{library}`, which is not installed",
            hint=f"pip install 'aish-pipelines[{extra}]'",
        )


def _checked_root(root: Path, *, allow_broad_root: bool) -> Path:
    try:
        resolved = root.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError(f"the root folder `{root}` does not exist") from None
    if not resolved.is_dir():
        raise UsageError(f"the root `{root}` is not a folder")
    if not allow_broad_root and resolved in _broad_folders():
        raise UsageError(
            f"the root `{root}` is everything or a home folder",
            hint="name a project folder, or pass --allow-broad-root",
        )
    return resolved


def _broad_folders() -> frozenset[Path]:
    """Folders with so much content that using one is probably a mistake."""
    folders = [Path("/"), Path(os.path.expanduser("~"))]  # ruff: ignore[os-path-expanduser] - never raises
    with suppress(KeyError):
        # HOME may differ, and be empty in a container.
        folders.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return frozenset(folder.resolve() for folder in folders)
