"""Files that match a glob, below one folder only.

`*` and `?` stop at slashes, `**` stands for any folders. Names that begin with a dot are found
only where the pattern says so. Links to files are followed if they stay inside the folder; links
to folders only where the pattern names them, so that no link makes a circle.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from aish.items.source import ItemsError
from aish.system.globs import FolderGlob, segments_of_glob

MOST = 1_000_000
"""Files and folders that are looked at."""


def files_of(pattern: str, root: Path) -> list[str]:
    """The files, relative to `root`, with slashes, sorted.

    Raises:
        ItemsError: the pattern leads out of the folder, there are too many files, or a name is
            no text.
    """
    glob = FolderGlob(_parts(pattern))
    inside = os.path.realpath(root)
    walk = _GlobWalk(inside, glob, f"foreach.glob `{pattern}`")
    found = sorted(walk.below(inside, "", glob.start()))
    for name in found:
        if not _is_text(name):
            spelled = name.encode("utf-8", "backslashreplace").decode()
            raise ItemsError("the name of a file is not UTF-8", where=spelled)
    return found


def _parts(pattern: str) -> tuple[str, ...]:
    parts = segments_of_glob(pattern)
    if pattern.startswith("/") or ".." in parts:
        said = f"the glob `{pattern}` leads out of the folder of the pipeline file"
        raise ItemsError(said, hint="it is relative to that folder, without `..`")
    if not parts:
        raise ItemsError("the glob is empty")
    return parts


class _GlobWalk:
    def __init__(self, inside: str, glob: FolderGlob, where: str) -> None:
        self._inside = inside
        self._glob = glob
        self._where = where
        self._seen = 0

    def below(self, folder: str, above: str, states: set[int]) -> Iterator[str]:
        """The files below a folder that match from these states on."""
        for entry in self._entries(folder, above):
            after = self._glob.enter(states, entry.name)
            if not after:
                continue
            name = f"{above}{entry.name}"
            if self._is_folder(entry, states):
                yield from self.below(entry.path, f"{name}/", after)
            elif self._glob.is_end(after) and self._is_file(entry):
                yield name

    def _entries(self, folder: str, above: str) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(folder) as entries:
                found = list(entries)
        except OSError as error:
            said = f"a folder cannot be read: {error.strerror}"
            raise ItemsError(said, where=above or folder) from error
        self._seen += len(found)
        if self._seen > MOST:
            said = f"there are more than {MOST} files to look at"
            raise ItemsError(said, where=self._where, hint="name a smaller folder in the glob")
        return found

    def _is_folder(self, entry: "os.DirEntry[str]", states: set[int]) -> bool:
        if not entry.is_symlink():
            return entry.is_dir()
        return self._glob.names(states, entry.name) and entry.is_dir() and self._stays(entry)

    def _is_file(self, entry: "os.DirEntry[str]") -> bool:
        return entry.is_file() and (not entry.is_symlink() or self._stays(entry))

    def _stays(self, entry: "os.DirEntry[str]") -> bool:
        real = os.path.realpath(entry.path)
        return os.path.commonpath([self._inside, real]) == self._inside


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
