"""Files and folders that no confined program may change or see, wherever it may write."""

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from aish.core.frozen import frozen
from aish.packs.workspace.deny_list import (
    ANYWHERE,
    is_denied_in_git,
    is_denied_name,
    is_git,
    is_protected,
)
from aish.system.globs import comparable_name, is_autorun, may_be_autorun

MOST_LOOKED_AT = 20_000
"""Entries of the root that are looked at for files that stay read-only in bubblewrap."""
MOST_MOUNTS = 1_000
"""Mounts of a command: what bubblewrap takes for them grows with their square."""
_NO_GIT_FILES = ("objects", "refs", "logs", "hooks", "lfs")
"""Folders of git without configuration, and perhaps with very many files."""
_OURS = (Path(__file__).resolve().parents[1], Path(sys.prefix).resolve())
"""What runs outside of the sandbox: the program itself, and its Python."""


@frozen
class Protected:
    """Paths in a folder that no confined program may change.

    `kept` stays read-only, without what is in its folders; what packs do not show either is
    `hidden`. The folders `above`, from the root on, stay where they are: moved away with what is in
    them, they could be made anew with other files.
    `names` are all, with the targets of links, which cannot be kept. `complete` says whether
    everything was looked at, and is kept.
    """

    kept: tuple[Path, ...]
    hidden: tuple[Path, ...]
    above: tuple[Path, ...]
    names: frozenset[tuple[Path, str]]
    complete: bool


def _own_paths(root: Path, own_files: Iterable[Path]) -> list[Path]:
    """The paths in the root that the run, and the program itself, are made of."""
    own = (*own_files, *_OURS)
    return [path for path in own if root in path.parents and path.exists()]


def _secrets_in_git(folder: Path) -> Iterator[Path]:
    """The files below a git folder that packs hide."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and is_denied_in_git(entry.name):
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _NO_GIT_FILES:
                yield from _secrets_in_git(Path(entry.path))


def find_protected(
    root: Path, own_files: Iterable[Path], runs: Path | None, *, most: int = MOST_LOOKED_AT
) -> Protected:
    """Look through a root, its upper folders first, and at `most` of its entries.

    `own_files` are what the run is made of, `runs` is the folder of runs.
    """
    own = _own_paths(root, own_files)
    names = {(path, "") for path in own}
    paths: list[Path] = []
    secrets: list[Path] = []
    waiting: deque[tuple[str, ...]] = deque([()])
    looked_at, complete, records = 0, True, str(runs)
    while waiting and complete:
        above = waiting.popleft()
        try:
            entries = list(os.scandir(root.joinpath(*above)))
        except OSError:  # removed meanwhile, or not readable: then nobody writes in it
            continue
        looked_at += len(entries)
        complete = looked_at <= most
        is_odd = _has_odd_name(entries)
        for entry in entries if complete else ():
            if is_odd and _stays_as_it_is((*above, entry.name)):
                names.add((Path(entry.path), _target(entry)))
                if not entry.is_symlink():
                    paths.append(Path(entry.path))
                if entry.is_symlink() and is_denied_name(entry.name):
                    secrets += filter(Path.is_file, [Path(entry.path).resolve()])
                elif is_git((entry.name,)):
                    secrets += islice(_secrets_in_git(Path(entry.path)), MOST_MOUNTS)
            elif entry.is_dir(follow_symlinks=False) and entry.path != records:
                waiting.append((*above, entry.name))
    kept, folders = _within_limit(root, [*own, *paths])
    complete = complete and len(kept) + len(secrets) <= MOST_MOUNTS
    complete = complete and len(kept) == len(own) + len(paths)
    closed = (path for path in kept if is_denied_name(path.name) or path == runs)
    hidden = dict.fromkeys(closed)
    kept = tuple(path for path in kept if path not in hidden)
    return Protected(kept, (*hidden, *secrets[:MOST_MOUNTS]), folders, frozenset(names), complete)


def _within_limit(root: Path, paths: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The first of some paths, and all folders above them below the root."""
    mounts: list[Path] = []
    folders: set[Path] = set()
    for path in paths:
        more = {above for above in path.parents if root in above.parents} - folders
        if len(mounts) + len(folders) + len(more) >= MOST_MOUNTS:
            break
        mounts.append(path)
        folders |= more
    return tuple(mounts), tuple(sorted(folders))


def _target(entry: "os.DirEntry[str]") -> str:
    try:
        return str(Path(entry.path).readlink()) if entry.is_symlink() else ""
    except OSError:  # removed meanwhile
        return ""


@cache
def _pattern_of_denied_names() -> re.Pattern[str]:
    """Return one pattern for all denied names, because thousands of names are matched."""
    parts = {max(glob.split("*"), key=len) for glob in (*ANYWHERE, "git~", ".git")}
    return re.compile("|".join(map(re.escape, sorted(parts))))


def _has_odd_name(entries: Iterable["os.DirEntry[str]"]) -> bool:
    """Return true if one of many names may be that of a protected file: rarely so."""
    plain = comparable_name("\n".join(entry.name for entry in entries))
    return bool(_pattern_of_denied_names().search(plain)) or may_be_autorun(plain)


def _stays_as_it_is(segments: Sequence[str]) -> bool:
    """Return true if a path is protected, or run by other programs."""
    name = segments[-1]
    plain = comparable_name(name)
    if _pattern_of_denied_names().search(plain) and is_protected((name,)):
        return True
    path = "/".join(segments)
    return may_be_autorun(plain) and (is_autorun(path) or is_autorun(f"{path}/file"))
