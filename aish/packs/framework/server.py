"""The packs of one server, opened on its root: the in-process server (K1, K3, K4, K21)."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.pack_options import PackOptions
from aish.packs.catalogue import PACKS, tool_marks
from aish.packs.framework.pack import Lifespan, Pack, PackContext, PackServices, PackTool
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.tool_results import failure, success
from aish.packs.workspace.confined_path import Folder, checked_root
from aish.packs.workspace.deny_list import is_denied
from aish.packs.workspace.workspace import Workspace
from aish.system.schema.check import check

SHUTDOWN_SECONDS = 5.0
"""How long one pack may take to close what it opened (K21)."""


class UnknownToolError(Exception):
    """There is no tool with this name: a JSON-RPC error, not a result (K3)."""


@frozen
class _OpenedTool:
    tool: PackTool
    pack: str


class _Life:
    """The task that one pack is open in: it may keep tasks and limits of its own there."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope(shield=True)
        self.ready = anyio.Event()
        self.failure: Exception | None = None
        self.over = anyio.Event()
        self.closed = anyio.Event()


class OpenPacks:
    """The tools of several packs; `start` opens what they share, `shutdown` closes it."""

    def __init__(
        self,
        packs: Mapping[str, Pack],
        workspace: Workspace | None,
        services: PackServices,
        options: PackOptions,
    ) -> None:
        self._packs = {
            name: pack for name, pack in packs.items() if workspace or pack.root != "needed"
        }
        self._tools = {
            tool.name: _OpenedTool(tool, name)
            for name, pack in self._packs.items()
            for tool in pack.tools
        }
        self._workspace = workspace
        self._services = services
        self._options = options
        self._states: dict[str, Any] = {}
        self._lives: dict[str, _Life] = {}
        self._starting = anyio.Lock(fast_acquire=True)
        self._is_started = False

    @property
    def tools(self) -> Mapping[str, PackTool]:
        """The tools by name, without older names."""
        return {name: opened.tool for name, opened in self._tools.items()}

    async def start(self) -> None:
        """Open every pack, in order; what was opened is closed again if one fails.

        Raises:
            UsageError: an option of a pack cannot be used.
        """
        async with self._starting:
            if self._is_started:
                return
            self._is_started = True
            try:
                for name, pack in self._packs.items():
                    if pack.lifespan is None:
                        self._states[name] = self._workspace
                    else:
                        await self._open(name, pack.lifespan)
            except BaseException:
                await self.shutdown()
                raise

    async def call(self, name: str, arguments: JsonObject) -> dict[str, JsonValue]:
        """A `CallToolResult`; it contains every error of the tool itself.

        Raises:
            UnknownToolError: there is no such tool.
        """
        opened = self._tools.get(name)
        if opened is None:
            raise UnknownToolError(f"unknown tool: {name}")
        await self.start()
        problems = check(opened.tool.input_schema, arguments)
        if problems:
            message = "; ".join(str(problem) for problem in problems[:5])
            return failure(PackError("bad_arguments", message))
        return await self._result(opened, arguments)

    async def shutdown(self) -> None:
        """Close every pack in reverse order, and the root, even if one fails."""
        self._is_started = True
        with anyio.CancelScope(shield=True):
            for name in reversed(tuple(self._packs)):
                self._states.pop(name, None)
                if (life := self._lives.pop(name, None)) is not None:
                    await self._close(name, life)
        if self._workspace is not None:
            self._workspace.folder.close()

    async def _result(self, opened: _OpenedTool, given: JsonObject) -> dict[str, JsonValue]:
        tool = opened.tool
        if opened.pack not in self._states:
            return failure(PackError("failed", "the tools of this server are closed"))
        place = self._workspace
        if self._packs[opened.pack].root != "none" and place and not place.folder.is_at(place.root):
            said = "the root was removed or replaced since it was opened, so nothing was done"
            return failure(PackError("failed", f"{said}; a reload or a new start opens it again"))
        try:
            return success(await tool.function(self._states[opened.pack], **given))
        except PackError as error:
            known = error.code if error.code in tool.codes else "failed"
            told = PackError(known, error.message, **error.details)
            return failure(told.followed_by(error.trailer))
        except OSError as error:
            # The file name in it may be outside the root, so it is not included.
            return failure(PackError("system", (error.strerror or "input or output error").lower()))

    async def _open(self, name: str, lifespan: Lifespan) -> None:
        """Open one pack; where that is cancelled, `shutdown` knows of it."""
        self._lives[name] = life = _Life()
        self._services.tasks.start_soon(self._live, name, lifespan, life)
        await life.ready.wait()
        if life.failure is not None:
            raise life.failure

    async def _live(self, name: str, lifespan: Lifespan, life: _Life) -> None:
        """Keep one pack open until it is shut down."""
        context = PackContext(self._services, self._workspace, getattr(self._options, name, None))
        try:
            with life.scope:
                async with lifespan(context) as state:
                    self._states[name] = state
                    life.ready.set()
                    await life.over.wait()
        except Exception as error:
            if not life.ready.is_set():
                life.failure = error
                return
            if not life.over.is_set():
                raise
            self._services.notice("pack_shutdown", f"pack `{name}` failed to close: {error}")
        finally:
            life.ready.set()
            life.closed.set()

    async def _close(self, name: str, life: _Life) -> None:
        life.over.set()
        if not life.ready.is_set():
            life.scope.cancel()
        with anyio.move_on_after(SHUTDOWN_SECONDS) as limit:
            await life.closed.wait()
        if limit.cancelled_caught:
            life.scope.cancel()
            seconds = f"{SHUTDOWN_SECONDS:g} seconds"
            self._services.notice("pack_shutdown", f"pack `{name}` did not close within {seconds}")


