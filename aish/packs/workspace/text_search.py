"""Searches text in files: literal text here, regular expressions in a child process.

`re` can take unlimited time and blocks the interpreter meanwhile; a child can be killed. Files are
opened here in either case: the child gets bytes, never a path. Text is searched as bytes in UTF-8,
because most files have no match and need no decoding then.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import islice
from typing import Literal

import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import Folder, Where, path_text, segments_of
from aish.packs.workspace.file_text import utf8_content
from aish.packs.workspace.folder_walk import FolderWalk, Segments
from aish.packs.workspace.path_glob import NOWHERE, PathGlob, path_glob
from aish.packs.workspace.workspace import Workspace

Show = Literal["lines", "files", "counts"]
MOST_MATCHES = 200
MOST_FILES = 50_000
LARGEST_FILE = 5 * 1024 * 1024
MOST_BYTES = 512 * 1024 * 1024
MOST_CONTEXT = 10
LONGEST_SHOWN = 300
_BEFORE = 100
SECONDS = 10.0
_BATCH = 8 * 1024 * 1024
_PIECE = 1 << 20


@frozen
class TextSearch:
    """A query and its scope: below `path`, in files that the glob matches."""

    query: str
    path: str
    glob: str | None
    ignore_case: bool
    context: int
    show: Show
    ignored: bool


@frozen
class Match:
    """A matching line, or with `files` and `counts` a file; `row` is its row of the text."""

    path: str
    line: int
    text: str
    row: int


@slotted
class SearchMatches:
    """All matches, and how much was searched; `stopped` says why a search is incomplete."""

    matches: list[Match] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    files: int = 0
    skipped: int = 0
    stopped: str = ""
    unfollowed: str = ""

    @property
    def left(self) -> int:
        return MOST_MATCHES - len(self.matches)


@frozen
class SearchedFile:
    path: str
    data: bytes


def sources(folder: Folder, search: TextSearch, found: SearchMatches) -> Iterator[SearchedFile]:
    """The files to search, within all limits; counts in `found`."""
    began = time.monotonic()
    looked_at = 0
    walk = FolderWalk(folder, ignored=search.ignored)
    for where in _files(folder, search, walk):
        if found.files >= MOST_FILES:
            found.stopped = f"after {MOST_FILES:,} files"
        elif looked_at > MOST_BYTES:
            found.stopped = f"after {looked_at:,} bytes"
        elif time.monotonic() - began > SECONDS:
            found.stopped = f"after {SECONDS:.0f} seconds"
        if found.stopped:
            return
        data = _data(folder, where)
        if data is None:
            found.skipped += 1
            continue
        found.files += 1
        looked_at += len(data)
        yield SearchedFile(path_text(where), data)
    found.stopped = walk.incomplete
    found.unfollowed = walk.unfollowed_note


def _files(folder: Folder, search: TextSearch, walk: FolderWalk) -> Iterator[Where]:
    if folder.kind(search.path) != "folder":
        with folder.file(search.path):
            yield search.path
        return
    covers = glob_filter(search.path, search.glob)
    yield from (segments for segments in walk.files(search.path) if covers(segments))


def glob_filter(path: str, glob: str | None) -> Callable[[Segments], bool]:
    """Return a test of paths for a glob that is relative to `path` or to the root."""
    if glob is None:
        return lambda _segments: True
    compiled = path_glob(glob)
    begin = segments_of(path)
    tests: dict[Segments, Callable[[str], bool] | None] = {}

    def covers(segments: Segments) -> bool:
        folders = segments[:-1]
        if folders not in tests:
            states = compiled.enter_all(folders) | _relative(compiled, folders[len(begin) :])
            tests[folders] = compiled.file_test(states)
        test = tests[folders]
        return test is not None and test(segments[-1])

    return covers


def _relative(glob: PathGlob, folders: Sequence[str]) -> frozenset[int]:
    return glob.enter_all(folders) if folders else glob.start or NOWHERE


def _data(folder: Folder, where: Where) -> bytes | None:
    """The text of a file in UTF-8, or `None` if it is not text or too large."""
    pieces: list[bytes] = []
    size = 0
    try:
        with folder.file(where) as descriptor:
            while size <= LARGEST_FILE and (piece := os.read(descriptor, _PIECE)):
                pieces.append(piece)
                size += len(piece)
    except (PackError, OSError):
        # Removed, hidden or not readable: counted as skipped.
        return None
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return utf8_content(data, path_text(where)) if size <= LARGEST_FILE else None


def search_literal(folder: Folder, search: TextSearch) -> SearchMatches:
    result = SearchMatches()
    for source in sources(folder, search, result):
        numbers = islice(_literal_lines(source.data, search), _most(result, search))
        report(source, list(numbers), search, result)
        if result.stopped:
            break
    return result


def _literal_lines(data: bytes, search: TextSearch) -> Iterator[int]:
    """The numbers of the lines in which the query begins."""
    sought = search.query.encode()
    if search.ignore_case:
        if not (sought.isascii() and data.isascii()):
            folded = search.query.casefold()
            for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
                if folded in line.casefold():
                    yield number
            return
        sought, data = sought.lower(), data.lower()
    number, counted, place = 1, 0, data.find(sought)
    while place >= 0:
        number += data.count(b"\n", counted, place)
        yield number
        counted = data.find(b"\n", place)
        if counted < 0:
            return
        place = data.find(sought, counted + 1)


def _most(result: SearchMatches, search: TextSearch) -> int | None:
    """The most lines wanted of one file; `None` for all."""
    return {"lines": result.left, "files": 1, "counts": None}[search.show]


def report(
    source: SearchedFile, numbers: list[int], search: TextSearch, found: SearchMatches
) -> None:
    if not numbers:
        return
    lines = source.data.split(b"\n")
    path = for_line(source.path)

    def text(number: int) -> str:
        return format_line(lines[number - 1], search.query)

    if search.show == "lines":
        last = 0
        for number in numbers[: found.left]:
            begin = max(number - search.context, last + 1)
            if search.context and found.rows and begin > last + (1 if last else 0):
                found.rows.append("--")
            found.rows += [f"{path}-{line}- {text(line)}" for line in range(begin, number)]
            found.matches.append(Match(path, number, text(number), len(found.rows)))
            found.rows.append(f"{path}:{number}: {text(number)}")
            last = number
            if search.context:
                last = _context_below(number, numbers, search.context, len(lines))
                found.rows += [f"{path}-{n}- {text(n)}" for n in range(number + 1, last + 1)]
    else:
        counted = f"{len(numbers)}" if search.show == "counts" else text(numbers[0])
        row = f"{path}: {counted}" if search.show == "counts" else path
        found.matches.append(Match(path, numbers[0], counted, len(found.rows)))
        found.rows.append(row)
    if found.left <= 0:
        found.stopped = f"after {MOST_MATCHES} matches"


def _context_below(number: int, numbers: list[int], context: int, lines: int) -> int:
    """The last line of context below a match: before the next match, and no empty last line."""
    after = next((other for other in numbers if other > number), lines + 1)
    return max(number, min(number + context, after - 1, lines - 1))


def format_line(line: bytes, query: str) -> str:
    """A line without its end; of a long one the part around the query."""
    begin = 0
    if len(line) > LONGEST_SHOWN:
        begin = max(0, line.find(query.encode()) - _BEFORE)
    text = line[begin : begin + 4 * LONGEST_SHOWN].decode("utf-8", "replace").rstrip("\r")
    return ("…" if begin else "") + shorten(text.lstrip("\ufffd") if begin else text, LONGEST_SHOWN)


REGEX_SECONDS = 5.0
_ENDS_LITERAL = frozenset(".^$*+?{}[]()|\\")
_NAMES_CHARACTER = frozenset("xuUN0123456789")
"""What after a backslash says a character by its number or name."""


def required_text(pattern: str) -> str:
    """A text that every match of a regular expression contains; empty if none is certain.

    Only what stands outside of groups and classes, in a pattern without alternatives, is certain.
    """
    if "|" in pattern or "(?" in pattern:
        return ""
    literal, run, depth, place = "", "", 0, 0
    while place < len(pattern):
        character = pattern[place]
        if character == "[":
            # To the end of the class, whose first character may be a bracket.
            place = _class_end(pattern, place)
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "\\":
            place += 1
            if pattern[place : place + 1] in _NAMES_CHARACTER:
                return ""
        elif character in "*?{":
            # What is before it may be absent.
            run = run[:-1]
            place = pattern.find("}", place) if character == "{" else place
            if place < 0:
                return ""
        if character in _ENDS_LITERAL or depth:
            literal, run = max(literal, run, key=len), ""
        else:
            run += character
        place += 1
    return max(literal, run, key=len)


def _class_end(pattern: str, place: int) -> int:
    place += 1
    if pattern[place : place + 1] == "^":
        place += 1
    place += 1
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place


async def search_regex(place: Workspace, search: TextSearch) -> SearchMatches:
    """The lines in which a regular expression matches."""
    result = SearchMatches()
    required = b"" if search.ignore_case else required_text(search.query).encode()
    waiting = sources(place.folder, search, result)

    def batch() -> list[SearchedFile]:
        """Some files that may match; none if there are no more."""
        some: list[SearchedFile] = []
        size = 0
        for source in waiting:
            if required in source.data:
                some.append(source)
                size += len(source.data)
                if size > _BATCH:
                    break
        return some

    # At least once, because an invalid expression is an error even where there is no file.
    while True:
        some = await anyio.to_thread.run_sync(batch, abandon_on_cancel=True)
        matching = await _matching_lines(place, search, some)
        for source, numbers in zip(some, matching, strict=True):
            report(source, numbers, search, result)
        if not some or result.left <= 0:
            break
    return result


async def _matching_lines(
    place: Workspace, search: TextSearch, some: list[SearchedFile]
) -> list[list[int]]:
    try:
        lines: list[list[int]] = await place.worker.run(
            "aish.packs.workspace.regex_lines:matching_lines",
            *(source.data for source in some),
            seconds=REGEX_SECONDS,
            largest=LARGEST_FILE,
            pattern=search.query,
            ignore_case=search.ignore_case,
            most={"lines": MOST_MATCHES, "files": 1, "counts": 0}[search.show],
        )
    except PackError as error:
        if error.code == "too_slow":
            message = f"the expression took more than {REGEX_SECONDS:.0f} seconds or much memory"
            raise PackError("too_slow", f"{message}; write a simpler one") from None
        raise
    return lines
