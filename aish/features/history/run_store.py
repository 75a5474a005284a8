"""The folder of runs and the run folders in it; no link is followed."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from operator import itemgetter
from pathlib import Path
from typing import Self

from aish.core.errors import UsageError, did_you_mean
from aish.engine.run_folder import tame_name
from aish.system.files import open_own

JOURNAL = Path("events.jsonl")
LATEST = "latest"
"""The name of the newest run."""

_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z0-9-]{1,40}-[a-z0-9]{4}\Z")
PROJECTS = (Path(), Path("pipelines"))
"""The folders of a project's pipelines."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Any other file in a run's folder was put there by the user.
_OURS = re.compile(
    r"(?:events\.jsonl(?:\.torn)?|results\.jsonl|plan\.json|report\.html|junit\.xml"
    r"|staged\.json(?:\.applied\.jsonl(?:\.torn)?)?"
    r"|recording-[0-9]+\.yaml(?:\.partial)?"
    r"|\.results\.jsonl\.[0-9a-f]{16}|control\.(?:json|token)|files|servers|scripts|\.gitignore"
    r"|model-.*\.log)\Z"
)


class RunStore:
    """An open folder of runs; `path` is for display. A context manager that closes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._descriptor)

    def ids(self) -> Iterator[str]:
        return filter(_ID.match, self.names())

    def names(self) -> Iterator[str]:
        with os.scandir(self._descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name

    def order(self, id: str) -> tuple[str, int, str]:
        """Sort key of runs by start: within a second, by the time their plan was written."""
        stamp, _, _ = id.partition("-")
        try:
            plan = os.stat(f"{id}/plan.json", dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return stamp, 0, id
        return stamp, plan.st_mtime_ns, id

    def open_journal(self, id: str) -> int:
        """A descriptor that reads the journal of a run; raises like `open_file`."""
        return self.open_file(id, JOURNAL.name)

    def open_file(self, id: str, name: str) -> int:
        """A descriptor that reads a file of ours in the folder of a run.

        Raises:
            UsageError: it is not a regular file owned by the user, or the run's folder is a link.
            FileNotFoundError: there is none.
        """
        with ExitStack() as stack:
            return open_own(Path(name), self.open_folder(id, stack))

    def strangers(self, id: str) -> Sequence[str]:
        with ExitStack() as stack, os.scandir(self.open_folder(id, stack)) as entries:
            return sorted(entry.name for entry in entries if not _OURS.match(entry.name))

    def size(self, id: str) -> int:
        with ExitStack() as stack:
            folder = self.open_folder(id, stack)
            return sum(
                os.stat(name, dir_fd=held, follow_symlinks=False).st_size
                for _, _, names, held in os.fwalk(".", dir_fd=folder)
                for name in names
            )

    def remove(self, id: str) -> None:
        """Delete the run's folder; a link in it is deleted, not its target."""
        shutil.rmtree(id, dir_fd=self._descriptor)

    def open_folder(self, id: str, stack: ExitStack) -> int:
        """The folder of a run, open until `stack` is left.

        Raises:
            UsageError: it is a link, or belongs to another user.
            FileNotFoundError: there is none.
        """
        folder = open_subfolder(self._descriptor, id, self.path / id)
        stack.callback(os.close, folder)
        return folder


