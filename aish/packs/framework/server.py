"""The packs of one server, opened on its root."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue
from aish.core.options import PackOptions, hidden_names
from aish.packs.catalogue import PACKS, check_pack_name, tool_marks
from aish.packs.framework.pack import Lifespan, Pack, PackContext, PackServices, PackTool
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.tool_results import failure, success
from aish.packs.workspace.confined_path import Folder, resolve_root
from aish.packs.workspace.deny_list import is_denied
from aish.packs.workspace.workspace import Workspace
from aish.system.foreign_output import foreign_output
from aish.system.pack_index import PackLoadError
from aish.system.schema.check import PlainPart, check, plain_part

SHUTDOWN_SECONDS = 5.0
"""How long one pack may take to close what it opened."""


class _Life:
    """The task in which a pack is open, with its own tasks and limits."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope(shield=True)
        self.ready = anyio.Event()
        self.failure: BaseException | None = None
        self.over = anyio.Event()
        self.closed = anyio.Event()


class OpenPacks:
    """The tools of several packs; `start` opens their shared state, `shutdown` closes it."""

    def __init__(
        self,
        packs: Mapping[str, Pack],
        workspace: Workspace | None,
        services: PackServices,
        options: PackOptions,
        outside: Sequence[str] = (),
    ) -> None:
        self._packs = {
            name: pack for name, pack in packs.items() if workspace or pack.root != "needed"
        }
        self._outside = outside
        self._owners: dict[str, str] = {}
        self.tools: dict[str, PackTool] = {}
        """The tools by name, without older names."""
        self._plain: dict[str, PlainPart] = {}
        for name, pack in self._packs.items():
            self._add_tools(name, pack)
        self._workspace = workspace
        self._services = services
        self._options = options
        self._states: dict[str, Any] = {}
        self._lives: dict[str, _Life] = {}
        self._starting = anyio.Lock(fast_acquire=True)
        self._is_started = self._is_open = False
        self._failure: PackLoadError | None = None

    def _add_tools(self, name: str, pack: Pack) -> None:
        for tool in pack.tools:
            self._owners[tool.name] = name
            self.tools[tool.name] = tool

    async def start(self) -> None:
        """Open every pack in order; if one fails, close those that were opened.

        Raises:
            UsageError: an option of a pack cannot be used.
            PackLoadError: a pack of a distribution cannot be loaded or opened.
        """
        async with self._starting:
            if self._failure is not None:
                raise self._failure
            if self._is_started:
                return
            self._is_started = True
            try:
                for name in self._outside:
                    await self._load(name)
                for name, pack in self._packs.items():
                    if pack.lifespan is None:
                        self._states[name] = self._workspace
                    else:
                        await self._open(name, pack.lifespan)
            except BaseException as error:
                self._failure = error if isinstance(error, PackLoadError) else None
                await self.shutdown()
                raise
            self._is_open = True

    async def _load(self, name: str) -> None:
        """Load a pack of a distribution.

        Raises:
            PackLoadError: it cannot be loaded, needs a root, or redefines a tool of another pack.
        """
        from aish.packs.framework.outside import load_pack, pack_error

        pack = await anyio.to_thread.run_sync(load_pack, name, abandon_on_cancel=True)
        if pack.root == "needed" and self._workspace is None:
            hint = "`root: .` is the folder of this file"
            raise pack_error(name, "needs a `root`, the folder for its tools", hint)
        if twice := next((tool.name for tool in pack.tools if tool.name in self.tools), None):
            other = self._owners[twice]
            raise pack_error(name, f"has the tool `{twice}`, and so has the pack `{other}`")
        self._packs[name] = pack
        self._add_tools(name, pack)

    async def call(self, name: str, arguments: JsonObject) -> dict[str, JsonValue]:
        """Call a tool; errors of the tool are in its `CallToolResult`.

        Raises:
            KeyError: there is no such tool: a JSON-RPC error, not a result.
        """
        tool = self.tools[name]
        if not self._is_open:
            await self.start()
        plain = self._plain.get(name)
        if plain is None:
            plain = self._plain[name] = plain_part(tool.input_schema)
        if not plain.admits(arguments):
            problems = check(tool.input_schema, arguments)
            if problems:
                message = "; ".join(str(problem) for problem in problems[:5])
                return failure(PackError("bad_arguments", message))
        return await self._result(tool, arguments)

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

    async def _result(self, tool: PackTool, arguments: JsonObject) -> dict[str, JsonValue]:
        owner = self._owners[tool.name]
        if owner not in self._states:
            return failure(PackError("failed", "the tools of this server are closed"))
        place = self._workspace
        if self._packs[owner].root != "none" and place and not place.folder.is_at(place.root):
            said = "the root was removed or replaced since it was opened, so nothing was done"
            return failure(PackError("failed", f"{said}; a reload or a new start opens it again"))
        try:
            if owner not in self._outside:
                return success(await tool.function(self._states[owner], **arguments))
            with foreign_output():
                result = success(await tool.function(self._states[owner], **arguments))
            # What is no JSON fails here, and not where it is sent or written.
            return _as_json(result)
        except SystemExit as error:
            raise RuntimeError(f"it wanted to exit with {error.code}") from error
        except PackError as error:
            known = error.code if error.code in tool.codes else "failed"
            pack_error = PackError(known, error.message, **error.details)
            return failure(pack_error.with_trailer(error.trailer))
        except OSError as error:
            # The file name in it may be outside the root, so it is not included.
            return failure(PackError("system", (error.strerror or "input or output error").lower()))

    async def _open(self, name: str, lifespan: Lifespan) -> None:
        """Open one pack; if that is cancelled, `shutdown` closes it."""
        self._lives[name] = life = _Life()
        self._services.tasks.start_soon(self._live, name, lifespan, life)
        await life.ready.wait()
        if life.failure is not None:
            raise life.failure

    async def _live(self, name: str, lifespan: Lifespan, life: _Life) -> None:
        """Keep one pack open until it is shut down."""
        kind = self._packs[name].options
        options = self._options.get(name) or (None if kind is None else kind())
        try:
            with life.scope, foreign_output() if name in self._outside else nullcontext():
                async with self._enter(name, lifespan, options) as state:
                    self._states[name] = state
                    life.ready.set()
                    await life.over.wait()
        except (Exception, SystemExit) as error:
            if not life.ready.is_set():
                life.failure = self._open_error(name, error)
                return
            if not life.over.is_set() and name not in self._outside:
                raise
            self._states.pop(name, None)
            verb = "failed to close" if life.over.is_set() else "ended"
            self._services.notice("pack_shutdown", f"pack `{name}` {verb}: {error}")
        finally:
            life.ready.set()
            life.closed.set()

    def _enter(
        self, name: str, lifespan: Lifespan, options: Any
    ) -> AbstractAsyncContextManager[Any]:
        if name not in self._outside:
            return lifespan(PackContext(self._services, self._workspace, options))
        from aish.packs.framework.outside import call_lifespan

        return call_lifespan(name, lifespan, self._services, self._workspace, options)

    def _open_error(self, name: str, error: BaseException) -> BaseException:
        if name not in self._outside:
            return error
        from aish.packs.framework.outside import pack_error

        what = f"cannot be opened: {type(error).__name__}: {error}"
        return pack_error(name, what, getattr(error, "hint", None))

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
    """Prepare the named packs on `root`; without a root, tools that need one are absent.

    Packs that are not built in are loaded when the packs are started.

    Raises:
        UsageError: there is no such pack, its requirements are not installed, or the root is no
            folder, or broader than allowed.
    """
    options = options or {}
    for name in names:
        check_pack_name(name)
    builtin = [name for name in names if name in PACKS]
    for name in builtin:
        _check_installed(name)
    packs: dict[str, Pack] = {name: import_module(PACKS[name].module).PACK for name in builtin}
    workspace = None
    if root is not None:
        resolved = resolve_root(root, allow_broad_root=allow_broad_root)
        runs = _runs_below(resolved, services.run_folder)
        workspace = Workspace(
            Folder(resolved, deny_names=hidden_names(options)),
            resolved,
            services.worker,
            services.reaper,
            services.own_files if runs is None else services.own_files | {runs},
            getattr(options.get("c"), "macros", ()),
            runs,
        )
    outside = [name for name in names if name not in PACKS]
    return OpenPacks(packs, workspace, services, options, outside)


