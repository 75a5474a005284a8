"""Fetches a server of a package registry into the store, by `npm` or `uv`, without running it.

No code of a package runs: no scripts of npm, and of Python wheels only. What is installed is
written in a folder aside, and nowhere else where a sandbox works; an entry appears whole. The
registries are those of the user's own settings, never of a project.
"""

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final

import anyio

from aish.core.errors import AishError, LockDiffersError, UnavailableError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.mcp.transports.package_store import (
    ASIDE,
    ENTRY_FILE,
    LOCK_FILE,
    PackageSpec,
    PackageUse,
    StoreEntry,
    entry_text,
    find_entry,
)
from aish.policy.lock import Package, PackagePin
from aish.system.file_lock import BeingWrittenError, hold_lock
from aish.system.files import cache_folder, hidden_folder, packages_folder, private_folder
from aish.system.platform.opens import open_place
from aish.system.platform.syncs import sync_file_system
from aish.system.process.child import CommandResult, follow
from aish.system.process.reaper import Reaper
from aish.system.process.sandbox import bubblewrap_words, fetch_rules, sandbox_problem
from aish.system.process.supervisor import Command, Supervisor

FETCH_SECONDS = 300.0
_PAUSE = 0.2
_MOST_OUTPUT = 200_000
_LINES = 5
_SHOWN = 5
_NPM_WORDS: Final = (
    *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"),
    *("--global=false", "--package-lock=true", "--lockfile-version=3", "--bin-links=true"),
    *("--install-strategy=hoisted", "--include=prod", "--include=optional", "--omit=dev"),
    *("--dry-run=false", "--workspaces=false", "--progress=false", "--cache", "cache"),
    # Each of these would come without the registry's checksum, or from the machine itself.
    *("--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none"),
)
_NPM_PATIENCE: Final = {
    "npm_config_fetch_retries": "1",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "4000",
    "npm_config_fetch_timeout": "60000",
}
"""Without a network `npm` would be silent for five minutes."""
_STRONG = re.compile(r"\bsha(?:256|384|512)-")
_PYTHON_LINK = re.compile(r"bin/python[\d.]*")
_MODULES = "node_modules/"
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!]+)((?: --hash=sha256:[0-9a-f]{64})+)")
_OF_VENV: Final = ("activate*", "*.bat")
"""Programs of a virtual environment that a server does without, and that name its folder."""
_DIFFERS = re.compile(r"EINTEGRITY|[Hh]ash mismatch")
_MISSING = re.compile(r"\bE404\b|ETARGET|EUSAGE|No solution found|not found in the")
_NEEDS_BUILD = re.compile(r"no usable wheels|no wheels with|[Bb]uild(?:ing)?[^\n]* disabled")
_INSTALL = "install the server yourself, and name its program in `command`"


