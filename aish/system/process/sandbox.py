"""Confines commands and servers by bubblewrap, by Landlock, or not at all.

Both are tried before they are used: many machines have a program or a kernel that refuses. In
bubblewrap processes outside are not seen; files and folders can be hidden, and the network can be
taken away. For a command its folder is writable, the rest read-only, `/tmp` and `/run` are private;
a server begins with an empty root. Landlock keeps writes and reads below lists of folders.
"""

import base64
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.system.offline import permit_attempts
from aish.system.platform.forms import is_portable
from aish.system.process.seccomp import has_filter, seccomp_filter
from aish.system.process.supervisor import SCRIPT, Landlock

Kind = Literal["bubblewrap", "landlock"]
SandboxKind = Kind | Literal["none"]
SandboxChoice = Literal["auto", "bubblewrap", "landlock", "off", "required"]
KINDS: Final[tuple[Kind, ...]] = ("bubblewrap", "landlock")
NAMES: Final[Mapping[str, str]] = {"bubblewrap": "bubblewrap", "landlock": "Landlock"}

_NOT_INSTALLED = "`bwrap` is not installed"
_TRIAL_SECONDS = 30
_SHOWN = 300
_SYSTEM_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/nix"),
    *("/dev", "/proc", "/sys", "/run/systemd/resolve", "/run/current-system"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
# Owned by root and writable, whatever capabilities a process has: outside they change the machine.
_READ_ONLY_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
_KEPT_IN_RUN = ("/run/systemd/resolve", "/run/current-system")
PRIVATE_HOME = "/aish-home"
"""The folder of a server in bubblewrap that is its own: short, for the sockets in it."""
_PROGRAM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix"),
    "/run/current-system",
)
_IN_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "nsswitch.conf"),
    *("passwd", "group", "localtime", "timezone", "os-release", "mime.types", "gitconfig"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted"),
    *("protocols", "services", "fonts", "chromium.d"),
)
"""What of `/etc` a server sees; never `/etc` itself, which may hold keys."""
_NAME_LOOKUP = ("hosts", "resolv.conf", "host.conf", "gai.conf")
_IN_SYS = ("/sys/devices/system/cpu", "/sys/fs/cgroup")
# Of `/proc` itself: names of processes, their words and more of the machine are not among them.
_IN_PROC = (
    *("meminfo", "stat", "cpuinfo", "loadavg", "uptime", "version", "filesystems"),
    *("self", "thread-self", "sys/vm/overcommit_memory", "sys/kernel/osrelease"),
    *("sys/kernel/random", "sys/fs/pipe-max-size"),
)
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
_READABLE_DEVICES = ("/dev/urandom", "/dev/random")
_EMPTY_FILE = Path(__file__).parents[2] / "py.typed"
_HIDDEN = ("/tmp/", "/run/")  # ruff: ignore[hardcoded-temp-file] - the sandbox has its own
# As root, without which a folder of another user could not be written; none of these changes a
# mount.
_KEPT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")


class NoSandboxError(AishError):
    """The sandbox that was asked for does not work here."""


@frozen
class SandboxReport:
    """Sandboxes of this machine, each tried: empty, or why it does not work.

    `chosen` is what `auto` takes, `program` where bubblewrap is, if it is installed.
    """

    bubblewrap: str
    landlock: str
    chosen: SandboxKind
    program: str | None = None


def sandbox_report(environ: Mapping[str, str]) -> SandboxReport:
    """Try what there is; takes some milliseconds and starts processes."""
    program = _bubblewrap_program(environ)
    bubblewrap, landlock = _bubblewrap_problem(program), _landlock_problem()
    chosen: SandboxKind = "none" if landlock else "landlock"
    return SandboxReport(bubblewrap, landlock, chosen if bubblewrap else "bubblewrap", program)


def sandbox_problem(kind: Kind, environ: Mapping[str, str], root: Path | None) -> str:
    """Why a kind does not work here, empty if it does; tries it."""
    if kind == "landlock":
        return _landlock_problem()
    return _bubblewrap_problem(_bubblewrap_program(environ, root))


def working_kind(kinds: Iterable[Kind], environ: Mapping[str, str], root: Path | None) -> Kind:
    """The first of some kinds that works here.

    Raises:
        NoSandboxError: none of them does.
    """
    problems: list[str] = []
    for kind in kinds:
        problem = sandbox_problem(kind, environ, root)
        if not problem:
            return kind
        problems.append(f"{NAMES[kind]} does not work here: {problem}")
    raise NoSandboxError("; ".join(problems))


ServerPart = Literal["files", "no network", "listed hosts"]
"""What a sandbox of a server is made of: its folders, and the refusal of any network."""


