"""Servers of package registries: how a file names one, and where what was fetched of it is kept.

An entry of the store is one installation, which is never changed: its name is the digest of its
packages. A start looks at that name only.
"""

import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.policy.lock import PackagePin, package_pin
from aish.system.file_lock import BeingWrittenError, hold_lock
from aish.system.files import packages_folder

ENTRY_FILE = "entry.json"
ASIDE = "new"
"""The folder of a fetch that is under way, or was killed; whoever has the lock removes it."""
LOCK_FILE = "lock"
UNUSED_DAYS = 30
_NPM = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9~_][\w.~-]*/)?[A-Za-z0-9~_][\w.~-]*)(?:@(?P<version>[^\s@/:\\$]+))?",
    re.ASCII,
)
_NPM_FILE = re.compile(r"\.(?:tgz|tar|tar\.gz)\Z", re.IGNORECASE)
_NPM_EXACT = re.compile(r"\d+\.\d+\.\d+[\w.+-]*", re.ASCII)
_PYTHON_NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_UVX = re.compile(rf"(?P<name>{_PYTHON_NAME})(?:==[\w.+!*]+)?", re.ASCII)
_FROM = re.compile(
    rf"(?P<name>{_PYTHON_NAME})(?:\[[\w.,-]+\])?"
    r"(?:(?:===?|[<>~!]=|[<>])[\w.+!*]+(?:,(?:===?|[<>~!]=|[<>])[\w.+!*]+)*)?",
    re.ASCII,
)
_PYTHON_EXACT = re.compile(r"[^=<>~!]+={2,3}[^*,]+")


@frozen
class PackageSpec:
    """A server as a file names it: its launcher, what that installs, and the words for the server.

    `name` is that of the package; `program` is only known for `uvx`, and `version` for `npx`.
    """

    launcher: Literal["npx", "uvx"]
    requirement: str
    name: str
    arguments: tuple[str, ...]
    exact: bool
    version: str = ""
    program: str = ""

    @property
    def text(self) -> str:
        is_own = self.program in {"", self.name}
        return " ".join((self.launcher, self.requirement, *(() if is_own else (self.program,))))

    @property
    def folder(self) -> Path:
        return packages_folder() / sha256(self.text.encode()).hexdigest()[:32]


def package_spec(command: Sequence[str], cwd: Path) -> PackageSpec | None:
    """The package that a command has its launcher fetch; `None` if it is written in any other way.

    What `npx` would take from a project is none: a registry may have another one of that name.
    """
    launcher, *words = command or ("",)
    if launcher == "npx":
        words = words[1:] if words[:1] in (["-y"], ["--yes"]) else words
        match = _NPM.fullmatch(words[0]) if words else None
        if match is None or _NPM_FILE.search(words[0]) or _is_installed(match["name"], cwd):
            return None
        version = match["version"] or "latest"
        exact = _NPM_EXACT.fullmatch(version) is not None
        return PackageSpec("npx", words[0], match["name"], (*words[1:],), exact, version)
    if launcher != "uvx" or not words:
        return None
    own = words[0] != "--from"
    requirement, words = words[0 if own else 1], words[1 if own else 2 :]
    match = (_UVX if own else _FROM).fullmatch(requirement)
    program = match["name"] if own and match else next(iter(words), "")
    if match is None or re.fullmatch(_PYTHON_NAME, program, re.ASCII) is None:
        return None
    arguments = tuple(words if own else words[1:])
    exact = _PYTHON_EXACT.fullmatch(requirement) is not None
    return PackageSpec("uvx", requirement, match["name"], arguments, exact, program=program)


@frozen
class PackageUse:
    """A package that a server is to be started from: `pin` is what is locked, if anything is.

    `environ` is that of the fetch, `file` the pipeline's. If `enforced` a difference ends the run.
    """

    spec: PackageSpec
    pin: PackagePin | None
    environ: Mapping[str, str]
    file: Path
    may_fetch: bool
    enforced: bool


def _is_installed(name: str, cwd: Path) -> bool:
    modules = (above / "node_modules" for above in (cwd, *cwd.parents))
    return any((each / name).exists() or (each / ".bin" / name).exists() for each in modules)


@frozen
class StoreEntry:
    """An installation; `program` is relative to its folder, `fetched` when it was the newest."""

    path: Path
    program: str
    pin: PackagePin
    fetched: int = 0

    def command(self, spec: PackageSpec) -> tuple[str, ...]:
        return (str(self.path / self.program), *spec.arguments)

    def note_use(self) -> None:
        """Keep it from being removed, while this process runs and for some time after that."""
        with suppress(OSError):  # of a read-only store nothing is removed either
            _hold(self.path, self.fetched)
            os.utime(self.path)


def entry_text(program: str, pin: PackagePin) -> str:
    return json.dumps({"program": program, **pin.row}, indent=1, default=dict)


def find_entry(spec: PackageSpec, pin: PackagePin | None) -> StoreEntry | None:
    """The newest entry, or that of a pin; `None` if there is none."""
    if pin is not None:
        return _read_entry(spec.folder / pin.digest)
    entries = (_read_entry(path) for path in _entry_paths(spec.folder))
    found = [entry for entry in entries if entry is not None]
    return max(found, key=lambda entry: entry.fetched, default=None)


def _entry_paths(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (path for path in folder.iterdir() if path.is_dir() and ASIDE not in path.name)


def _read_entry(path: Path) -> StoreEntry | None:
    try:
        row: Mapping[str, str] = json.loads((path / ENTRY_FILE).read_text("utf-8"))
        fetched = (path / ENTRY_FILE).stat().st_mtime_ns
        entry = StoreEntry(path, row["program"], package_pin(row), fetched)
        if not all(_is_ours(folder) for folder in (path, path.parent, path.parent.parent)):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The program of an entry may be a link to an interpreter that was removed since.
    python = path / "bin" / "python"
    is_whole = entry.pin.digest == path.name and (python.exists() or not python.is_symlink())
    return entry if is_whole else None


def _is_ours(folder: Path) -> bool:
    """Return true if only this user can have put something there: what is there is started."""
    status = folder.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    return is_private and status.st_uid == os.geteuid()


def remove_unused(days: float = UNUSED_DAYS) -> Sequence[str]:
    """Remove what was not started for so many days, and what killed fetches have left.

    What a process of aish has started a server from stays while that runs.

    Returns:
        How files name the servers that were removed.
    """
    oldest = time.time() - days * 86_400
    removed: list[str] = []
    for folder in _entry_paths(packages_folder()):
        with suppress(BeingWrittenError), hold_lock(folder / LOCK_FILE, 0):
            for path in [*_entry_paths(folder)]:
                if path.stat().st_mtime < oldest and not _is_used(path):
                    entry = _read_entry(path)
                    # Killed in the middle it leaves none of that name.
                    path.rename(folder / f"{ASIDE}-{path.name}")
                    removed.append(path.name if entry is None else entry.pin.spec)
            for left in folder.glob(f"{ASIDE}*"):
                shutil.rmtree(left, ignore_errors=True)
    return removed


@cache
def _hold(path: Path, _fetched: int) -> int:
    """Share the lock of an entry until this process ends."""
    descriptor = os.open(path / ENTRY_FILE, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_used(path: Path) -> bool:
    try:
        descriptor = os.open(path / ENTRY_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
