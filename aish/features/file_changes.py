"""Changes of files by a run in git work trees, which git compares before and after it.

git reads its objects and a copy of its index through a git folder of our own, in a temporary one:
so nothing of the repository's configuration is used (filters, hooks, programs for differences), and
nothing is written into it. Commits that the run makes make no difference. Files that packs never
show, and large ones, are never read: of them only size and time are compared.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio

from aish.core.errors import AishError
from aish.core.events import ChangedFile, FilesChanged
from aish.core.frozen import slotted
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.packs.workspace.deny_list import is_denied
from aish.system.files import display_path
from aish.system.process.child import run_command

SECONDS = 5.0
"""For all that git does before a run, and again after it."""
LARGEST_PATCH = 1 << 20
LARGEST_FILE = 4 << 20
MOST_FILES = 500
_NAME = "changes"
_EMPTY = (
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
)
"""The trees without files, by SHA-1 and SHA-256."""
_OUTPUT_LIMIT = 32 << 20
_TOO_MUCH = "too many files differ"
# How files are read and compared; they start nothing.
_KEPT_SETTINGS = re.compile(
    r"^[ \t]*((?:filemode|symlinks|ignorecase|autocrlf|eol)[ \t]*=[ \t]*\w+)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_SHA256 = re.compile(r"^[ \t]*objectformat[ \t]*=[ \t]*sha256[ \t]*$", re.MULTILINE | re.IGNORECASE)
_CHANGES: Mapping[str, Literal["added", "deleted"]] = {"A": "added", "D": "deleted"}
_Unread = dict[str, tuple[bool, int, int]]
"""Files that are not read, by their paths: whether git does not know them, their size, which is -1
if they are gone, and the time of their last change."""


class _UnknownChangeError(Exception):
    """The change cannot be found out; its text says why."""


@slotted
class _WorkTree:
    """A work tree with the git folder of our own; `unread` are files as they were before."""

    top: Path
    git: Path
    program: Path
    exclude: Path
    head: Path
    dirty: bool = False
    tree: str = ""
    unread: _Unread = field(default_factory=dict)

    async def begin(self) -> None:
        self.unread = await self._update()
        self.tree = (await self._ask("write-tree", "--missing-ok")).decode().strip()
        committed = await self._ask(
            *("rev-parse", "--verify", "--quiet", "HEAD^{tree}"), at=self.head, may_fail=True
        )
        self.dirty = bool(self.unread) or self.tree not in (committed.decode().split() or _EMPTY)

    async def changes(self) -> FilesChanged:
        unread = await self._update()
        found = await self._ask(
            *("diff-index", "--cached", "--raw", "--numstat", "-p", "-z", "--no-renames"),
            *("--no-ext-diff", "--no-textconv", "--no-color", self.tree),
        )
        try:
            files, patch = _parse(found)
        except ValueError:  # cut in the list of files
            raise _UnknownChangeError(_TOO_MUCH) from None
        known = {file.path for file in files}
        others = _compare(self.unread, unread)
        files += [file for file in others if file.path not in known]
        text, cut = _first_part(patch)
        listed = tuple(files[:MOST_FILES])
        return FilesChanged(
            display_path(self.top), listed, len(files) - len(listed), text, cut, self.dirty
        )

    async def _update(self) -> _Unread:
        """Put the files as they are into our index; returns those that were not read."""
        excluded = (f"--exclude-from={self.exclude}",) if self.exclude.is_file() else ()
        options = ("-z", "-t", "-m", "-d", "-o", "--exclude-standard", *excluded)
        found = os.fsdecode(await self._ask("ls-files", *options))
        read, unread = await anyio.to_thread.run_sync(self._sort, found.split("\0"))
        if read:
            options = ("--add", "--remove", "--replace", "-z", "--stdin")
            await self._ask("update-index", *options, given=os.fsencode("\0".join([*read, ""])))
        return unread

    def _sort(self, found: Iterable[str]) -> tuple[list[str], _Unread]:
        """Sort what `ls-files -t` lists, files that differ, into those to read and the others."""
        read, unread = dict[str, None](), _Unread()
        streams = _own_streams()
        for line in found:
            mark, _, path = line.partition(" ")
            # A repository within this one, which is no submodule, ends with a slash.
            if not path or path.endswith("/"):
                continue
            file = self.top / path
            if file.parent.resolve() != file.parent:
                # It was in a folder that is a link now: git removes it with the folder.
                continue
            status = None
            with suppress(OSError):
                status = file.lstat()
            if status is not None and (status.st_dev, status.st_ino) in streams:
                continue
            if not is_denied(path.split("/")) and (status is None or _is_read(file, status)):
                read[path] = None
            else:
                times = (-1, 0) if status is None else (status.st_size, status.st_mtime_ns)
                unread[path] = (mark == "?", *times)
        return list(read), unread

    async def _ask(
        self,
        *words: str,
        at: Path | None = None,
        given: bytes = b"",
        may_fail: bool = False,
    ) -> bytes:
        """The output of a git command.

        Raises:
            _UnknownChangeError: it failed.
        """
        result = await run_command(
            [str(self.program), *words],
            cwd=self.top,
            env={
                "PATH": str(self.program.parent),
                "LC_ALL": "C",
                "HOME": str(self.git),
                "XDG_CONFIG_HOME": str(self.git),
                "GIT_DIR": str(at or self.git),
                "GIT_WORK_TREE": str(self.top),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_ATTR_NOSYSTEM": "1",
                "GIT_NO_REPLACE_OBJECTS": "1",
                "GIT_NO_LAZY_FETCH": "1",
                # Older ones fetch none the less, by programs that a repository names.
                "GIT_ALLOW_PROTOCOL": "",
                "GIT_OPTIONAL_LOCKS": "0",
            },
            timeout=None,
            limit_bytes=_OUTPUT_LIMIT,
            input=given,
        )
        if result.exit_code and not may_fail:
            said = result.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            raise _UnknownChangeError(f"`git {words[0]}` failed: {said or result.exit_code}")
        if result.truncated and words[0] != "diff-index":
            raise _UnknownChangeError(_TOO_MUCH)
        return result.stdout


def _own_streams() -> frozenset[tuple[int, int]]:
    """The device and inode of stdout and stderr: a log in the work tree is no change by the run."""
    known = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            known.add((status.st_dev, status.st_ino))
    return frozenset(known)


class FileChanges:
    """Compares the work trees that contain `roots`.

    `begin` and `end` never fail, and take at most `SECONDS` each.
    """

    def __init__(
        self, roots: Iterable[Path], folder: RunFolder, environ: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._tops = list(dict.fromkeys(filter(None, map(_top_of, roots))))
        self._trees: list[_WorkTree] = []
        self._known: list[FilesChanged] = []
        self._temporary: TemporaryDirectory[str] | None = None

    async def begin(self) -> None:
        if not self._tops:
            return
        problem = "git is not installed"
        if program := shutil.which("git", path=self._environ.get("PATH")):
            with anyio.move_on_after(SECONDS) as scope:
                problem = await self._open(await anyio.to_thread.run_sync(Path(program).absolute))
            if scope.cancelled_caught:
                problem = _too_slow()
        if problem:
            self._give_up(problem)

    async def end(self) -> Sequence[FilesChanged]:
        """The changes of each work tree, as an event."""
        problem = ""
        with anyio.move_on_after(SECONDS, shield=True) as scope:
            try:
                for tree in self._trees:
                    self._known.append(self._keep(await tree.changes()))
            except (_UnknownChangeError, OSError, AishError, ValueError) as error:
                problem = str(error)
        if scope.cancelled_caught:
            problem = _too_slow()
        if problem:
            self._give_up(problem)
        self.close()
        return self._known

    def close(self) -> None:
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.cleanup()
            self._temporary = None

    def _give_up(self, problem: str) -> None:
        self._trees.clear()
        self._known[:] = [FilesChanged(display_path(top), problem=problem) for top in self._tops]

    async def _open(self, program: Path) -> str:
        """Look at the files before the run; returns why that is not possible."""
        try:
            self._temporary = TemporaryDirectory(prefix="aish-", ignore_cleanup_errors=True)
            for number, top in enumerate(self._tops):
                place = Path(self._temporary.name) / f"{number}"
                tree = await anyio.to_thread.run_sync(partial(_own_git, top, place, program))
                await tree.begin()
                self._trees.append(tree)
        except (_UnknownChangeError, OSError, ValueError) as error:
            return str(error)
        return ""

    def _keep(self, found: FilesChanged) -> FilesChanged:
        """Keep the patch in the folder of the run, beside those of its earlier parts."""
        path = self._folder.path
        if path is None or not found.patch:
            return found
        names = chain((f"{_NAME}.diff",), (f"{_NAME}-{number}.diff" for number in count(2)))
        name = next(name for name in names if not (path / "files" / name).exists())
        self._folder.keep_as(name, found.patch.encode())
        return replace(found, kept=f"files/{name}")


def _too_slow() -> str:
    return f"git took longer than {SECONDS:g} s"


def server_roots(plan: Plan) -> Iterator[Path]:
    """The folders of the servers of a run."""
    for server in plan.servers:
        place = server.entry.root or server.entry.cwd
        if place is not None:
            yield place
    for inner in plan.inner.values():
        yield from server_roots(inner)


def _top_of(root: Path) -> Path | None:
    """The folder of the work tree that contains `root`, if one does."""
    root = root.resolve()
    folders = (root, *root.parents)
    return next((folder for folder in folders if os.path.lexists(folder / ".git")), None)


def _own_git(top: Path, place: Path, program: Path) -> _WorkTree:
    """A git folder at `place` that has the objects and the index of the repository."""
    git = top / ".git"
    if git.is_file():
        # A submodule, or one of several work trees.
        begin, _, name = git.read_text("utf-8", "surrogateescape").strip().partition(": ")
        if begin != "gitdir" or "\n" in name:
            raise _UnknownChangeError("`.git` is not a git folder")
        git = top / name
    common = git
    if (pointer := git / "commondir").is_file():  # a pipe would be waited for
        common = git / pointer.read_text("utf-8", "surrogateescape").strip()
    objects = (common / "objects").resolve()
    if not objects.is_dir() or "\n" in str(objects):
        raise _UnknownChangeError("`.git` is not a git folder")
    config = ""
    if (settings := common / "config").is_file():
        config = settings.read_text("utf-8", "replace")
    version, extensions = (
        (1, "\n[extensions]\nobjectformat = sha256") if _SHA256.search(config) else (0, "")
    )
    # Nothing here has to survive a power failure.
    quick = ("fsync = none", "looseCompression = 0")
    kept = [*quick, *_KEPT_SETTINGS.findall(config), "bare = false"]
    kept.append(f"repositoryformatversion = {version}")
    (place / "objects" / "info").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    (place / "config").write_text("[core]\n" + "\n".join(kept) + f"{extensions}\n")
    (place / "objects" / "info" / "alternates").write_text(
        f"{objects}\n", "utf-8", "surrogateescape"
    )
    # With their times, by which git knows what it has to compare.
    for file in (git / "index", *islice(git.glob("sharedindex.*"), MOST_FILES)):
        if file.is_file():
            shutil.copy2(file, place / file.name)
    return _WorkTree(top, place, program, common / "info" / "exclude", git.resolve())


def _is_read(file: Path, status: os.stat_result) -> bool:
    if stat.S_ISREG(status.st_mode):
        return status.st_size <= LARGEST_FILE and os.access(file, os.R_OK)
    return stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode)


def _compare(before: _Unread, after: _Unread) -> Iterator[ChangedFile]:
    """The files that are not read, if their size or time differs."""
    for path in sorted({**before, **after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        is_new, size, _ = new or (False, 0, 0)
        shown = os.fsencode(path).decode("utf-8", "replace")
        if size < 0 or (new is None and old is not None and old[0]):
            yield ChangedFile(shown, "deleted")
        else:
            yield ChangedFile(shown, "added" if is_new and old is None else "changed")


def _parse(found: bytes) -> tuple[list[ChangedFile], bytes]:
    """The files and the patch in what `git diff-index --raw --numstat -p -z` prints."""
    changes: dict[bytes, str] = {}
    at = 0
    while found.startswith(b":", at):
        end = found.index(b"\0", at)
        letter = chr(found[end - 1])
        after = found.index(b"\0", end + 1)
        changes[found[end + 1 : after]] = letter
        at = after + 1
    files: list[ChangedFile] = []
    for _ in changes:
        end = found.index(b"\0", at)
        added, removed, path = found[at:end].split(b"\t", 2)
        more, fewer = (int(one) if one.isdigit() else None for one in (added, removed))
        name, change = path.decode("utf-8", "replace"), _CHANGES.get(changes[path])
        files.append(ChangedFile(name, change or "changed", more, fewer))
        at = end + 1
    return files, found[at + 1 :]


def _first_part(patch: bytes) -> tuple[str, bool]:
    """The patch up to its limit, in whole lines, and whether it is cut."""
    if len(patch) <= LARGEST_PATCH:
        return patch.decode("utf-8", "replace"), False
    whole = patch[:LARGEST_PATCH].rpartition(b"\n")[0] + b"\n"
    return whole.decode("utf-8", "replace"), True
