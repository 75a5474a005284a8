"""Starts servers in a sandbox: chooses its kind, checks that it can be kept, composes it.

A sandbox that the file describes is a contract: what cannot be kept whole is an error before
anything starts. Only `auto` is best effort.
"""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from aish.config.model import ServerEntry, ServerSandbox
from aish.core.errors import UnavailableError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.core.text import for_line
from aish.mcp.transports.program_paths import (
    find_program,
    launcher_of,
    program_paths,
    unwanted_programs,
)
from aish.mcp.transports.settings import ServerConnection
from aish.net.destinations import (
    NAME_SERVER_SOCKETS,
    RESOLV_CONF,
    SandboxNetwork,
    parse_destination,
    resolve_network,
)
from aish.net.sandbox_relay import Refusal, SandboxRelay
from aish.packs.protected_paths import MOST_MOUNTS, find_protected
from aish.packs.workspace.confined_path import broad_folders
from aish.packs.workspace.deny_list import is_denied
from aish.system.files import (
    logins_folder,
    private_folder,
    runtime_folder,
    runtime_folders,
    state_folder,
)
from aish.system.platform.opens import open_place
from aish.system.process.child import Child, ChildProcess, child_of, hide_process
from aish.system.process.reaper import Reaper
from aish.system.process.sandbox import (
    FOLDERS_OF_HOME,
    KINDS,
    NAMES,
    PRIVATE_HOME,
    Kind,
    Mounts,
    NoSandboxError,
    server_rules,
    server_words,
    working_kind,
)
from aish.system.process.seccomp import has_filter, seccomp_filter
from aish.system.process.supervisor import (
    Command,
    NetworkNamespaceError,
    Supervised,
    Supervisor,
)
from aish.system.secrets.secrets import Secrets
from aish.system.task_group import task_group

_REPLACED = "a path in its sandbox was replaced meanwhile: it is not what the file names any more"
_MOST_ENTRIES = 1_000_000
"""Entries of the folders of one server that are looked at for files that it must not see."""
_SHOWN = 3
_OF_THE_KERNEL: Final = tuple(map(Path, ("/proc", "/sys", "/dev")))
_RUNTIME: Final = (Path("/run"), Path("/run/user"))
"""Folders of the sockets of all services; one of them may be given by its own folder."""
_NPM, _PYPI = "registry.npmjs.org", "pypi.org"
_OFFLINE: Final[Mapping[str, tuple[str, str]]] = {
    "npm_config_offline": ("true", _NPM),
    "npm_config_fetch_retries": ("0", _NPM),
    "UV_OFFLINE": ("1", _PYPI),
}
"""Without their registry these programs report an error at once; else npm waits for a minute."""
Refused = Callable[[str, Refusal], None]


@frozen
class Confinement:
    """Folder and relay of the sandbox of a server that is started.

    `home` is a folder to be removed at its end, `reaper` removes it if this process is killed.
    `relay`, which is to be served, carries its connections.
    """

    home: Path | None
    reaper: Reaper
    relay: SandboxRelay | None = None

    async def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
        if self.home is not None:
            remove = partial(shutil.rmtree, self.home, ignore_errors=True)
            await anyio.to_thread.run_sync(remove)
            self.reaper.disown_folder(self.home)


def describe_sandbox(sandbox: ServerSandbox, kind: str | None = None) -> str:
    """Describe what a server may use; `kind` is the one that was chosen.

    Paths are those of the file.
    """
    name = NAMES[kind] if kind is not None else NAMES.get(sandbox.kind, "confined")
    parts = [name, _folders("reads", sandbox.read), _folders("writes", sandbox.write)]
    if isinstance(sandbox.network, tuple):
        parts.append(f"reaches {' '.join(sandbox.network)}")
    else:
        parts.append("all of the network" if sandbox.network == "full" else "no network")
    if kind == "landlock":
        parts.append("no Unix sockets, no `/proc` of its child processes, no shared memory")
        if sandbox.best_effort:
            parts.append("files of keys in its folders not hidden")
    return ", ".join(parts)


def _folders(verb: str, folders: Iterable[Path]) -> str:
    return f"{verb} {' '.join(map(_path_text, folders)) or 'nothing'}"


def _path_text(path: Path) -> str:
    """A path on one line: as it is below the working folder, and as a whole elsewhere."""
    return for_line(str(path.relative_to(cwd) if path.is_relative_to(cwd := Path.cwd()) else path))


