"""Environment, sandbox and folders of commands of the packs `shell` and `proc`."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from functools import partial
from pathlib import Path

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import slotted
from aish.core.phrases import first_of
from aish.core.text import for_line
from aish.packs.command_options import ProcOptions, ShellOptions
from aish.packs.environment_file import read_environment
from aish.packs.framework.pack import PackContext
from aish.packs.pack_error import PackError
from aish.packs.protected_paths import MOST_LOOKED_AT, MOST_MOUNTS, Protected, find_protected
from aish.packs.workspace.workspace import Workspace
from aish.system.files import (
    hidden_folders,
    private_folder,
    runtime_folder,
    runtime_folders,
    state_folder,
)
from aish.system.platform.opens import path_of
from aish.system.process.child import child_environment, hide_process
from aish.system.process.sandbox import (
    NoSandboxError,
    SandboxChoice,
    SandboxKind,
    bubblewrap_words,
    choose_sandbox,
    landlock_rules,
)
from aish.system.process.supervisor import Command, Supervised, Supervisor

COMMAND_CODES = ("bad_path", "outside", "not_found", "not_a_folder", "not_installed", "unavailable")
_SHOWN = 5


@slotted
class PackCommands:
    """Starts the commands of a pack.

    `environment` is that of commands; `temporary` is their folder for temporary files if the
    sandbox has no private `/tmp`. `recorded` are files that the run itself writes. `running` are
    the commands in bubblewrap, and `known` are the files that existed before them.
    """

    workspace: Workspace
    supervisor: Supervisor
    environment: Mapping[str, str]
    choice: SandboxChoice
    network: bool
    notice: Callable[[str, str], None]
    kind: SandboxKind | None = None
    temporary: Path | None = None
    noticed: bool = False
    recorded: frozenset[Path] = frozenset()
    running: list[Supervised] = field(default_factory=list)
    known: frozenset[tuple[Path, str]] = frozenset()
    since: float = 0.0

    async def sandbox(self) -> SandboxKind:
        """Return the sandbox for commands, chosen once."""
        if self.kind is None:
            choose = partial(choose_sandbox, network=self.network)
            root = self.workspace.root
            try:
                kind = await anyio.to_thread.run_sync(choose, self.choice, self.environment, root)
            except NoSandboxError as error:
                hint = "`aish doctor` shows which sandboxes work here"
                raise UsageError(error.message, hint=hint) from None
            if kind == "landlock" and self.temporary is None:
                self.temporary = _temporary_folder(self.workspace)
            self.kind = kind
        return self.kind

    async def start(
        self,
        argv: Sequence[str],
        cwd: str,
        streams: tuple[int, int, int],
        extra: Mapping[str, str] | None = None,
    ) -> Supervised:
        """Start a command in a folder below the root."""
        kind = await self.sandbox()
        with self.workspace.folder.folder(cwd) as folder:
            env = {**self.environment, **(extra or {})}
            if kind == "bubblewrap":
                command = await self._in_bubblewrap(argv, folder, env)
            elif kind == "landlock":
                assert self.temporary is not None
                _check_hidden(self.workspace)
                rules = landlock_rules(self.workspace.root, self.temporary, env)
                env.setdefault("TMPDIR", str(self.temporary))
                command = Command(argv, env, landlock=rules)
            else:
                command = Command(argv, env)
            try:
                started = await self.supervisor.start(command, folder=folder, streams=streams)
            except OSError as error:
                raise _not_started(argv[0], error) from None
            if kind == "bubblewrap":
                self.running.append(started)
            return started

    async def find_created_files(self, command: Supervised) -> tuple[str, ...]:
        """Look for protected files that a command has created; call this when it has ended.

        No mount can prevent the creation of a missing file, so a notice names new ones.

        Returns:
            The new files that the run itself uses.
        """
        if command not in self.running:
            return ()
        self.running.remove(command)
        with anyio.CancelScope(shield=True):
            found = await anyio.to_thread.run_sync(_find_protected, self.workspace)
        new = {path for path, _ in found.names - self.known} - self.recorded
        if not found.complete:  # other files than before may have been looked at
            new = {path for path in new if _has_changed_since(path, self.since)}
        self.known |= found.names
        shown = [f"`{for_line(str(one.relative_to(self.workspace.root)))}`" for one in sorted(new)]
        if shown:
            text = (
                "while a command ran, files were created that are read-only for commands if they"
                f" exist: {first_of(shown, _SHOWN)}"
            )
            self.notice("protected_created", text)
        own = sorted(new & self.workspace.own_files)
        return tuple(str(path.relative_to(self.workspace.root)) for path in own)

    async def _in_bubblewrap(
        self, argv: Sequence[str], folder: int, env: Mapping[str, str]
    ) -> Command:
        program = argv[0]
        if "/" not in program and shutil.which(program, path=env.get("PATH", "")) is None:
            raise PackError("not_installed", f"there is no program `{program}` in PATH")
        since = time.time()
        protected = await anyio.to_thread.run_sync(_find_protected, self.workspace)
        if not self.running:
            self.known, self.since = protected.names, since
        if not protected.complete and not self.noticed:
            self.noticed = True
            text = (
                f"the root has more than {MOST_LOOKED_AT:,} entries, or more files that are to stay"
                f" read-only than {MOST_MOUNTS:,} mounts keep so: only the first ones are"
            )
            self.notice("sandbox_incomplete", text)
        words = bubblewrap_words(
            self.environment,
            self.workspace.root,
            protected.kept,
            path_of(folder),
            network=self.network,
            in_place=protected.above,
            hidden=(*protected.hidden, *_own_folders(self.workspace)),
        )
        return Command((*words, *argv), env, wrapped=True)

    def close(self) -> None:
        """End remaining commands, and remove the folder for temporary files."""
        self.supervisor.close()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            if self.workspace.reaper is not None:
                self.workspace.reaper.disown_folder(self.temporary)
            self.temporary = None


@asynccontextmanager
async def open_commands(
    context: PackContext, options: ShellOptions | ProcOptions
) -> AsyncGenerator[PackCommands]:
    """Open a starter of commands; at its end all of them are ended."""
    workspace = context.workspace
    assert workspace is not None, "the packs `shell` and `proc` need a root"
    environment = child_environment({}, context.services.environ)
    if options.env_file is not None:
        environment = read_environment(options.env_file, environment)
    commands = PackCommands(
        workspace,
        Supervisor(workspace.reaper),
        environment,
        options.sandbox,
        options.network,
        context.services.notice,
        recorded=context.services.recorded_files,
    )
    hide_process()
    for folder in (runtime_folder(), state_folder()):
        # Where it is missing another process would make it while a command runs, that could see it.
        with suppress(OSError, UsageError):
            private_folder(folder)
    try:
        if options.sandbox != "auto" or not options.network:
            await commands.sandbox()
        yield commands
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(commands.close)


def _check_hidden(workspace: Workspace) -> None:
    """Check that commands that can read all of the root find no key, token or login of ours there.

    Raises:
        PackError: they would find one.
    """
    if any(workspace.root in folder.resolve().parents for folder in hidden_folders()):
        message = (
            "no command is started: it could read keys and logins that aish keeps below the root,"
            " and Landlock hides nothing there; bubblewrap does, or another root"
        )
        raise PackError("unavailable", message)


def _temporary_folder(workspace: Workspace) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="aish-"))
    if workspace.reaper is not None and "\n" not in str(folder):  # the reaper reads lines
        workspace.reaper.own_folder(folder)
    return folder


def _not_started(program: str, error: OSError) -> PackError:
    why = (error.strerror or os.strerror(error.errno or 0)).lower()
    if error.errno == errno.ENOENT:
        return PackError("not_installed", f"there is no program `{program}`")
    return PackError("unavailable", f"`{program}` cannot be started: {why}")


def _find_protected(workspace: Workspace) -> Protected:
    return find_protected(workspace.root, workspace.own_files, workspace.runs)


def _own_folders(workspace: Workspace) -> Iterator[Path]:
    """Return the folders of runs, tokens and sockets outside of the root, or not directly in it."""
    folders = {*workspace.root.parents, *(path.parent for path in workspace.own_files)}
    for path in (*(folder / ".aish" for folder in folders), *runtime_folders(), state_folder()):
        if path.is_dir() and not workspace.root.is_relative_to(path):
            yield path


def _has_changed_since(path: Path, moment: float) -> bool:
    try:
        return path.lstat().st_ctime >= moment
    except OSError:  # removed meanwhile
        return False