def _as_json(result: dict[str, JsonValue]) -> dict[str, JsonValue]:
    copy: dict[str, JsonValue] = json.loads(json.dumps(result, allow_nan=False))
    return copy


def _runs_below(root: Path, run_folder: Path | None) -> Path | None:
    """Return the folder of runs below a root if it has a name of its own (`--run-dir`).

    If the root is inside it, only the folder of this run. Journals contain the answers of people.
    """
    if run_folder is None:
        return None
    folder = Path(os.path.realpath(run_folder))
    runs = folder if root.is_relative_to(folder.parent) else folder.parent
    is_named = root in runs.parents and not is_denied(runs.relative_to(root).parts)
    return runs if is_named else None


def input_schema_of(name: str) -> JsonObject | None:
    """Return the schema of a pack tool's arguments, by the tool's own name.

    `None` if there is no such tool, or a library of its pack is missing.
    """
    marks = tool_marks().get(name)
    if marks is None or not all(map(is_installed, PACKS[marks.pack].needs)):
        return None
    pack: Pack = import_module(PACKS[marks.pack].module).PACK
    return next(tool.input_schema for tool in pack.tools if tool.name == name)


def _check_installed(name: str) -> None:
    entry = PACKS[name]
    missing = next((library for library in entry.needs if not is_installed(library)), None)
    if missing is not None:
        raise UsageError(
            f"the tool pack `{name}` needs `{missing}`, which is not installed",
            hint=f"pip install 'aish-pipelines[{entry.extra}]'",
        )