def choose_kind(sandbox: ServerSandbox, environ: Mapping[str, str], root: Path | None) -> Kind:
    """The kind that keeps a sandbox whole; tries it, so it takes some milliseconds.

    Raises:
        NoSandboxError: there is none here, or it lacks a part.
    """
    if not has_filter():
        raise NoSandboxError("its sandbox needs a filter of system calls, unknown on this machine")
    kinds = KINDS if sandbox.kind == "auto" else (sandbox.kind,)
    if isinstance(sandbox.network, tuple):
        if sandbox.kind == "landlock":
            raise NoSandboxError(
                "its sandbox cannot be kept: a list of hosts in `network` needs bubblewrap,"
                " Landlock knows ports only"
            )
        kinds = ("bubblewrap",)
    try:
        return working_kind(kinds, environ, root)
    except NoSandboxError as error:
        raise NoSandboxError(f"its sandbox cannot be kept: {error.message}") from None


@frozen
class _Start:
    """A server to be started in a sandbox."""

    connection: ServerConnection
    sandbox: ServerSandbox
    kind: Kind

    @property
    def entry(self) -> ServerEntry:
        return self.connection.entry

    @property
    def cwd(self) -> Path:
        return self.entry.cwd or Path.cwd()

    def mounts(self) -> Mounts:
        """Collect what it sees.

        Raises:
            NoSandboxError: the kind cannot show a part of it alone.
        """
        sandbox, environ = self.sandbox, self.connection.child_env
        read, write = (
            tuple(_resolve_given(path, self.connection.given) for path in paths)
            for paths in (sandbox.read, sandbox.write)
        )
        mounts = Mounts(program_paths(self.connection.command, environ, self.cwd), read, write)
        kept: list[Path] = []
        above: list[Path] = []
        hidden = [*_own_folders((*read, *write))]
        for folder in (*read, *write):
            if not folder.is_dir():
                continue
            protected = find_protected(
                folder, self.connection.own_files, self.connection.runs, most=_MOST_ENTRIES
            )
            if not protected.complete and not sandbox.best_effort:
                raise NoSandboxError(
                    f"its sandbox cannot be kept: `{_path_text(folder)}` has more than"
                    f" {_MOST_ENTRIES:,} entries, or {MOST_MOUNTS:,} files that no server may"
                    " see or change"
                )
            hidden += protected.hidden
            if folder in write:
                kept += protected.kept
                above += protected.above
        if self.kind == "landlock":
            taken = [_path_text(path) for path in (*hidden, *kept)]
            if taken and not sandbox.best_effort:
                raise NoSandboxError(
                    "its sandbox cannot be kept: Landlock takes nothing out of a folder, and"
                    f" {backticked(taken, _SHOWN)} must stay hidden or unchanged"
                )
            return mounts
        return replace(mounts, read_only=kept, in_place=above, hidden=hidden)

    def environment(self, home: str) -> dict[str, str]:
        environment = {**self.connection.child_env}
        if self.sandbox.home is not None:
            environment["HOME"] = str(_resolve_given(self.sandbox.home, self.connection.given))
        elif "HOME" not in self.entry.env:
            environment["HOME"] = home
        if "TMPDIR" not in self.entry.env:
            environment["TMPDIR"] = home
        offline = {
            name: value for name, (value, host) in _OFFLINE.items() if not self.reaches(host)
        }
        return {**offline, **environment}

    def absent(self) -> tuple[Path, ...]:
        """The programs that it does not find, because they would wait for a registry in vain."""
        connection = self.connection
        if self.reaches(_NPM):
            return ()
        return unwanted_programs(connection.command, connection.child_env, self.cwd)

    def reaches(self, host: str) -> bool:
        """Return true if it may connect to a host over TLS."""
        network = self.sandbox.network
        if isinstance(network, str):
            return network == "full"
        return host in network or f"{host}:443" in network

    def command(self, mounts: Mounts, home: str) -> Command:
        """Compose what the supervisor starts."""
        argv, environ = self.connection.command, self.environment(home)
        given = {str(path): _identity(path) for path in (*mounts.read, *mounts.write)}
        if self.kind == "landlock":
            network = self.sandbox.network == "full"
            rules = server_rules(mounts, Path(home), network=network)
            return Command(argv, environ, landlock=rules, seccomp=self.filter(), given=given)
        words = server_words(
            os.environ,
            self.cwd,
            mounts,
            self.folder(mounts, home),
            network=self.sandbox.network == "full",
        )
        return Command((*words, *argv), environ, wrapped=True, seccomp=self.filter(), given=given)

    def folder(self, mounts: Mounts, home: str) -> str:
        """The folder where it starts: that of the file if it is visible, else its home."""
        shown = (*mounts.programs, *mounts.read, *mounts.write)
        cwd = self.cwd.resolve()
        if any(path.is_relative_to(cwd) or cwd.is_relative_to(path) for path in shown):
            return str(cwd)
        return home

    def filter(self) -> bytes:
        """In bubblewrap sockets are those of a network and of files of its own."""
        inside = self.kind == "bubblewrap"
        return seccomp_filter(internet=inside or self.sandbox.network == "full", unix=inside)


