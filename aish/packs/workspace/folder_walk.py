"""All visible entries below a folder, in order and without following links (K4, K5)."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from aish.core.frozen import frozen, slotted
from aish.core.text import for_line
from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import Folder, Where, segments_of
from aish.packs.workspace.deny_list import is_denied

Kind = Literal["file", "folder", "link", "other"]
DEEPEST = 64
LEFT_SHUT = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".hypothesis"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders that programs fill: a walk names them and does not go in, unless it begins there."""
MOST_ENTRIES = 20_000
"""Names of one folder that are looked at (X6)."""
MOST_NAMES = 200_000
"""Names of one folder that are read to find the first of them in order."""


@frozen
class Entry:
    """One name in a folder; `segments` lead to it from the root."""

    segments: tuple[str, ...]
    kind: Kind
    size: int

    @property
    def name(self) -> str:
        """Its own name."""
        return self.segments[-1]

    @property
    def path(self) -> str:
        """The path from the root."""
        return "/".join(self.segments)

    @property
    def shown(self) -> str:
        """The name without anything that could break a line; a folder ends with `/`."""
        return for_line(self.name) + ("/" if self.kind == "folder" else "")


@frozen
class Listing:
    """A folder's entries by name, and whether it has more than are read."""

    entries: tuple[Entry, ...]
    incomplete: bool


@slotted
class Budget:
    """Number of names that a walk may still read; `spent` if there were more."""

    left: int = 100_000
    spent: bool = False


def list_folder(folder: Folder, where: Where, after: str = "") -> Listing:
    """The visible content of a folder; `PackError` if there is no such folder."""
    segments = segments_of(where) if isinstance(where, str) else where
    with folder.folder(where) as descriptor, os.scandir(descriptor) as scan:
        read = list(islice(scan, MOST_NAMES + 1))
        seen = [
            each for each in read if each.name > after and not is_denied((*segments, each.name))
        ]
        seen.sort(key=lambda each: each.name)
        entries = tuple(_entry(segments, each) for each in seen[:MOST_ENTRIES])
    return Listing(entries, incomplete=len(seen) > MOST_ENTRIES or len(read) > MOST_NAMES)


def walk(
    folder: Folder, path: str, budget: Budget, depth: int = DEEPEST
) -> Iterator[tuple[int, Entry]]:
    """All entries below a folder, parents first, with their depth."""
    waiting = _below(folder, path, 1, budget)
    while waiting:
        level, entry = waiting.pop()
        if budget.left <= 0:
            budget.spent = True
            return
        budget.left -= 1
        yield level, entry
        if entry.kind == "folder" and level < depth and entry.name not in LEFT_SHUT:
            try:
                waiting.extend(_below(folder, entry.segments, level + 1, budget))
            except PackError:
                # Removed, or not readable: only its name is known.
                continue


def _below(folder: Folder, where: Where, level: int, budget: Budget) -> list[tuple[int, Entry]]:
    """The entries of one folder, the first of them last, to be taken from the end."""
    listing = list_folder(folder, where)
    budget.spent = budget.spent or listing.incomplete
    return [(level, entry) for entry in reversed(listing.entries)]


def _entry(segments: tuple[str, ...], each: os.DirEntry[str]) -> Entry:
    try:
        status = each.stat(follow_symlinks=False)
    except OSError:
        # Removed since it was listed.
        return Entry((*segments, each.name), "other", 0)
    return Entry((*segments, each.name), _kind(status), status.st_size)


def _kind(status: os.stat_result) -> Kind:
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if stat.S_ISREG(status.st_mode):
        return "file"
    return "link" if stat.S_ISLNK(status.st_mode) else "other"
