"""The visible entries of folders, without following links.

`list_folder` describes those of one folder. `FolderWalk` goes through a tree: it reads names and
kinds only, leaves out what `.gitignore` files exclude, and ends at limits of entries and time.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Literal

import anyio
import anyio.from_thread

from aish.core.frozen import frozen, slotted
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import Folder, Where, segments_of
from aish.packs.workspace.deny_list import is_denied_in_git, is_denied_name, is_git, may_have_denied
from aish.packs.workspace.ignore_rules import FILE_NAME, LARGEST, NOTHING_IGNORED, IgnoreRules

Kind = Literal["file", "folder", "link", "other"]
Segments = tuple[str, ...]
DEEPEST = 64
VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
FILLED_BY_PROGRAMS = frozenset(
    {".venv", "venv", "node_modules", "__pycache__", ".tox", ".hypothesis"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
LEFT_SHUT = VERSION_CONTROL | FILLED_BY_PROGRAMS
"""Folders that a walk names and does not go in, unless it begins there; with `ignored`, only those
of version control."""
MOST_ENTRIES = 20_000
"""Entries of one folder that are described."""
MOST_NAMES = 200_000
"""Names of one folder that are read."""
MOST_WALKED = 1_000_000
"""Names that one walk reads."""
SECONDS = 8.0


@frozen
class FolderEntry:
    """A name in a folder; `segments` lead to it from the root."""

    segments: Segments
    kind: Kind
    size: int

    @property
    def name(self) -> str:
        return self.segments[-1]

    @property
    def path(self) -> str:
        return "/".join(self.segments)


@frozen
class Listing:
    """A folder's entries by name, and whether it has more than are read."""

    entries: tuple[FolderEntry, ...]
    incomplete: bool


@slotted
class NameBudget:
    """Number of names that may still be read; `spent` if there were more."""

    left: int = 100_000
    spent: bool = False


def list_folder(folder: Folder, where: Where, after: str = "") -> Listing:
    """The visible content of a folder; `PackError` if there is no such folder."""
    segments = segments_of(where) if isinstance(where, str) else where
    with folder.folder(where) as descriptor, os.scandir(descriptor) as scan:
        read = list(islice(scan, MOST_NAMES + 1))
        seen = [
            each for each in read if each.name > after and not folder.hides((*segments, each.name))
        ]
        seen.sort(key=lambda entry: entry.name)
        entries = tuple(_entry(segments, entry) for entry in seen[:MOST_ENTRIES])
    return Listing(entries, incomplete=len(seen) > MOST_ENTRIES or len(read) > MOST_NAMES)


def format_name(name: str, kind: Kind) -> str:
    """A name without anything that could break a line; a folder ends with `/`."""
    note = {"folder": "/", "link": " (link)", "other": " (not a file)"}.get(kind, "")
    return for_line(name) + note


@frozen
class FolderPlace:
    """A folder on a walk, with the rules that hold in it."""

    segments: Segments
    rules: IgnoreRules = NOTHING_IGNORED

    def below(self, name: str) -> "FolderPlace":
        return FolderPlace((*self.segments, name), self.rules.below(name))


@frozen
class FolderContent:
    """The content of a folder, in order of names; `place` has the folder's own rules too."""

    place: FolderPlace
    files: list[str]
    folders: list[str]
    others: list[tuple[str, Kind]]

    def folders_to_enter(self, *, ignored: bool) -> Iterator[str]:
        closed = VERSION_CONTROL if ignored else LEFT_SHUT
        return (name for name in self.folders if name not in closed)


