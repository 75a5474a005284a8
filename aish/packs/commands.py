"""How the packs `shell` and `proc` start commands: environment, sandbox, folder (K48, K52, K53)."""

import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import slotted
from aish.core.pack_options import ProcOptions, ShellOptions
from aish.packs.environment_file import read_environment
from aish.packs.framework.pack import PackContext
from aish.packs.pack_error import PackError
from aish.packs.workspace.deny_list import ANYWHERE, is_protected
from aish.packs.workspace.workspace import Workspace
from aish.system.globs import AUTORUN_FILES, comparable_name, is_autorun
from aish.system.process.child import child_environment
from aish.system.process.sandbox import (
    NoSandboxError,
    SandboxChoice,
    SandboxKind,
    bubblewrap_words,
    choose_sandbox,
    landlock_rules,
)
from aish.system.process.supervisor import Command, Supervised, Supervisor, hide_process

COMMAND_CODES = ("bad_path", "outside", "not_found", "not_a_folder", "not_installed", "unavailable")
MOST_LOOKED_AT = 20_000
"""Entries of the root that are looked at for files that stay read-only in bubblewrap."""
_MOST_READ_ONLY = 1_000
_OURS = (Path(__file__).resolve().parents[1], Path(sys.prefix).resolve())
"""What runs outside of the sandbox: the program itself, and its Python."""


@slotted
class Commands:
    """Starts the commands of a pack.

    `environment` is what a command gets; `temporary` is its folder for temporary files where the
    sandbox has no private `/tmp`.
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

    async def sandbox(self) -> SandboxKind:
        """What confines a command here; tried once.

        Raises:
            UsageError: the sandbox that was asked for does not work.
        """
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
        """Start a command in a folder below the root.

        Raises:
            PackError: there is no such folder, or the command cannot be started.
        """
        kind = await self.sandbox()
        with self.workspace.folder.folder(cwd) as folder:
            env = {**self.environment, **(extra or {})}
            if kind == "bubblewrap":
                command = await self._in_bubblewrap(argv, folder, env)
            elif kind == "landlock":
                assert self.temporary is not None
                rules = landlock_rules(self.workspace.root, self.temporary, env)
                env.setdefault("TMPDIR", str(self.temporary))
                command = Command(argv, env, landlock=rules)
            else:
                command = Command(argv, env)
            try:
                return await self.supervisor.start(command, folder=folder, streams=streams)
            except OSError as error:
                raise _not_started(argv[0], error) from None

    async def _in_bubblewrap(
        self, argv: Sequence[str], folder: int, env: Mapping[str, str]
    ) -> Command:
        program = argv[0]
        if "/" not in program and shutil.which(program, path=env.get("PATH", "")) is None:
            raise PackError("not_installed", f"there is no program `{program}` in PATH")
        protected, complete = await anyio.to_thread.run_sync(_protected_paths, self.workspace)
        if not complete and not self.noticed:
            self.noticed = True
            text = (
                f"the root has more than {MOST_LOOKED_AT:,} entries: of files that are to stay"
                " read-only for commands, only those among the first are"
            )
            self.notice("sandbox_incomplete", text)
        words = bubblewrap_words(
            self.environment,
            self.workspace.root,
            protected,
            os.readlink(f"/proc/self/fd/{folder}"),  # ruff: ignore[os-readlink] - no file of a disk is touched
            network=self.network,
            in_place=_folders_in_place(self.workspace),
        )
        return Command((*words, *argv), env, wrapped=True)

    def close(self) -> None:
        """End what is left, and remove the folder for temporary files."""
        self.supervisor.close()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            if self.workspace.reaper is not None:
                self.workspace.reaper.disown_folder(self.temporary)
            self.temporary = None


@asynccontextmanager
async def open_commands(
    context: PackContext, options: ShellOptions | ProcOptions
) -> AsyncGenerator[Commands]:
    """What a pack starts commands with; at its end nothing of them is left (K21).

    Raises:
        UsageError: the environment file is not valid, or the sandbox that is asked for does not
            work here.
    """
    workspace = context.workspace
    assert workspace is not None, "the packs `shell` and `proc` need a root"
    environment = child_environment({}, context.services.environ)
    if options.env_file is not None:
        environment = read_environment(options.env_file, environment)
    commands = Commands(
        workspace,
        Supervisor(workspace.reaper),
        environment,
        options.sandbox,
        options.network,
        context.services.notice,
    )
    hide_process()
    try:
        if options.sandbox != "auto" or not options.network:
            await commands.sandbox()
        yield commands
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(commands.close)


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


def _own_paths(workspace: Workspace) -> list[Path]:
    """The paths in the root that the run, and the program itself, are made of."""
    own = (*workspace.own_files, *_OURS)
    return [path for path in own if workspace.root in path.parents and path.exists()]


def _folders_in_place(workspace: Workspace) -> list[Path]:
    """The folders between the root and those paths, from above.

    Moved away with what is in them, they could be made anew with other files (K19).
    """
    root = workspace.root
    found = {above for path in _own_paths(workspace) for above in path.parents}
    return sorted(above for above in found if root in above.parents)


def _protected_paths(workspace: Workspace) -> tuple[list[Path], bool]:
    """The paths in the root that stay read-only in bubblewrap, and whether all were looked at.

    Folders are named without what is in them.
    """
    found = _own_paths(workspace)
    waiting: list[tuple[str, ...]] = [()]
    looked_at = 0
    while waiting:
        above = waiting.pop(0)
        try:
            entries = list(os.scandir(workspace.root.joinpath(*above)))
        except OSError:  # removed meanwhile, or not readable: then nobody writes in it
            continue
        looked_at += len(entries)
        if looked_at > MOST_LOOKED_AT:
            return found[:_MOST_READ_ONLY], False
        for entry in entries:
            if _stays_as_it_is(entry.name):
                if not entry.is_symlink():
                    found.append(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append((*above, entry.name))
    return found[:_MOST_READ_ONLY], len(found) <= _MOST_READ_ONLY


@cache
def _telling_parts() -> re.Pattern[str]:
    """What the name of a file that stays read-only contains: thousands of names are looked at."""
    globs = [
        *ANYWHERE,
        *(part for glob in AUTORUN_FILES for part in glob.split("/")),
        "git~",
        ".git",
    ]
    parts = {max(glob.split("*"), key=len) for glob in globs} - {""}
    return re.compile("|".join(map(re.escape, sorted(parts))))


def _stays_as_it_is(name: str) -> bool:
    """Whether a file or folder of this name is protected (K5), or run by other programs (K19)."""
    if not _telling_parts().search(comparable_name(name)):
        return False
    return is_protected((name,)) or is_autorun(name) or is_autorun(f"{name}/file")