async def start_confined(
    connection: ServerConnection,
    kind: Kind,
    supervisor: Supervisor,
    reaper: Reaper,
    *,
    log: Path | None,
    secrets: Secrets | None,
    on_refused: Refused,
    on_slow: Callable[[], None] = lambda: None,
) -> tuple[Child, Confinement]:
    """Start a server in its sandbox of this kind, whose relay is to be served then.

    `on_refused` is told each host that it asks for in vain. `on_slow` is called if its folders are
    so large that looking through them takes more than a second.

    Raises:
        NoSandboxError: the sandbox cannot be kept.
        OSError: the server cannot be started.
    """
    sandbox = connection.entry.sandbox
    assert sandbox is not None, "it is to be confined"
    start = _Start(connection, sandbox, kind)
    _check_command(start)
    mounts = await tell_if_slow(start.mounts, on_slow)
    network = await _resolve(sandbox) if start.kind == "bubblewrap" else None
    hide_process()
    own = _make_home(reaper) if start.kind == "landlock" or network is not None else None
    confinement = Confinement(own, reaper)
    sockets: list[socket.socket] = []

    async def begin(streams: tuple[int, int, int]) -> ChildProcess:
        # In bubblewrap the folder is where it starts itself, in the sandbox.
        folder = start.folder(mounts, str(own)) if start.kind == "landlock" else "/"
        descriptor = open_place(folder)
        try:
            process = await _start_process(supervisor, command, descriptor, streams)
        finally:
            os.close(descriptor)
        sockets.extend(process.sockets)
        return process

    try:
        command = _compose(start, mounts, network, own)
        child = await child_of(begin, stderr_to=log, secrets=secrets)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await confinement.close()
        raise
    if network is not None and sockets:
        relay = SandboxRelay(network, sockets, on_refused)
        confinement = replace(confinement, relay=relay)
    return child, confinement


_Result = TypeVar("_Result")


async def tell_if_slow(
    work: Callable[[], _Result], on_slow: Callable[[], None], seconds: float = 1.0
) -> _Result:
    """The result of work in a thread; `on_slow` is called if it is not there in time."""
    async with task_group() as tasks:

        async def tell() -> None:
            await anyio.sleep(seconds)
            on_slow()

        tasks.start_soon(tell)
        result = await anyio.to_thread.run_sync(work)
        tasks.cancel_scope.cancel()
    return result


def _compose(
    start: _Start, mounts: Mounts, network: SandboxNetwork | None, own: Path | None
) -> Command:
    """Compose what the supervisor starts; `own` is the folder for its home, or for its names."""
    if network is None or own is None:
        return start.command(mounts, PRIVATE_HOME if own is None else str(own))
    # The kernel says of it what it says of a program that is not there.
    absent = own / "absent"
    absent.write_text("#!/nonexistent\n", "ascii")
    absent.chmod(0o755)
    files = {**_write_names(network, own), **dict.fromkeys(map(str, start.absent()), absent)}
    command = start.command(replace(mounts, files=files), PRIVATE_HOME)
    return replace(command, sockets=network.sockets)


async def _start_process(
    supervisor: Supervisor, command: Command, folder: int, streams: tuple[int, int, int]
) -> Supervised:
    """Start it with its sockets; without a list of hosts it does without where it has to.

    Raises:
        NoSandboxError: its hosts could not be reached.
        OSError: it cannot be started.
    """
    try:
        return await _start_checked(supervisor, command, folder, streams)
    except NetworkNamespaceError as error:
        if len(command.sockets) > len(NAME_SERVER_SOCKETS):
            raise NoSandboxError(
                "its sandbox cannot be kept: the hosts of its `network` need sockets in its"
                f" network namespace: {error.strerror}"
            ) from error
    # Its name server tells what it asks for, and confines nothing.
    return await _start_checked(supervisor, replace(command, sockets=()), folder, streams)


