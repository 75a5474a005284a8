"""Environment, sandbox and folder of commands of the packs `shell` and `proc`."""

import errno
import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from functools import cache, partial
from itertools import islice
from pathlib import Path

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import frozen, slotted
from aish.core.phrases import first_of
from aish.core.text import for_line
from aish.packs.command_options import ProcOptions, ShellOptions
from aish.packs.environment_file import read_environment
from aish.packs.framework.pack import PackContext
from aish.packs.pack_error import PackError
from aish.packs.workspace.deny_list import (
    ANYWHERE,
    is_denied_in_git,
    is_denied_name,
    is_git,
    is_protected,
)
from aish.packs.workspace.workspace import Workspace
from aish.system.files import (
    logins_folder,
    private_folder,
    runtime_folder,
    runtime_folders,
    state_folder,
)
from aish.system.globs import comparable_name, is_autorun, may_be_autorun
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
MOST_LOOKED_AT = 20_000
"""Entries of the root that are looked at for files that stay read-only in bubblewrap."""
_MOST_MOUNTS = 1_000
"""Mounts of a command: what bubblewrap takes for them grows with their square."""
_SHOWN = 5
_NO_GIT_FILES = ("objects", "refs", "logs", "hooks", "lfs")
"""Folders of git without configuration, and perhaps with very many files."""
_OURS = (Path(__file__).resolve().parents[1], Path(sys.prefix).resolve())
"""What runs outside of the sandbox: the program itself, and its Python."""


@frozen
class Protected:
    """Paths in the root that no command may change.

    `kept` stays read-only, without what is in its folders; what packs do not show either is
    `hidden`. The folders `above`, from the root on, stay where they are: moved away with what is in
    them, they could be made anew with other files.
    `names` are all, with the targets of links, which cannot be kept. `complete` says whether
    everything was looked at, and is kept.
    """

    kept: tuple[Path, ...]
    hidden: tuple[Path, ...]
    above: tuple[Path, ...]
    names: frozenset[tuple[Path, str]]
    complete: bool


@slotted
class PackCommands:
    """Starts the commands of a pack.

    `environment` is what a command gets; `temporary` is its folder for temporary files where the
    sandbox has no private `/tmp`. `recorded` are files that the run itself writes. `running` are
    the commands in bubblewrap, and `known` is what was there before them.
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
        """Choose the sandbox for commands, once."""
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
                _check_logins(self.workspace)
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
        """Look for what a command created although no tool may; to be called when it has ended.

        No mount keeps a file that is not there from being created: a notice names those that were.

        Returns:
            Those of them that the run is made of.
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
                f" read-only than {_MOST_MOUNTS:,} mounts keep so: only the first ones are"
            )
            self.notice("sandbox_incomplete", text)
        words = bubblewrap_words(
            self.environment,
            self.workspace.root,
            protected.kept,
            os.readlink(f"/proc/self/fd/{folder}"),  # ruff: ignore[os-readlink] - no file of a disk is touched
            network=self.network,
            in_place=protected.above,
            hidden=(*protected.hidden, *_own_folders(self.workspace)),
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
) -> AsyncGenerator[PackCommands]:
    """Open a starter of commands; at its end nothing of them is left."""
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


