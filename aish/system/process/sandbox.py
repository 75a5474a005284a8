"""Confines commands by bubblewrap, by Landlock, or not at all.

Both are tried before they are used: many machines have a program or a kernel that refuses. In
bubblewrap a folder is writable, the rest read-only, `/tmp` and `/run` are private, and processes
outside are not seen; files and folders can be hidden, and the network can be taken away. Landlock
keeps writes below the folder and reads below a list of folders.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.system.offline import permit_own_processes
from aish.system.process.supervisor import SCRIPT, Landlock

SandboxKind = Literal["bubblewrap", "landlock", "none"]
SandboxChoice = Literal["auto", "bubblewrap", "landlock", "off", "required"]

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
_EMPTY_FILE = Path(__file__).parents[2] / "py.typed"
_HIDDEN = ("/tmp/", "/run/")  # ruff: ignore[hardcoded-temp-file] - the sandbox has its own
# As root, without which a folder of another user could not be written; none of these changes a
# mount.
_KEPT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")


class NoSandboxError(Exception):
    """The sandbox that was asked for does not work here."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


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
    if choice == "off":
        if not network:
            raise NoSandboxError("`network: false` needs the sandbox `bubblewrap`, and it is off")
        return "none"
    if choice == "landlock":
        if not network:
            raise NoSandboxError("`network: false` needs the sandbox `bubblewrap`, not Landlock")
        if problem := _landlock_problem():
            raise NoSandboxError(f"Landlock does not work here: {problem}")
        return "landlock"
    problem = _bubblewrap_problem(_bubblewrap_program(environ, root))
    if not problem:
        return "bubblewrap"
    if choice != "auto" or not network:
        raise NoSandboxError(f"bubblewrap does not work here: {problem}")
    return "none" if _landlock_problem() else "landlock"


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
    words = _common_words(program)
    for path in (*_programs(environ), sys.prefix, sys.base_prefix):
        if path.startswith(_HIDDEN):
            words += ["--ro-bind-try", path, path]
    words += ["--bind", str(root), str(root)]
    for above in map(str, in_place):
        words += ["--bind-try", above, above]
    for kept in map(str, read_only):
        words += ["--ro-bind-try", kept, kept]
    for secret in hidden:
        if str(secret).startswith(_HIDDEN) and root not in secret.parents:
            continue
        if secret.is_dir():
            words += ["--tmpfs", str(secret), "--remount-ro", str(secret)]
        else:
            words += ["--ro-bind", str(_EMPTY_FILE), str(secret)]
    if not network:
        words.append("--unshare-net")
    return (*words, "--chdir", folder, "--")


def landlock_rules(root: Path, temporary: Path, environ: Mapping[str, str]) -> Landlock:
    """List what a command may use: the root and a private folder, and the system's for reading.

    The folders of PATH and the Python that runs `aish` are readable too.
    """
    readable = (*_SYSTEM_FOLDERS, sys.prefix, sys.base_prefix, *_programs(environ))
    return Landlock(write=(str(root), str(temporary), *_DEVICES), read=readable)


def _programs(environ: Mapping[str, str]) -> tuple[str, ...]:
    folders = environ.get("PATH", "").split(os.pathsep)
    return tuple(path for path in folders if path.startswith("/"))


def _common_words(program: str) -> list[str]:
    words = [program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _READ_ONLY_IN_PROC:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    words += ["--tmpfs", "/tmp", "--tmpfs", "/run"]  # ruff: ignore[hardcoded-temp-file] - the sandbox's own
    for path in _KEPT_IN_RUN:
        words += ["--ro-bind-try", path, path]
    words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    words += ["--cap-drop", "ALL"]
    if os.geteuid() == 0:
        for name in _KEPT_CAPABILITIES:
            words += ["--cap-add", name]
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
    if program is None:
        return "`bwrap` is not installed"
    words = [*_common_words(program), "--unshare-net", "--", "/bin/sh", "-c", ":"]
    return _problem_of(words)


@cache
def _landlock_problem() -> str:
    if sys.platform != "linux":
        return "it is a part of Linux"
    return _problem_of([sys.executable, "-I", "-S", str(SCRIPT), "--try-landlock"])


def _problem_of(words: Sequence[str]) -> str:
    """Why a trial fails, empty if it does not."""
    try:
        with permit_own_processes():
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