def try_server_parts(
    environ: Mapping[str, str],
) -> Mapping[Kind, Mapping[ServerPart, str]]:
    """Try each part of a server's sandbox in each kind: empty, or why it does not work."""
    program = _bubblewrap_program(environ)
    words = ("/bin/sh", "-c", ":")
    bubblewrap: dict[ServerPart, str] = dict.fromkeys(
        ("files", "no network", "listed hosts"), _NOT_INSTALLED
    )
    if program is not None:
        start = partial(server_words, environ, Path("/nowhere"), Mounts(), "/")
        bubblewrap["files"] = _problem_of((*start(network=True), *words))
        apart = (*start(network=False), *words)
        bubblewrap["no network"] = _problem_of(apart)
        bubblewrap["listed hosts"] = bubblewrap["no network"] or _problem_of(
            [sys.executable, "-I", "-S", str(SCRIPT), "--try-sockets", *apart]
        )
    files = _landlock_problem()
    return {
        "bubblewrap": bubblewrap,
        "landlock": {"files": files, "no network": files or _filter_problem()},
    }


def _filter_problem() -> str:
    if not has_filter():
        return f"system calls of {platform.machine()} are not known"
    program = base64.b64encode(seccomp_filter(internet=False, unix=False)).decode("ascii")
    return _problem_of([sys.executable, "-I", "-S", str(SCRIPT), "--try-filter", program])


def choose_sandbox(
    choice: SandboxChoice,
    environ: Mapping[str, str],
    root: Path | None = None,
    *,
    network: bool = True,
) -> SandboxKind:
    """The sandbox for commands below `root`; tries it, so it takes some milliseconds.

    Raises:
        NoSandboxError: what was asked for does not work here.
    """
    if not network and choice in {"off", "landlock"}:
        why = "and it is off" if choice == "off" else "not Landlock"
        raise NoSandboxError(f"`network: false` needs the sandbox `bubblewrap`, {why}")
    if choice == "off":
        return "none"
    is_effort = choice == "auto" and network
    kinds = KINDS if is_effort else (KINDS[choice == "landlock"],)
    try:
        return working_kind(kinds, environ, root)
    except NoSandboxError:
        if is_effort:
            return "none"
        raise


def bubblewrap_words(
    environ: Mapping[str, str],
    root: Path,
    read_only: Sequence[Path],
    folder: str,
    *,
    network: bool,
    in_place: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
) -> tuple[str, ...]:
    """The words before a command that confine it; only below `root` it can write.

    `read_only` and `hidden` are paths that exist, `folder` is where the command starts. Folders
    `in_place`, from above, cannot be moved or removed, and files are not renamed across them. What
    is `hidden` is empty.
    """
    program = _bubblewrap_program(environ, root)
    assert program is not None, "it was tried before"
    words = _command_words(program)
    for path in (*_programs(environ), sys.prefix, sys.base_prefix):
        if path.startswith(_HIDDEN):
            words += ["--ro-bind-try", path, path]
    words += ["--bind", str(root), str(root)]
    shown = [path for path in hidden if not _is_hidden_already(path, root)]
    words += _exceptions(in_place, read_only, shown)
    if not network:
        words.append("--unshare-net")
    return (*words, "--chdir", folder, "--")