class FolderWalk:
    """Reads folders one by one, as many as the limits allow, until its call is cancelled.

    `ignored` also shows what `.gitignore` files exclude. `incomplete` says why not all was read;
    `unfollowed` has the number of patterns that are not followed, by the file that has them.
    """

    def __init__(self, folder: Folder, *, ignored: bool) -> None:
        self._folder = folder
        self.ignored = ignored
        self._left = MOST_WALKED
        self._until = time.monotonic() + SECONDS
        self.incomplete = ""
        self.unfollowed: dict[str, int] = {}

    @property
    def unfollowed_note(self) -> str:
        """A sentence about patterns that are not followed; empty without any."""
        for path, count in self.unfollowed.items():
            more = f" and {counted(len(self.unfollowed) - 1, 'other file')}"
            where = for_line(path) + (more if len(self.unfollowed) > 1 else "")
            return f"{counted(count, 'pattern')} of {where} not followed: too many or too long"
        return ""

    def begin(self, path: str) -> FolderPlace:
        """The folder to begin with, with the rules of those above it."""
        segments = segments_of(path)
        with self._folder.folder(path):
            place = FolderPlace(())
        if self.ignored:
            return FolderPlace(segments)
        for name in segments:
            place = self._with_own_rules(place).below(name)
        return place

    def read(self, place: FolderPlace, *, in_order: bool = True) -> FolderContent | None:
        """Read a folder; `None` if it cannot be read, or at a limit.

        Without `in_order` its files come in any order.
        """
        if self._is_over() or self._left <= 0:
            why = (
                f"after {MOST_WALKED:,} names" if self._left <= 0 else f"after {SECONDS:g} seconds"
            )
            self.incomplete = self.incomplete or why
            return None
        try:
            files, folders, others = self._names(place.segments)
        except PackError:
            # Removed, replaced or not readable: only its name is known.
            return None
        if not self.ignored and FILE_NAME in files:
            place = self._with_own_rules(place)
        if place.rules.count:
            files = self._filter(place.rules, files, is_folder=False)
            folders = self._filter(place.rules, folders, is_folder=True)
            names = set(self._filter(place.rules, [name for name, _ in others], is_folder=False))
            others = [row for row in others if row[0] in names]
        if in_order:
            files.sort()
        return FolderContent(place, files, folders, others)

    def files(self, path: str) -> Iterator[Segments]:
        """All files below a folder, in the order of their paths."""
        waiting: list[FolderPlace | Segments] = [self.begin(path)]
        while waiting:
            here = waiting.pop()
            if not isinstance(here, FolderPlace):
                _check_cancelled()
                yield here
                continue
            content = self.read(here)
            if content is None:
                continue
            # By path: what is in `a` comes after `a.txt`.
            rows: list[tuple[str, FolderPlace | Segments]] = [
                (name, (*here.segments, name)) for name in content.files
            ]
            if len(here.segments) < DEEPEST:
                rows += [
                    (f"{name}/", content.place.below(name))
                    for name in content.folders_to_enter(ignored=self.ignored)
                ]
            rows.sort(key=itemgetter(0), reverse=True)
            waiting.extend(row[1] for row in rows)

    def _is_over(self) -> bool:
        _check_cancelled()
        return time.monotonic() > self._until

    def _names(self, segments: Segments) -> tuple[list[str], list[str], list[tuple[str, Kind]]]:
        """The visible names of a folder: files, folders, and all others with their kinds."""
        with self._folder.folder(segments) as descriptor, os.scandir(descriptor) as scan:
            most = min(MOST_NAMES, self._left)
            entries = list(islice(scan, most))
            if next(scan, None) is not None:
                self.incomplete = self.incomplete or f"after {most:,} names"
        self._left -= len(entries)
        files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        folders: list[str] = []
        others: list[tuple[str, Kind]] = []
        if len(files) < len(entries):
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            if len(files) + len(folders) < len(entries):
                others = [
                    (entry.name, "link" if entry.is_symlink() else "other")
                    for entry in entries
                    if not entry.is_file(follow_symlinks=False)
                    and not entry.is_dir(follow_symlinks=False)
                ]
        within_git, more = is_git(segments), self._folder.deny_names
        if within_git or may_have_denied([*files, *folders, *(name for name, _ in others)], more):
            is_hidden = _is_hidden_in_git if within_git else is_denied_name
            files = [name for name in files if not is_hidden(name, more)]
            folders = [name for name in folders if not is_hidden(name, more)]
            others = [row for row in others if not is_hidden(row[0], more)]
        folders.sort()
        others.sort()
        return files, folders, others

    def _filter(self, rules: IgnoreRules, names: list[str], *, is_folder: bool) -> list[str]:
        """The names that are not excluded; patterns of a hostile file may take long."""
        result: list[str] = []
        for name in names:
            if self._is_over():
                self.incomplete = self.incomplete or f"after {SECONDS:g} seconds"
                break
            if not rules.excludes(name, is_folder=is_folder):
                result.append(name)
        return result

    def _with_own_rules(self, place: FolderPlace) -> FolderPlace:
        """A folder with the rules of its own file, if it has one that is regular and visible."""
        try:
            with self._folder.file((*place.segments, FILE_NAME)) as descriptor:
                data = os.read(descriptor, LARGEST + 1)
        except (PackError, OSError):
            return place
        rules = place.rules.with_rules(data)
        if rules.left_out > place.rules.left_out:
            path = "/".join((*place.segments, FILE_NAME))
            self.unfollowed[path] = rules.left_out - place.rules.left_out
        return FolderPlace(place.segments, rules)


def _check_cancelled() -> None:
    """End a walk in a worker thread whose call was cancelled: nobody waits for the rest."""
    with suppress(anyio.NoEventLoopError):  # in another thread
        anyio.from_thread.check_cancelled()


def _is_hidden_in_git(name: str, more: tuple[str, ...]) -> bool:
    return is_denied_name(name, more) or is_denied_in_git(name)


def _entry(segments: Segments, entry: os.DirEntry[str]) -> FolderEntry:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        # Removed since it was listed.
        return FolderEntry((*segments, entry.name), "other", 0)
    return FolderEntry((*segments, entry.name), _kind(status), status.st_size)


def _kind(status: os.stat_result) -> Kind:
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if stat.S_ISREG(status.st_mode):
        return "file"
    return "link" if stat.S_ISLNK(status.st_mode) else "other"
