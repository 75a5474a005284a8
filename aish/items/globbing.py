"""Files that match a glob, below one folder only.

`*` and `?` stop at slashes, `**` stands for any folders. Names that begin with a dot are found
only where the pattern says so. Links to files are followed if they stay inside the folder; links
to folders only where the pattern names them, so that no link makes a circle.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from aish.items.source import ItemsError
from aish.system.globs import matches_word

MOST = 1_000_000
"""Files and folders that are looked at."""


def files_of(pattern: str, root: Path) -> list[str]:
    """The files, relative to `root`, with slashes, sorted.

    Raises:
        ItemsError: the pattern leads out of the folder, there are too many files, or a name is
            no text.
    """
    parts = _parts(pattern)
    inside = os.path.realpath(root)
    walk = _GlobWalk(inside, parts, f"foreach.glob `{pattern}`")
    found = sorted(walk.below(inside, "", walk.closure({0})))
    for name in found:
        if not _is_text(name):
            spelled = name.encode("utf-8", "backslashreplace").decode()
            raise ItemsError("the name of a file is not UTF-8", where=spelled)
    return found


def _parts(pattern: str) -> tuple[str, ...]:
    parts = tuple(part for part in pattern.split("/") if part not in {"", "."})
    if pattern.startswith("/") or ".." in parts:
        said = f"the glob `{pattern}` leads out of the folder of the pipeline file"
        raise ItemsError(said, hint="it is relative to that folder, without `..`")
    if not parts:
        raise ItemsError("the glob is empty")
    return parts


class _GlobWalk:
    """States are places in the pattern, as in any matching of globs: nothing is tried twice."""

    def __init__(self, inside: str, parts: tuple[str, ...], where: str) -> None:
        self._inside = inside
        self._parts = parts
        self._where = where
        self._seen = 0

    def closure(self, states: set[int]) -> set[int]:
        """The states, and those behind a `**`, which may stand for no folder at all."""
        found = set(states)
        for state, part in enumerate(self._parts):
            if state in found and part == "**":
                found.add(state + 1)
        return found

    def below(self, folder: str, above: str, states: set[int]) -> Iterator[str]:
        """The files below a folder that match from these states on."""
        for entry in self._entries(folder, above):
            after = self.closure(self._after(entry.name, states))
            if not after:
                continue
            name = f"{above}{entry.name}"
            if self._is_folder(entry, states):
                yield from self.below(entry.path, f"{name}/", after)
            elif len(self._parts) in after and self._is_file(entry):
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

    def _after(self, name: str, states: set[int]) -> set[int]:
        moved = set()
        for state in states:
            if state == len(self._parts):
                continue
            part = self._parts[state]
            if name.startswith(".") and not part.startswith("."):
                continue
            if part == "**":
                moved.add(state)
                if state == len(self._parts) - 1:
                    moved.add(state + 1)
            elif matches_word(part, name):
                moved.add(state + 1)
        return moved

    def _is_folder(self, entry: "os.DirEntry[str]", states: set[int]) -> bool:
        if not entry.is_symlink():
            return entry.is_dir()
        named = any(self._parts[state : state + 1] == (entry.name,) for state in states)
        return named and entry.is_dir() and self._stays(entry)

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