@frozen
class Mounts:
    """The files and folders that a server sees in bubblewrap, beside the programs of the system.

    `programs` are paths that it needs to run, `read` and `write` those that it was given. Of these,
    `in_place`, `read_only` and `hidden` are as for `bubblewrap_words`. `files` are put at other
    places, by the path there.
    """

    programs: Sequence[Path] = ()
    read: Sequence[Path] = ()
    write: Sequence[Path] = ()
    read_only: Sequence[Path] = ()
    in_place: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def server_words(
    environ: Mapping[str, str], root: Path, mounts: Mounts, folder: str, *, network: bool
) -> tuple[str, ...]:
    """The words before a server that confine it: it begins with an empty root.

    It starts in `folder`. With `network` it has that of the machine. Bubblewrap is not taken from
    `root`.
    """
    program = _bubblewrap_program(environ, root)
    assert program is not None, "it was tried before"
    words = [*_isolation_words(program, ()), "--dir", "/tmp"]  # ruff: ignore[hardcoded-temp-file] - the sandbox's own, read-only
    for path in _PROGRAM_FOLDERS:
        if os.path.islink(path):  # ruff: ignore[os-path-islink] - as many words as paths
            words += ["--symlink", os.readlink(path), path]  # ruff: ignore[os-readlink] - as above
        else:
            words += ["--ro-bind-try", path, path]
    for name in (*_IN_ETC, *(_NAME_LOOKUP if network else ())):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for place, file in mounts.files.items():
        words += ["--ro-bind", str(file), place]
    words += ["--dev", "/dev", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # ruff: ignore[hardcoded-temp-file] - the sandbox's own
    for path in _IN_SYS:
        words += ["--ro-bind-try", path, path]
    words += ["--tmpfs", PRIVATE_HOME]
    for name in FOLDERS_OF_HOME:
        words += ["--dir", f"{PRIVATE_HOME}/{name}"]
    given = {**dict.fromkeys((*mounts.programs, *mounts.read), "--ro-bind")}
    given |= dict.fromkeys(mounts.write, "--bind")
    # A folder before those in it: a later mount covers what an earlier one has shown there.
    for path_given in sorted(given):
        words += [given[path_given], str(path_given), str(path_given)]
    words += _exceptions(mounts.in_place, mounts.read_only, mounts.hidden, mounts.programs)
    words += ["--remount-ro", "/"]
    if not network:
        words.append("--unshare-net")
    return (*words, "--chdir", folder, "--")


FOLDERS_OF_HOME = (".local/share", ".cache", ".config")
"""Folders that a home has: programs of .NET write into their working folder where they are not."""


def _exceptions(
    in_place: Sequence[Path],
    read_only: Sequence[Path],
    hidden: Sequence[Path],
    programs: Sequence[Path] = (),
) -> list[str]:
    """The words that take paths out of folders that were mounted before, but for `programs`."""
    words: list[str] = []
    for above in map(str, in_place):
        words += ["--bind-try", above, above]
    for kept in map(str, read_only):
        words += ["--ro-bind-try", kept, kept]
    for path in hidden:
        if path.is_dir():
            words += ["--tmpfs", str(path)]
            for program in programs:
                if program.is_relative_to(path):
                    words += ["--ro-bind", str(program), str(program)]
            words += ["--remount-ro", str(path)]
        else:
            words += ["--ro-bind", str(_EMPTY_FILE), str(path)]
    return words


def _is_hidden_already(path: Path, root: Path) -> bool:
    return str(path).startswith(_HIDDEN) and root not in path.parents


def landlock_rules(root: Path, temporary: Path, environ: Mapping[str, str]) -> Landlock:
    """List what a command may use: the root and a private folder, and the system's for reading.

    The folders of PATH and the Python that runs `aish` are readable too.
    """
    readable = (*_SYSTEM_FOLDERS, sys.prefix, sys.base_prefix, *_programs(environ))
    return Landlock(write=(str(root), str(temporary), *_DEVICES), read=readable)


def fetch_rules(folder: Path) -> Landlock:
    """List what a program may use that only writes in one folder."""
    return Landlock(write=(str(folder), *_DEVICES), read=("/",))


def server_rules(mounts: Mounts, home: Path, *, network: bool) -> Landlock:
    """List what a server may use under Landlock; `home` is the folder of its own.

    Of `/proc` that is its first process: with all of it the words of any other process are seen.
    """
    etc = (f"/etc/{name}" for name in (*_IN_ETC, *(_NAME_LOOKUP if network else ())))
    proc = (f"/proc/{name}" for name in _IN_PROC)
    links = (os.path.realpath("/etc/resolv.conf"),) if network else ()
    read = (*_PROGRAM_FOLDERS, *etc, *proc, *links, *_IN_SYS, *_READABLE_DEVICES)
    given = (*mounts.programs, *mounts.read)
    write = (*map(str, mounts.write), str(home), *_WRITABLE_DEVICES)
    return Landlock(write=write, read=(*read, *map(str, given)))


def _programs(environ: Mapping[str, str]) -> tuple[str, ...]:
    folders = environ.get("PATH", "").split(os.pathsep)
    return tuple(path for path in folders if path.startswith("/"))


def _isolation_words(program: str, capabilities: Sequence[str]) -> list[str]:
    """The beginning of each sandbox: processes and shared memory of its own, few capabilities."""
    words = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    words += ["--cap-drop", "ALL"]
    for name in capabilities:
        words += ["--cap-add", name]
    words += ["--proc", "/proc"]
    for name in _READ_ONLY_IN_PROC:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return words


def _command_words(program: str) -> list[str]:
    words = [program, "--ro-bind", "/", "/", "--dev", "/dev"]
    words += _isolation_words(program, _KEPT_CAPABILITIES if os.geteuid() == 0 else ())[1:]
    words += ["--tmpfs", "/tmp", "--tmpfs", "/run"]  # ruff: ignore[hardcoded-temp-file] - the sandbox's own
    for path in _KEPT_IN_RUN:
        words += ["--ro-bind-try", path, path]
    return words


def _bubblewrap_program(environ: Mapping[str, str], root: Path | None = None) -> str | None:
    """The first in PATH that is not below the root, where a command could have written it."""
    for folder in _programs(environ):
        found = shutil.which("bwrap", path=folder)
        if found is not None and (root is None or not Path(found).resolve().is_relative_to(root)):
            return found
    return None


@cache
def _bubblewrap_problem(program: str | None) -> str:
    if is_portable():
        return "it needs Linux"
    if program is None:
        return _NOT_INSTALLED
    words = [*_command_words(program), "--unshare-net", "--", "/bin/sh", "-c", ":"]
    return _problem_of(words)


@cache
def _landlock_problem() -> str:
    if is_portable():
        return "it is a part of Linux"
    return _problem_of([sys.executable, "-I", "-S", str(SCRIPT), "--try-landlock"])


def _problem_of(words: Sequence[str]) -> str:
    """Why a trial fails, empty if it does not."""
    try:
        with permit_attempts():
            result = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIAL_SECONDS,
                check=False,
                env={"PATH": os.defpath},
            )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:_SHOWN]
    if result.returncode == 0:
        return ""
    errors = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return errors[-1][:_SHOWN] if errors else f"it ended with exit code {result.returncode}"
