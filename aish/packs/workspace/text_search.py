"""Searches text in files (K7, X6, X7): literal text here, regular expressions in a child process.

`re` can take unlimited time and blocks the interpreter meanwhile; a child can be killed. Files are
opened here in either case: the child gets bytes, never a path.

Searching by regular expression, in a child process that can be killed (X7).
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.phrases import shorten
from aish.packs.pack_error import PackError
from aish.packs.workspace import regex_child
from aish.packs.workspace.confined_path import Folder, Where, shown
from aish.packs.workspace.file_text import text_stream
from aish.packs.workspace.folder_walk import Budget, Entry, walk
from aish.packs.workspace.workspace import Workspace
from aish.system.globs import matches_path, matches_word
from aish.system.process.child import child_environment, run_command

MOST_MATCHES = 200
MOST_FILES = 5_000
LARGEST_FILE = 5 * 1024 * 1024
MOST_BYTES = 32 * 1024 * 1024
LONGEST_SHOWN = 300
SECONDS = 10.0


@frozen
class Match:
    """One matching line; `text` may be cut."""

    path: str
    line: int
    text: str


@slotted
class Found:
    """All matches, and how much was searched; `stopped` says why a search is incomplete."""

    matches: list[Match] = field(default_factory=list)
    files: int = 0
    skipped: int = 0
    stopped: str = ""


@frozen
class SearchScope:
    """Where to search: a file or a folder, and which file names."""

    path: str
    glob: str | None = None

    def covers(self, path: str) -> bool:
        """Whether a file is to be searched; a glob without `/` matches its name alone."""
        if self.glob is None:
            return True
        if "/" in self.glob:
            return matches_path(self.glob, path)
        return matches_word(self.glob, path.rpartition("/")[2])


def texts(folder: Folder, wanted: SearchScope, found: Found) -> Iterator[tuple[str, str]]:
    """The paths and texts of the files to search, within all limits; counts in `found`."""
    began = time.monotonic()
    looked_at = 0
    budget = Budget()
    for where, size in _files(folder, wanted, budget):
        if size > LARGEST_FILE:
            found.skipped += 1
            continue
        if found.files >= MOST_FILES:
            found.stopped = f"after {MOST_FILES:,} files"
        elif looked_at + size > MOST_BYTES:
            found.stopped = f"after {looked_at:,} bytes"
        elif time.monotonic() - began > SECONDS:
            found.stopped = f"after {SECONDS:.0f} seconds"
        if found.stopped:
            return
        text = _text(folder, where)
        if text is None:
            found.skipped += 1
            continue
        found.files += 1
        looked_at += size
        yield shown(where), text
    if budget.spent:
        found.stopped = "after very many names"


def search_literal(folder: Folder, wanted: SearchScope, query: str, *, ignore_case: bool) -> Found:
    """The lines that contain `query` literally."""
    found = Found()
    sought = query.casefold() if ignore_case else query
    for path, text in texts(folder, wanted, found):
        whole = text.casefold() if ignore_case else text
        # Most files have no match at all: one check is enough for them.
        if sought not in whole:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if sought in (line.casefold() if ignore_case else line):
                found.matches.append(Match(path, number, shown_line(line)))
                if len(found.matches) >= MOST_MATCHES:
                    found.stopped = f"after {MOST_MATCHES} matches"
                    return found
    return found


def shown_line(line: str) -> str:
    """A line without its end, cut where it is long."""
    return shorten(line.rstrip("\r"), LONGEST_SHOWN)


def _files(folder: Folder, wanted: SearchScope, budget: Budget) -> Iterator[tuple[Where, int]]:
    """Paths and sizes of the files to search, in order."""
    if folder.kind(wanted.path) != "folder":
        with folder.file(wanted.path) as descriptor:
            size = os.fstat(descriptor).st_size
        yield wanted.path, size
        return
    for _, entry in walk(folder, wanted.path, budget):
        if _is_wanted(entry, wanted):
            yield entry.segments, entry.size


def _is_wanted(entry: Entry, wanted: SearchScope) -> bool:
    return entry.kind == "file" and wanted.covers(entry.path)


def _text(folder: Folder, where: Where) -> str | None:
    """The whole text of a file, or `None` if it is not text or too large."""
    try:
        with folder.file(where) as descriptor:
            if os.fstat(descriptor).st_size > LARGEST_FILE:
                return None
            stream, _ = text_stream(descriptor, shown(where))
            with stream:
                return stream.read(LARGEST_FILE).decode("utf-8", "replace")
    except PackError:
        # Removed, binary or hidden: counted as skipped.
        return None


REGEX_SECONDS = 5.0
_OUTPUT_LIMIT = 4 * 1024 * 1024


async def search_regex(
    place: Workspace, wanted: SearchScope, pattern: str, *, ignore_case: bool
) -> Found:
    """The lines in which a regular expression matches.

    Raises:
        PackError: it is invalid, or took too long.
    """
    found = Found()
    question = {
        "pattern": pattern,
        "ignore_case": ignore_case,
        "most": MOST_MATCHES,
        "longest": LONGEST_SHOWN + 1,
    }

    def gather() -> bytes:
        rows = [json.dumps(question)]
        pairs = texts(place.folder, wanted, found)
        rows.extend(json.dumps(pair, ensure_ascii=False) for pair in pairs)
        return "\n".join(rows).encode("utf-8", "surrogatepass")

    sent = await anyio.to_thread.run_sync(gather, abandon_on_cancel=True)
    result = await run_command(
        (sys.executable, "-I", "-S", str(Path(regex_child.__file__))),
        cwd=Path("/"),
        env=child_environment({}, {}),
        timeout=REGEX_SECONDS,
        limit_bytes=_OUTPUT_LIMIT,
        input=sent,
        reaper=place.reaper,
    )
    if result.timed_out:
        message = f"the expression took more than {REGEX_SECONDS:.0f} seconds; write a simpler one"
        raise PackError("too_slow", message)
    if result.exit_code != 0:
        raise PackError("failed", "the expression could not be searched for")
    for row in result.stdout.splitlines():
        _take(json.loads(row), found)
    if len(found.matches) >= MOST_MATCHES:
        found.stopped = f"after {MOST_MATCHES} matches"
    return found


def _take(row: object, found: Found) -> None:
    """One row of the child's answer."""
    if isinstance(row, dict):
        raise PackError("bad_arguments", f"`query` is not a regular expression: {row['error']}")
    assert isinstance(row, list)
    path, number, line = row
    found.matches.append(Match(path, number, shown_line(line)))
