"""The run's folder: journal, full results, images, server logs."""

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.system.files import (
    atomic_write,
    display_path,
    is_there,
    open_own,
    private_folder,
    write_private,
)

if TYPE_CHECKING:
    # Commands that look at past runs need none.
    from aish.core.protocols import Clock
    from aish.engine.plan.options import RunOptions
    from aish.engine.plan.plan import Plan

_ELSEWHERE = "`--run-dir DIR` puts it elsewhere, `--ephemeral` does without"
STDIN = "stdin.txt"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def run_id(name: str, now: float) -> str:
    """UTC time, name and 4 random characters: sortable by time, unique enough on one disk."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    tail = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return f"{stamp}-{tame_name(name)}-{tail}"


def tame_name(name: str) -> str:
    """A pipeline's name in the form used in run ids."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"


@frozen
class RunsPlace:
    """The folder of runs: `.aish/runs` of the project, or the one that a person `wanted`.

    `folder_name` is another name than `runs` for what is no run of a pipeline.
    """

    project: Path
    wanted: Path | None = None
    folder_name: str = "runs"

    @property
    def runs(self) -> Path:
        return self.wanted or self.project / ".aish" / self.folder_name


@slotted
class RunFolder:
    """An open run folder. `path` is `None` for `--ephemeral`, and then nothing is kept.

    `within` is its base folder, with no link below it.
    """

    id: str
    path: Path | None
    mask: Callable[[str], str] = field(default=str)
    _kept: int = 0
    within: Path | None = None

    @property
    def shown(self) -> str | None:
        """The folder for display: relative to the working directory if below it."""
        return None if self.path is None else display_path(self.path)

    @property
    def logs(self) -> Path | None:
        return None if self.path is None else private_folder(self.path / "servers")

    @contextmanager
    def require_in_place(self) -> Generator[None]:
        """Check that the folder stays in place while the first files of a run are created."""
        try:
            self._require()
            yield
        except OSError:
            self._require()
            raise
        self._require()

    @contextmanager
    def unless_refused(self) -> Generator[None]:
        """While the run may still be refused: a new folder is then deleted."""
        try:
            yield
        except AishError:
            if self.path is not None and self.within is not None:
                from shutil import rmtree

                # The refusal is what matters, even if this cannot be deleted.
                rmtree(self.path, ignore_errors=True)
            raise

    def _require(self) -> None:
        if self.path is None or self.within is None:
            return
        try:
            there = is_there(self.path, self.within)
        except OSError as error:
            message = f"cannot look at the run folder: {error.strerror}"
            raise UsageError(message, where=str(self.path), hint=_ELSEWHERE) from error
        if not there:
            message = "the run folder was deleted, moved or replaced by a link while the run began"
            raise UsageError(message, where=str(self.path), hint=_ELSEWHERE)

    def keep(self, name: str, content: bytes) -> str | None:
        """Write `content` beside the journal and return its path relative to the run's folder.

        The name on disk is a counter and a sanitized form of `name`, never the data's own.
        """
        if self.path is None:
            return None
        self._kept += 1
        tame = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:60] or "file"
        place = private_folder(self.path / "files") / f"{self._kept:04d}-{tame}"
        write_private(place, _mask(content, self.mask))
        return f"files/{place.name}"

    def keep_as(self, name: str, content: bytes) -> None:
        """Like `keep`, under a name that a worker has chosen."""
        if self.path is not None:
            write_private(
                private_folder(self.path / "files") / Path(name).name, _mask(content, self.mask)
            )

    def keep_stdin(self, text: str) -> None:
        """Store piped input, so that a resumed run does not need it again."""
        if self.path is not None:
            place = private_folder(self.path / "files") / STDIN
            write_private(place, self.mask(text).encode("utf-8", "surrogatepass"))

    def write_plan(self, plan: JsonValue) -> None:
        """Write the resolved file, already masked, replacing an earlier one."""
        if self.path is not None:
            text = json.dumps(plan, ensure_ascii=False, indent=2, default=str)
            path, data = self.path / "plan.json", self.mask(text).encode()
            try:
                write_private(path, data)
            except FileExistsError:
                # Its time orders runs that began in the same second.
                first = path.stat()
                atomic_write(path, data)
                os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns))