def open_packs(
    names: Sequence[str],
    root: Path | None,
    services: PackServices,
    *,
    options: PackOptions | None = None,
    allow_broad_root: bool = False,
) -> OpenPacks:
    """The tools of the named packs, on `root`; those that need a root are missing without one.

    Raises:
        UsageError: there is no such pack, what it needs is not installed, or the root is no
            folder, or broader than was allowed.
    """
    options = options or PackOptions()
    unknown = [name for name in names if name not in PACKS]
    if unknown:
        hint = f"there are: {', '.join(PACKS)}"
        raise UsageError(f"there is no tool pack `{unknown[0]}`", hint=hint)
    for name in names:
        _check_installed(name)
    packs: dict[str, Pack] = {name: import_module(PACKS[name].module).PACK for name in names}
    workspace = None
    if root is not None:
        resolved = checked_root(root, allow_broad_root=allow_broad_root)
        runs = _runs_below(resolved, services.run_folder)
        workspace = Workspace(
            Folder(resolved, deny_names=options.deny_names),
            resolved,
            services.worker,
            services.reaper,
            services.own_files if runs is None else services.own_files | {runs},
            options.c.macros,
            runs,
        )
    return OpenPacks(packs, workspace, services, options)


def _runs_below(root: Path, run_folder: Path | None) -> Path | None:
    """The folder of runs below a root that has a name of its own (`--run-dir`).

    Where the root is in it, only the folder of this run. Journals have the answers of people (T38).
    """
    if run_folder is None:
        return None
    folder = Path(os.path.realpath(run_folder))
    runs = folder if root.is_relative_to(folder.parent) else folder.parent
    is_named = root in runs.parents and not is_denied(runs.relative_to(root).parts)
    return runs if is_named else None


def input_schema_of(name: str) -> JsonObject | None:
    """The schema of a pack tool's arguments, by the tool's own name.

    `None` if there is no such tool, or a library of its pack is missing.
    """
    marks = tool_marks().get(name)
    if marks is None or not all(map(is_installed, PACKS[marks.pack].needs)):
        return None
    pack: Pack = import_module(PACKS[marks.pack].module).PACK
    return next(one.input_schema for one in pack.tools if one.name == name)


def _check_installed(name: str) -> None:
    entry = PACKS[name]
    missing = next((library for library in entry.needs if not is_installed(library)), None)
    if missing is not None:
        raise UsageError(
            f"the tool pack `{name}` needs `{missing}`, which is not installed",
            hint=f"pip install 'aish-pipelines[{entry.extra}]'",
        )