def open_stores(wanted: Path | None, stack: ExitStack) -> Sequence[RunStore]:
    """The selected folders of runs: `wanted`, or those of the project.

    A project's pipelines are in its folder or in `pipelines/` (as for `aish test`), with the runs
    next to them.

    Raises:
        UsageError: `wanted` cannot be read, or a part of a project's folder is a link.
    """
    if wanted is not None:
        try:
            held = os.open(wanted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{error.strerror}", where=f"--run-dir {wanted}") from error
        return [stack.enter_context(RunStore(wanted, held))]
    stores = []
    for project in PROJECTS:
        # A missing folder is not an error: nothing was run there yet.
        with suppress(FileNotFoundError):
            stores.append(stack.enter_context(open_project(project)))
    return stores


def sessions_elsewhere(stores: Sequence[RunStore], name: str = "") -> str | None:
    """The project's session folders that are not in `stores`, if the session is there.

    Sessions have journals like runs, in a folder of their own.
    """
    known = [store.path.absolute() for store in stores]
    for project in PROJECTS:
        path = project / ".aish" / "sessions"
        if path.absolute() in known:
            continue
        with suppress(OSError, UsageError), open_project(project, path.name) as store:
            if any(id.endswith(name) for id in store.ids()):
                return f"`--run-dir {path}` has the sessions of `aish shell`"
    return None


def open_store(folder: Path, shown: Path) -> RunStore:
    """A folder of runs named by the user, displayed as it was named.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return RunStore(shown, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError(f"{error.strerror}", where=str(shown)) from error


def newest_first(stores: Sequence[RunStore]) -> list[tuple[str, RunStore]]:
    """Every run and the store that has it."""
    rows = [(store.order(id), id, store) for store in stores for id in store.ids()]
    return [(id, store) for _, id, store in sorted(rows, key=itemgetter(0), reverse=True)]


def find_run(stores: Sequence[RunStore], name: str) -> tuple[RunStore, str]:
    """The run with this id, or a unique suffix of one; `latest` is the newest.

    Raises:
        UsageError: there is none, or more than one.
    """
    stores_by_id = dict(newest_first(stores))
    if not stores_by_id:
        hint = sessions_elsewhere(stores) or "`--run-dir DIR` uses another folder"
        raise UsageError("there are no runs", where=places_of(stores), hint=hint)
    id = next(iter(stores_by_id)) if name == LATEST else find_id(stores_by_id, name, "run")
    if id is not None:
        return stores_by_id[id], id
    near = sessions_elsewhere(stores, name) or did_you_mean(name, stores_by_id)
    hint = near or "`aish runs list` lists them"
    raise UsageError(f"unknown run `{name}`", where=places_of(stores), hint=hint)


def find_id(ids: Collection[str], name: str, noun: str) -> str | None:
    """The id `name`, or the only one with this suffix.

    Raises:
        UsageError: more than one does.
    """
    fitting = [name] if name in ids else [id for id in ids if name and id.endswith(name)]
    if len(fitting) > 1:
        message = f"`{name}` matches {len(fitting)} {noun}s"
        raise UsageError(message, hint="give the whole id")
    return fitting[0] if fitting else None


def newest_of(stores: Sequence[RunStore], pipeline: str) -> list[tuple[str, RunStore]]:
    """The runs whose ids contain a pipeline's name, each with its store."""
    name = tame_name(pipeline)
    return [
        (id, store)
        for id, store in newest_first(stores)
        if id.partition("-")[2].rpartition("-")[0] == name
    ]


def places_of(stores: Sequence[RunStore]) -> str | None:
    return ", ".join(str(store.path) for store in stores) or None


def open_project(project: Path, store: str = "runs") -> RunStore:
    """The folder of runs of one project, or another `store` of it.

    Raises:
        UsageError: a part of its path is a link or not a folder.
        FileNotFoundError: there is none.
    """
    held = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    path = project
    for part in (".aish", store):
        path /= part
        try:
            above, held = held, open_subfolder(held, part, path)
        except BaseException:
            os.close(held)
            raise
        os.close(above)
    return RunStore(path, held)


def open_subfolder(held: int, part: str, path: Path) -> int:
    """The subfolder `part` of an open folder; no link is followed.

    Raises:
        UsageError: it is a link or not a folder, or belongs to another user.
        FileNotFoundError: there is none.
    """
    try:
        descriptor = os.open(part, _FOLDER, dir_fd=held)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            message = f"`{path}` is a link or not a folder, and links are not followed here"
            raise UsageError(message) from error
        raise
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise UsageError(f"`{path}` belongs to another user")
    return descriptor