@frozen
class _Place:
    """The folder of one fetch, with that of its entry, and how programs are run in it."""

    folder: Path
    environ: Mapping[str, str]
    supervisor: Supervisor

    @property
    def entry(self) -> Path:
        return self.folder / "entry"

    async def run(self, *words: str) -> CommandResult:
        """Run a program, which may write in the folder only."""
        if shutil.which(words[0], path=self.environ.get("PATH", os.defpath)) is None:
            package = "Node.js" if words[0] == "npm" else "uv (`pip install uv`)"
            message = f"there is no `{words[0]}` in PATH"
            raise UnavailableError(message, hint=f"install {package}")
        environ = {**_NPM_PATIENCE, **self.environ, "TMPDIR": str(self.folder), "NO_COLOR": "1"}
        environ |= {"UV_CACHE_DIR": str(self.folder / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
        command = await anyio.to_thread.run_sync(self._confine, words, environ)
        descriptor = open_place(self.folder)
        try:
            return await follow(
                lambda streams: self.supervisor.start(command, folder=descriptor, streams=streams),
                timeout=None,
                limit_bytes=_MOST_OUTPUT,
            )
        finally:
            os.close(descriptor)

    def _confine(self, words: Sequence[str], environ: Mapping[str, str]) -> Command:
        if not sandbox_problem("landlock", environ, None):
            return Command(words, environ, landlock=fetch_rules(self.folder))
        if sandbox_problem("bubblewrap", environ, self.folder):
            return Command(words, environ)
        confined = bubblewrap_words(environ, self.folder, (), str(self.folder), network=True)
        return Command((*confined, *words), environ, wrapped=True)

    async def install(self, *words: str, pinned: bool) -> None:
        """Run a program that installs.

        Raises:
            LockDiffersError: a checksum is not right, or what was pinned is not there any more.
            UnavailableError: it failed in any other way.
        """
        result = await self.run(*words)
        if result.exit_code == 0:
            return
        said = result.stderr.decode("utf-8", "replace")
        told = (line.strip() for line in said.splitlines() if "A complete log of" not in line)
        lines = (
            "\n".join([line for line in told if line][:_LINES]) or f"exit code {result.exit_code}"
        )
        if _DIFFERS.search(said):
            message = "what the registry sent does not have its checksum"
            raise LockDiffersError(f"{message}: {lines}")
        if pinned and _MISSING.search(said):
            raise LockDiffersError(f"the registry does not have what is locked: {lines}")
        hint = None
        if _NEEDS_BUILD.search(said):
            hint = f"a package that has to be built is not fetched: {_INSTALL}"
        raise UnavailableError(f"`{' '.join(words[:2])}` failed: {lines}", hint=hint)


async def fetch_for_run(package: PackageUse, reaper: Reaper) -> StoreEntry:
    """Fetch a server that is to be started.

    Raises:
        LockDiffersError: it is not what is locked.
        UnavailableError: it cannot be fetched, or must not be.
    """
    spec = package.spec
    if not package.may_fetch:
        message = "it is not in the store, and `--no-fetch` was given"
        hint = f"`aish fetch {package.file}` fetches it"
        raise UnavailableError(f"`{spec.requirement}` is not fetched: {message}", hint=hint)
    return await fetch(spec, package.pin, package.environ, reaper)


async def fetch(
    spec: PackageSpec,
    pin: PackagePin | None,
    environ: Mapping[str, str],
    reaper: Reaper,
    *,
    thorough: bool = False,
) -> StoreEntry:
    """Install a server, exactly what is pinned if it is, unless it is in the store.

    If `thorough`, what is not pinned and has no exact version is resolved anew, and the files in
    the store are checked.

    Raises:
        LockDiffersError: a checksum is not right, what was pinned is not there any more, or files
            in the store were changed.
        UnavailableError: it cannot be fetched, or needs code of its own for that.
    """
    try:
        with anyio.fail_after(FETCH_SECONDS):
            return await _fetch(spec, pin, environ, reaper, thorough=thorough)
    except TimeoutError:
        message = f"it was not fetched within {FETCH_SECONDS:g} s"
        hint = "does this machine reach the registry of your `npm` or `uv`?"
        problem: AishError = UnavailableError(message, hint=hint)
    except (UnavailableError, LockDiffersError) as error:
        problem = error
    except (OSError, UsageError) as error:
        problem = UnavailableError(f"it cannot be kept in the store: {error}")
    problem.message = f"`{spec.requirement}` is not fetched: {problem.message}"
    raise problem


async def _fetch(
    spec: PackageSpec,
    pin: PackagePin | None,
    environ: Mapping[str, str],
    reaper: Reaper,
    *,
    thorough: bool,
) -> StoreEntry:
    is_settled = pin is not None or spec.exact or not thorough
    entry = find_entry(spec, pin) if is_settled else None
    if entry is None:
        for folder in (hidden_folder(cache_folder()), packages_folder(), spec.folder):
            private_folder(folder)
        with ExitStack() as lock:
            await _take_lock(spec, lock)
            entry = find_entry(spec, pin) if is_settled else None
            entry = entry or await _install(spec, pin, environ, reaper)
    if thorough and not await anyio.to_thread.run_sync(_is_unchanged, entry, pin):
        with ExitStack() as lock:
            await _take_lock(spec, lock)
            raise _put_aside(entry)
    return entry


async def _take_lock(spec: PackageSpec, lock: ExitStack) -> None:
    """Wait for other processes that fetch the server, until the time for that is over.

    Raises:
        UnavailableError: one of them takes too long.
    """
    while True:
        try:
            lock.enter_context(hold_lock(spec.folder / LOCK_FILE, 0))
        except BeingWrittenError as error:
            if anyio.current_effective_deadline() - anyio.current_time() < 2 * _PAUSE:
                message = f"{error.writer} fetches it, and did not end within {FETCH_SECONDS:g} s"
                raise UnavailableError(message) from None
            await anyio.sleep(_PAUSE)
        else:
            return


async def _install(
    spec: PackageSpec, pin: PackagePin | None, environ: Mapping[str, str], reaper: Reaper
) -> StoreEntry:
    # Of a name of its own: what a killed fetch has started may write in its folder yet.
    for left in spec.folder.glob(f"{ASIDE}*"):
        await anyio.to_thread.run_sync(_remove, left)
    aside = private_folder(spec.folder / f"{ASIDE}-{os.urandom(4).hex()}", new=True)
    supervisor = Supervisor(reaper)
    place = _Place(aside, environ, supervisor)
    try:
        install = _install_npm if spec.launcher == "npx" else _install_uv
        program, resolved, system = await install(spec, pin, place)
        await anyio.to_thread.run_sync(check_links, place.entry)
        digest = await anyio.to_thread.run_sync(tree_digest, place.entry)
        now = PackagePin(spec.text, resolved, f"{system} {digest}")
        if pin is not None and pin.has_other_files(now):
            raise LockDiffersError("the files that were installed are not those of the lock")
        return await anyio.to_thread.run_sync(_move_in, place.entry, spec, program, now)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(supervisor.close)
            await anyio.to_thread.run_sync(_remove, aside)


def _move_in(installed: Path, spec: PackageSpec, program: str, pin: PackagePin) -> StoreEntry:
    """Make an installation an entry, unless there is one; it is the newest then."""
    entry = find_entry(spec, pin)
    if entry is not None:
        os.utime(entry.path / ENTRY_FILE)
        return entry
    path = spec.folder / pin.digest
    _remove(path)  # what could not be started
    (installed / ENTRY_FILE).write_text(entry_text(program, pin), "utf-8")
    installed.chmod(0o700)
    sync_file_system(installed)
    installed.rename(path)
    return StoreEntry(path, program, pin)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_Installed = tuple[str, tuple[Package, ...], str]
"""The program of an installation, its packages, and the platform that its files are for."""


async def _install_npm(spec: PackageSpec, pin: PackagePin | None, place: _Place) -> _Installed:
    place.entry.mkdir()
    version = spec.version
    if pin is not None:
        of_pin = (one.version for one in pin.resolved if one.name == spec.name and not one.path)
        version = next(of_pin, version)
        lock = json.dumps(_old_lock(pin.resolved))
        (place.folder / "package-lock.json").write_text(lock, "utf-8")
        # With a lock and no network `npm ci` would ask in vain for each package in turn.
        view = ("view", f"{spec.name}@{version}", "version", "--cache", "cache")
        await place.install("npm", *view, pinned=True)
    wanted = json.dumps({"private": True, "dependencies": {spec.name: version}})
    (place.folder / "package.json").write_text(wanted, "utf-8")
    await place.install("npm", "install" if pin is None else "ci", *_NPM_WORDS, pinned=bool(pin))
    whole = json.loads((place.folder / "package-lock.json").read_text("utf-8"))
    (place.folder / "node_modules").rename(place.entry / "node_modules")
    listed = place.entry / "node_modules" / ".package-lock.json"
    rows: Mapping[str, JsonObject] = json.loads(listed.read_text("utf-8"))["packages"]
    listed.unlink()
    scripts = [path.rpartition(_MODULES)[2] for path in rows if rows[path].get("hasInstallScript")]
    if scripts:
        raise UnavailableError(
            f"{backticked(scripts, _SHOWN)} runs scripts to be installed", hint=_INSTALL
        )
    resolved = tuple(_npm_packages(whole["packages"])) if pin is None else pin.resolved
    known = {one.path or one.name: one.version for one in resolved}
    here = {one.path or one.name: one.version for one in _npm_packages(rows)}
    if weak := [one.path or one.name for one in resolved if not _STRONG.search(one.integrity)]:
        problem = "comes from no registry, or has no checksum of SHA-256 or better"
        raise UnavailableError(f"{backticked(weak, _SHOWN)} {problem}", hint=_INSTALL)
    if others := [path for path, version in here.items() if known.get(path) != version]:
        raise LockDiffersError(f"npm installed what is not locked: {backticked(others, _SHOWN)}")
    program = _npm_program(spec, rows.get(_MODULES + spec.name, {}))
    return program, resolved, f"{sys.platform}-{platform.machine()}"


def _npm_packages(rows: Mapping[str, JsonObject]) -> Iterator[Package]:
    """The packages of a lock of npm, in the order of their places."""
    for place, row in sorted(rows.items()):
        if not place or row.get("inBundle"):
            continue
        path = place.removeprefix(_MODULES)
        name = str(row.get("name") or path.rpartition(_MODULES)[2])
        version, integrity = str(row.get("version", "")), str(row.get("integrity", ""))
        yield Package(name, version, integrity, "" if path == name else path)


def _old_lock(resolved: Sequence[Package]) -> JsonObject:
    """A lock of npm in its first version, which needs no more than places and checksums."""
    root: dict[str, Any] = {}
    for package in sorted(resolved, key=lambda one: len((one.path or one.name).split(_MODULES))):
        where = package.path or package.name
        if {"", ".", ".."} & {*where.split("/")}:
            raise UnavailableError(f"`{where}` in the lock leads out of its folder")
        *above, own = (part.rstrip("/") for part in where.split(_MODULES))
        rows: dict[str, Any] = root
        for part in above:
            rows = rows.setdefault(part, {}).setdefault("dependencies", {})
        alias = own != package.name
        version = f"npm:{package.name}@{package.version}" if alias else package.version
        rows[own] = {"version": version, "integrity": package.integrity}
    return {"lockfileVersion": 1, "requires": True, "dependencies": root}


def _npm_program(spec: PackageSpec, row: JsonObject) -> str:
    """The program that `npx` starts: the only one, or that of the name of the package."""
    programs = row.get("bin")
    programs = programs if isinstance(programs, Mapping) else {}
    own = spec.name.rpartition("/")[2]
    if programs and (len({*programs.values()}) == 1 or own in programs):
        name = own if own in programs else next(iter(programs))
        return f"node_modules/.bin/{name}"
    raise UnavailableError(f"`{spec.name}` has no program of its name", hint=_INSTALL)


async def _install_uv(spec: PackageSpec, pin: PackagePin | None, place: _Place) -> _Installed:
    # What uv finds here it looks for in no folder above, which may be that of a project.
    (place.folder / "uv.toml").touch()
    await place.install("uv", "venv", "--quiet", "--relocatable", "entry", pinned=False)
    python = (place.entry / "bin" / "python").resolve()
    words = ("--quiet", "--python", "entry/bin/python", "--only-binary", ":all:")
    file = place.folder / "requirements.txt"
    if pin is None:
        (place.folder / "wanted.txt").write_text(f"{spec.requirement}\n", "utf-8")
        form = ("--generate-hashes", "--no-header", "--no-annotate", "--strip-extras")
        to = ("wanted.txt", "--output-file", file.name)
        await place.install("uv", "pip", "compile", *words, *form, *to, pinned=False)
        resolved = tuple(_requirements(file.read_text("utf-8")))
    else:
        resolved = pin.resolved
        file.write_text("".join(map(_requirement, resolved)), "utf-8")
    exactly = ("--require-hashes", "--no-deps", "--requirement", file.name)
    await place.install("uv", "pip", "install", *words, *exactly, pinned=bool(pin))
    programs = place.entry / "bin"
    for pattern in _OF_VENV:
        for path in programs.glob(pattern):
            path.unlink()
    if not (programs / spec.program).is_file():
        raise UnavailableError(f"`{spec.requirement}` has no program `{spec.program}`")
    # In a sandbox nothing can be compiled later. By the machine's Python, and `-S`: no program
    # `python` of a package runs, and no `.pth` file.
    compiled = ("compileall", "-q", "--invalidation-mode", "unchecked-hash", "entry/lib")
    await place.run(str(python), "-I", "-S", "-m", *compiled)
    lines = (place.entry / "pyvenv.cfg").read_text("utf-8").splitlines()
    config = dict(line.split(" = ", 1) for line in lines if " = " in line)
    versions = f"python-{config.get('version_info')}-uv-{config.get('uv')}"
    return f"bin/{spec.program}", resolved, f"{sys.platform}-{platform.machine()}-{versions}"


def _requirements(text: str) -> Iterator[Package]:
    """The packages of a file of requirements with hashes."""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        match = _REQUIREMENT.fullmatch(line.strip())
        if match is None:
            raise UnavailableError(
                f"`{line.split(' --hash')[0]}` comes from no index", hint=_INSTALL
            )
        yield Package(match[1], match[2], match[3].replace(" --hash=", " ").strip())


def _requirement(package: Package) -> str:
    hashes = " ".join(f"--hash={one}" for one in package.integrity.split())
    return f"{package.name}=={package.version} {hashes}\n"


def _is_unchanged(entry: StoreEntry, pin: PackagePin | None) -> bool:
    """Return true if the files of an entry are those that were installed, and that are pinned."""
    is_same = tree_digest(entry.path) == entry.pin.files.rpartition(" ")[2]
    return is_same and (pin is None or not pin.has_other_files(entry.pin))


def _put_aside(entry: StoreEntry) -> LockDiffersError:
    """Move an entry that was changed, so that nothing of it starts, and say so.

    A server without a sandbox may have put data there.
    """
    changed = entry.path.with_name(f"changed-{os.urandom(4).hex()}")
    entry.path.rename(changed)
    message = f"its files in the store were changed since they were fetched: see {changed}"
    return LockDiffersError(message, hint="fetch it again; keep data of a server elsewhere")


def check_links(folder: Path) -> None:
    """Check that no link below a folder leads out of it, but for those to the machine's Python.

    Raises:
        UnavailableError: one does.
    """
    own = folder.resolve()
    for path in folder.rglob("*"):
        place = str(path.relative_to(folder))
        if not path.is_symlink() or _PYTHON_LINK.fullmatch(place):
            continue
        if not path.resolve().is_relative_to(own):
            raise UnavailableError(f"`{place}` of a package is a link that leads out of it")


def tree_digest(folder: Path) -> str:
    """The digest of all files below a folder, but for what says where its Python is."""
    lines = [line for above, _, _ in os.walk(folder) for line in _lines(folder, Path(above))]
    text = "\n".join(sorted(lines))
    return f"sha256:{sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}"


def _lines(folder: Path, above: Path) -> Iterator[str]:
    for path in above.iterdir():
        name = str(path.relative_to(folder))
        if path.is_symlink():
            if not _PYTHON_LINK.fullmatch(name):
                yield f"{name!r} link {str(path.readlink())!r}"
        elif path.is_file() and name not in {ENTRY_FILE, "pyvenv.cfg"}:
            with path.open("rb") as stream:
                content = file_digest(stream, "sha256").hexdigest()
            yield f"{name!r} {bool(path.stat().st_mode & 0o100):d} {content}"