def _check_logins(workspace: Workspace) -> None:
    """Check that a command that reads all of the root reads no login of a person there.

    Raises:
        PackError: it would.
    """
    logins = logins_folder().resolve()
    if workspace.root in logins.parents and logins.is_dir():
        message = (
            "no command is started: it could read the logins of persons, which are below the root,"
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


def _own_paths(workspace: Workspace) -> list[Path]:
    """The paths in the root that the run, and the program itself, are made of."""
    own = (*workspace.own_files, *_OURS)
    return [path for path in own if workspace.root in path.parents and path.exists()]


def _own_folders(workspace: Workspace) -> Iterator[Path]:
    """The folders of runs, tokens and sockets outside of the root, or not directly in it."""
    folders = {*workspace.root.parents, *(path.parent for path in workspace.own_files)}
    for path in (*(folder / ".aish" for folder in folders), *runtime_folders(), state_folder()):
        if path.is_dir() and not workspace.root.is_relative_to(path):
            yield path


def _secrets_in_git(folder: Path) -> Iterator[Path]:
    """The files below a git folder that packs hide."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and is_denied_in_git(entry.name):
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _NO_GIT_FILES:
                yield from _secrets_in_git(Path(entry.path))


def _find_protected(workspace: Workspace) -> Protected:
    """Look through the root, its upper folders first."""
    own = _own_paths(workspace)
    names = {(path, "") for path in own}
    paths: list[Path] = []
    secrets: list[Path] = []
    waiting: deque[tuple[str, ...]] = deque([()])
    looked_at, complete = 0, True
    while waiting and complete:
        above = waiting.popleft()
        try:
            entries = list(os.scandir(workspace.root.joinpath(*above)))
        except OSError:  # removed meanwhile, or not readable: then nobody writes in it
            continue
        looked_at += len(entries)
        complete = looked_at <= MOST_LOOKED_AT
        for entry in entries if complete else ():
            if _stays_as_it_is((*above, entry.name)):
                names.add((Path(entry.path), _target(entry)))
                if not entry.is_symlink():
                    paths.append(Path(entry.path))
                if entry.is_symlink() and is_denied_name(entry.name):
                    secrets += filter(Path.is_file, [Path(entry.path).resolve()])
                elif is_git((entry.name,)):
                    secrets += islice(_secrets_in_git(Path(entry.path)), _MOST_MOUNTS)
            elif entry.is_dir(follow_symlinks=False) and Path(entry.path) != workspace.runs:
                waiting.append((*above, entry.name))
    kept, folders = _within_limit(workspace.root, [*own, *paths])
    complete = complete and len(kept) + len(secrets) <= _MOST_MOUNTS
    complete = complete and len(kept) == len(own) + len(paths)
    closed = (path for path in kept if is_denied_name(path.name) or path == workspace.runs)
    hidden = dict.fromkeys(closed)
    kept = tuple(path for path in kept if path not in hidden)
    return Protected(kept, (*hidden, *secrets[:_MOST_MOUNTS]), folders, frozenset(names), complete)


def _within_limit(root: Path, paths: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The first of some paths, and all folders above them below the root."""
    mounts: list[Path] = []
    folders: set[Path] = set()
    for path in paths:
        more = {above for above in path.parents if root in above.parents} - folders
        if len(mounts) + len(folders) + len(more) >= _MOST_MOUNTS:
            break
        mounts.append(path)
        folders |= more
    return tuple(mounts), tuple(sorted(folders))


def _target(entry: "os.DirEntry[str]") -> str:
    try:
        return str(Path(entry.path).readlink()) if entry.is_symlink() else ""
    except OSError:  # removed meanwhile
        return ""


def _has_changed_since(path: Path, moment: float) -> bool:
    try:
        return path.lstat().st_ctime >= moment
    except OSError:  # removed meanwhile
        return False


@cache
def _pattern_of_denied_names() -> re.Pattern[str]:
    """Return one pattern for all denied names, because thousands of names are matched."""
    parts = {max(glob.split("*"), key=len) for glob in (*ANYWHERE, "git~", ".git")}
    return re.compile("|".join(map(re.escape, sorted(parts))))


def _stays_as_it_is(segments: Sequence[str]) -> bool:
    """Return true if a path is protected, or run by other programs."""
    name = segments[-1]
    plain = comparable_name(name)
    if _pattern_of_denied_names().search(plain) and is_protected((name,)):
        return True
    path = "/".join(segments)
    return may_be_autorun(plain) and (is_autorun(path) or is_autorun(f"{path}/file"))