async def _start_checked(
    supervisor: Supervisor, command: Command, folder: int, streams: tuple[int, int, int]
) -> Supervised:
    try:
        return await supervisor.start(command, folder=folder, streams=streams)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise NoSandboxError(_REPLACED) from error
        if error.errno in {errno.ENOENT, errno.EACCES}:  # outside of the sandbox it is there
            why = f"{error.strerror}: what it starts with is not in its sandbox, and `read` adds it"
            raise OSError(error.errno, why) from error
        raise


async def _resolve(sandbox: ServerSandbox) -> SandboxNetwork | None:
    """The network of its own that a server gets in bubblewrap, if it gets one.

    Raises:
        NoSandboxError: a host has no address that is permitted.
    """
    if sandbox.network == "full":
        return None
    listed = sandbox.network if isinstance(sandbox.network, tuple) else ()
    try:
        return await resolve_network([parse_destination(text) for text in listed])
    except UnavailableError as error:
        hint = "" if error.hint is None else f" ({error.hint})"
        raise NoSandboxError(f"`network` of its sandbox: {error.message}{hint}") from error


def _write_names(network: SandboxNetwork, folder: Path) -> Mapping[str, Path]:
    """Write the files by which names are looked up in a sandbox, and say where they belong."""
    files = {"hosts": network.hosts, "resolv.conf": RESOLV_CONF}
    for name, text in files.items():
        (folder / name).write_text(text, "ascii")
    return {f"/etc/{name}": folder / name for name in files}


def _check_command(start: _Start) -> None:
    """Check what would fail in the sandbox with an error that tells less.

    Raises:
        NoSandboxError: it fetches its program, and has no network.
        OSError: there is no such program.
    """
    word = start.connection.command[0]
    launcher = launcher_of(start.connection.command)
    if launcher is not None and start.sandbox.network == "none":
        raise NoSandboxError(
            f"`{launcher}` fetches the server before it starts it, and its sandbox has no network:"
            " write `npx -y PACKAGE@VERSION` or `uvx PACKAGE==VERSION`, which aish fetches before,"
            " or install the server and name its program in `command`"
        )
    if find_program(word, start.connection.child_env, start.cwd) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _make_home(reaper: Reaper) -> Path:
    """A folder that is removed when the server ends: short, for the sockets in it."""
    home = Path(tempfile.mkdtemp(prefix="s", dir=private_folder(runtime_folder())))
    reaper.own_folder(home)
    for name in FOLDERS_OF_HOME:
        (home / name).mkdir(parents=True)
    return home


def _identity(path: Path) -> tuple[int, int]:
    """The device and inode of a path that a server is given.

    Raises:
        NoSandboxError: it is no longer what it was.
    """
    try:
        status = path.lstat()
    except OSError:
        raise NoSandboxError(_REPLACED) from None
    if path.is_symlink() or path.resolve() != path:
        raise NoSandboxError(_REPLACED)
    return status.st_dev, status.st_ino


def _resolve_given(path: Path, given: Mapping[Path, Path]) -> Path:
    """A path that a server is given, resolved: as it was before any server ran.

    Raises:
        NoSandboxError: it may not have it, or it does not exist.
    """
    shown = _path_text(path)
    try:
        resolved = given.get(path) or path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise NoSandboxError(f"`{shown}` in its sandbox does not exist") from None
    if any(broad.is_relative_to(resolved) for broad in broad_folders()):
        raise NoSandboxError(
            f"`{shown}` in its sandbox is everything, or has the home folder in it:"
            " name the folders that it needs"
        )
    if any(resolved.is_relative_to(folder) for folder in _OF_THE_KERNEL) or resolved in _RUNTIME:
        raise NoSandboxError(
            f"`{shown}` in its sandbox has processes, devices or sockets of the machine in it"
        )
    own = [folder for folder in _state_folders() if resolved.is_relative_to(folder)]
    if own or is_denied(resolved.parts[1:]):
        raise NoSandboxError(f"`{shown}` in its sandbox is, or is in, what no server may see")
    return resolved


def _state_folders() -> Iterator[Path]:
    """The folders of tokens, sockets, logins and records, which no server sees."""
    for folder in (*runtime_folders(), state_folder(), logins_folder()):
        yield folder.resolve()


def _own_folders(given: Iterable[Path]) -> Iterator[Path]:
    """List those of these folders that are in what a server was given."""
    for folder in _state_folders():
        if folder.is_dir() and any(folder.is_relative_to(path) for path in given):
            yield folder
