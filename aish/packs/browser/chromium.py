"""Our own Chromium: its program, flags, profile and end.

The profile is a temporary folder, which also holds the browser's home and temporary files.
`system/process/supervisor` ends the whole process tree, even if aish is killed.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.browser.cdp import PipeWire
from aish.packs.pack_error import PackError
from aish.system.platform.opens import open_place
from aish.system.process.child import (
    PipeReader,
    PipeWriter,
    StderrLog,
    child_environment,
    hide_process,
)
from aish.system.process.reaper import Reaper
from aish.system.process.supervisor import Command, Supervised, Supervisor
from aish.system.secrets.secrets import Secrets

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The names that Chromium has in PATH, in order."""
_PREFIX: Final = "aish-browser-"
_LONGEST_FOLDER: Final = 40
"""Bytes of the path of the folder for temporary files: Chromium's socket has 67 more, of 107."""
_LOCK: Final = "lock"
_GRACE: Final = 2.0
_SHOWN: Final = 300
# The protocol is spoken on descriptors 3 and 4, and a child of ours gets three. No process of the
# browser gets more data than that, in KiB: an empty page has 0.7 GiB, and Chromium bounds only the
# objects of scripts, by 4 GiB. Where the limit is lower already it stays.
_ON_PIPES: Final = f'ulimit -d {3 << 20} 2>/dev/null; exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
_FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-hang-monitor",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
    "--use-mock-keychain",
    "--force-device-scale-factor=1",
)


def find_chromium(program: str, environ: Mapping[str, str]) -> str | None:
    """Find the browser `program`, a name or a path, or one with a usual name in PATH."""
    path = environ.get("PATH", "")
    names = (program,) if program else PROGRAMS
    return next((location for name in names if (location := shutil.which(name, path=path))), None)


@frozen
class Chromium:
    """A running browser; `sandboxed` says whether its pages are in Chromium's sandbox."""

    path: str
    wire: PipeWire
    sandboxed: bool
    child: Supervised
    stderr: StderrLog

    def words(self, mask: Callable[[str], str]) -> str:
        """Return the first and last line of its standard error, and the first fatal one."""
        lines = [line.strip() for line in mask(self.stderr.excerpt).splitlines() if line.strip()]
        fatal = [line for line in lines if "FATAL" in line]
        named = lines[:1] + fatal[:1] + lines[-1:]
        shown = dict.fromkeys(shorten(for_line(line), _SHOWN) for line in named)
        return " … ".join(shown)


@asynccontextmanager
async def own_chromium(
    program: str,
    environ: Mapping[str, str],
    reaper: Reaper,
    guard: Sequence[str],
    preferences: Mapping[str, JsonValue],
) -> AsyncGenerator[Chromium]:
    """Start a browser with the flags and preferences of its guard; leave nothing of it behind."""
    path = find_chromium(program, environ)
    if path is None:
        what = f"`{for_line(program)}`" if program else "Chromium"
        hint = "the option `program` names one" if not program else "see the option `program`"
        message = f"{what} is not installed: apt-get install chromium ({hint})"
        raise PackError("not_installed", message)
    hide_process()
    await anyio.to_thread.run_sync(remove_left_profiles)
    with _profile(reaper, preferences) as profile:
        # Root has no user to be told apart from: Chromium starts without its sandbox only.
        sandboxed = os.geteuid() != 0
        flags = [*_FLAGS, f"--user-data-dir={profile}", *guard]
        flags += [] if sandboxed else ["--no-sandbox"]
        argv = ("/bin/sh", "-c", _ON_PIPES, "sh", path, *flags)
        supervisor = Supervisor(reaper)
        try:
            child, wire, stderr = await _start_chromium(supervisor, argv, profile, environ)
            try:
                yield Chromium(path, wire, sandboxed, child, stderr)
            finally:
                with anyio.CancelScope(shield=True):
                    await wire.aclose()
                    with anyio.move_on_after(_GRACE):
                        await child.wait_until_gone()
                    await child.stop(0)
                    stderr.close()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(supervisor.close)


async def _start_chromium(
    supervisor: Supervisor, argv: Sequence[str], profile: Path, environ: Mapping[str, str]
) -> tuple[Supervised, PipeWire, StderrLog]:
    home = str(profile)
    own = {
        "HOME": home,
        "TMPDIR": home,
        "XDG_CONFIG_HOME": home,
        "XDG_CACHE_HOME": home,
        "XDG_RUNTIME_DIR": home,
    }
    env = {**child_environment({}, environ), **own}
    with ExitStack() as theirs, ExitStack() as ours:
        stdin, to_child = _pipe(theirs, ours)
        from_child, stdout = _pipe(ours, theirs)
        errors, stderr = _pipe(ours, theirs)
        folder = open_place(profile)
        theirs.callback(os.close, folder)
        command = Command(argv, env)
        try:
            child = await supervisor.start(command, folder=folder, streams=(stdin, stdout, stderr))
        except OSError as error:
            why = (error.strerror or os.strerror(error.errno or 0)).lower()
            raise PackError("unavailable", f"Chromium cannot be started: {why}") from error
        ours.pop_all()
    wire = PipeWire(PipeReader(from_child), PipeWriter(to_child))
    return child, wire, StderrLog(errors, None, Secrets())


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[int, int]:
    one, other = os.pipe()
    reading.callback(os.close, one)
    writing.callback(os.close, other)
    return one, other


@contextmanager
def _profile(reaper: Reaper, preferences: Mapping[str, JsonValue]) -> Generator[Path]:
    """Make a profile for one browser, locked while it is used, and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_temporary_folder()))
    if "\n" not in str(folder):  # the reaper reads lines
        reaper.own_folder(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "Default").mkdir(mode=0o700)
        with os.fdopen(os.open(folder / "Default" / "Preferences", flags, 0o600), "w") as file:
            json.dump(preferences, file)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        reaper.disown_folder(folder)
        os.close(lock)


def _temporary_folder() -> str:
    """Return the folder for profiles: the temporary one, unless socket paths get too long."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else "/tmp"  # ruff: ignore[hardcoded-temp-file] - what is made there is private


def remove_left_profiles() -> None:
    """Remove the profiles of killed processes; `system/process` also removes them."""
    for folder in Path(_temporary_folder()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or removed meanwhile
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        # Without a lock file its maker is about to make it.
        lock = os.open(_LOCK, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=opened)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)
    finally:
        os.close(opened)