def read_kept(path: Path, name: str) -> bytes | None:
    """Read what `keep` wrote into the run folder at `path` as `name`; `None` if missing."""
    folder, _, file = name.partition("/")
    if folder != "files" or file in {"", ".", ".."} or "/" in file:
        return None
    try:
        held = os.open(path / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        descriptor = open_own(Path(file), held)
    except (OSError, UsageError, ValueError):
        return None
    finally:
        os.close(held)
    with os.fdopen(descriptor, "rb") as kept:
        return kept.read()


def _mask(content: bytes, mask: Callable[[str], str]) -> bytes:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    return mask(text).encode()


def open_folder(
    name: str, place: RunsPlace, now: float, *, ephemeral: bool, mask: Callable[[str], str]
) -> RunFolder:
    """Create the folder of a new run, with a `.gitignore` for itself."""
    if ephemeral:
        return RunFolder(id=run_id(name, now), path=None, mask=mask)
    try:
        while True:
            # Of two runs of one second, both may have drawn the same characters.
            with suppress(FileExistsError):
                path, within = _make(place, id := run_id(name, now))
                return RunFolder(id=id, path=path, mask=mask, within=within)
    except OSError as error:
        why = f"cannot make the run folder: {error.strerror or error}"
        # The error contains only the last part of the path.
        where = str(place.wanted or place.project / ".aish")
        raise UsageError(why, where=where, hint=_ELSEWHERE) from error
    except UsageError as error:
        raise UsageError(error.message, where=error.where, hint=_ELSEWHERE) from error


def new_folder(
    plan: "Plan",
    options: "RunOptions",
    clock: "Clock",
    place: RunsPlace | None = None,
    *,
    ephemeral: bool = False,
) -> RunFolder:
    """The folder of a new run, with the plan and the piped text in it."""
    pipeline, mask = plan.pipeline, plan.secrets.mask
    place = place or RunsPlace(pipeline.file.parent)
    folder = open_folder(pipeline.name, place, clock.now(), ephemeral=ephemeral, mask=mask)
    with folder.require_in_place():
        folder.write_plan(pipeline.data)
        if options.stdin:
            folder.keep_stdin(options.stdin)
    return folder


def reopen_folder(path: Path, mask: Callable[[str], str]) -> RunFolder:
    """The folder of a resumed run; its files are not overwritten."""
    number = 0
    with suppress(FileNotFoundError):
        numbers = (name.name.partition("-")[0] for name in (path / "files").iterdir())
        number = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return RunFolder(path.name, path, mask, number)


def resume_words(file: Path, folder: RunFolder) -> tuple[str, ...]:
    """The command that continues the run of a pipeline file; empty if nothing is kept."""
    if folder.path is None:
        return ()
    words = ("aish", "run", str(file), "--resume")
    runs = folder.path.parent
    if runs == file.parent.resolve() / ".aish" / "runs":
        return words
    here = Path.cwd()
    path = runs.relative_to(here) if runs.is_relative_to(here) else runs
    return (*words, "--run-dir", str(path))


def hidden_folder(project: Path) -> Path:
    """The folder `.aish` of a project, with a `.gitignore` for itself.

    Raises:
        UsageError: it is a link, or belongs to another user.
    """
    project = project.resolve()
    hidden = private_folder(project / ".aish", within=project)
    _ignore(hidden)
    return hidden


def _make(place: RunsPlace, id: str) -> tuple[Path, Path]:
    """The new folder, and the base below which no link is followed."""
    if place.wanted is None:
        # No link below the project is followed: a repository may come with one planted.
        project = place.project.resolve()
        hidden = hidden_folder(project)
        return private_folder(hidden / place.folder_name / id, project, new=True), project
    folder = place.wanted.resolve()
    if not folder.is_dir():
        private_folder(folder)
    # An existing folder belongs to the user: its mode and its other files are left alone.
    path = private_folder(folder / id, within=folder, new=True)
    _ignore(path)
    return path, folder


def _ignore(folder: Path) -> None:
    # Two runs may begin at once: either may create the file.
    with suppress(FileExistsError):
        write_private(folder / ".gitignore", b"*\n")
