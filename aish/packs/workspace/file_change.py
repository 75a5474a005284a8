"""One change of one file, from reading it to the answer (K6, K7).

The answer contains a unified diff, made in bounded time and length. An edit after which a valid
Python file would no longer parse is refused.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import anyio.to_thread

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.core.text_diff import hunks
from aish.packs.catalogue import PACKS
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.workspace.atomic_write import LARGEST, Original, check_unchanged, put, read_original
from aish.packs.workspace.confined_path import not_found
from aish.packs.workspace.file_text import (
    PLAIN,
    Spelling,
    check_fits,
    decoded,
    encoded,
    in_lines_of,
)
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import writing

ROOM = 20_000
"""Characters of a diff that are returned."""
_COMPARED = 1000
"""Changed lines that are compared one by one; more are shown as taken out and put in."""
_CONTEXT = 3
_LONGEST = 2000


@frozen
class Diff:
    """The text, and whether it was cut."""

    text: str
    truncated: bool


def diff_of(before: str, after: str, path: str) -> Diff:
    """The difference between two texts."""
    if before == after:
        return Diff("", truncated=False)
    rows: list[str] = []
    size = 0
    skipped, begin, end = _alike(before, after)
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    for row in _rows(_lines(old), _lines(new), for_line(path), skipped):
        cut = row if len(row) <= _LONGEST else row[:_LONGEST] + "…\n"
        size += len(cut)
        if size > ROOM:
            return Diff("".join(rows), truncated=True)
        rows.append(cut)
    return Diff("".join(rows), truncated=False)


def _alike(before: str, after: str) -> tuple[int, int, int]:
    """How many equal lines two texts begin with, and how many characters those and the last have.

    Lines of context are not counted. Most of a long text is skipped so, without a step for each
    line.
    """
    begin = _cut_to_lines(before, _shared(before, after, min(len(before), len(after))))
    most = min(len(before), len(after)) - begin
    end = _shared_end(before, after, most)
    place = len(before) - end
    for _ in range(_CONTEXT + 1):
        # After a line end, so that neither text seems to end without one.
        place = before.find("\n", place) + 1
        if not place:
            return before.count("\n", 0, begin), begin, 0
    return before.count("\n", 0, begin), begin, len(before) - place


def _shared(one: str, other: str, most: int) -> int:
    """With how many of the same characters, at most `most`, two texts begin."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _shared_end(one: str, other: str, most: int) -> int:
    """With how many of the same characters, at most `most`, two texts end."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one.endswith(other[len(other) - middle : len(other) - low], 0, len(one) - low):
            low = middle
        else:
            high = middle - 1
    return low


def _cut_to_lines(text: str, place: int) -> int:
    """The begin of the line some lines of context above a place; 0 if there are not as many."""
    for _ in range(_CONTEXT + 1):
        place = text.rfind("\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def _lines(text: str) -> list[str]:
    """Lines with their ends; a last line without one is marked, as in `diff`."""
    lines = text.split("\n")
    last = lines.pop()
    ended = [line + "\n" for line in lines]
    return [*ended, f"{last}\n\\ No newline at end of file\n"] if last else ended


def _rows(before: list[str], after: list[str], path: str, skipped: int) -> Iterator[str]:
    yield f"--- a/{path}\n"
    yield f"+++ b/{path}\n"
    for hunk in hunks(before, after, _CONTEXT, _COMPARED):
        old = _range(skipped + hunk.old, sum(row[0] != "+" for row in hunk.rows))
        new = _range(skipped + hunk.new, sum(row[0] != "-" for row in hunk.rows))
        yield f"@@ -{old} +{new} @@\n"
        yield from hunk.rows


def _range(start: int, count: int) -> str:
    """A range of lines as in `diff`: counted from 1, or the line before an empty range."""
    if count == 1:
        return f"{start + 1}"
    return f"{start + 1 if count else start},{count}"


_PYTHON = (".py", ".pyi", ".pyw")
_C = {
    **dict.fromkeys((".c",), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hpp", ".hh", ".ipp"), "cpp"),
    ".h": "either",
}


async def check_parses(place: Workspace, path: str, before: bytes, after: bytes) -> None:
    """Check that Python or C code which parsed before still does.

    Raises:
        PackError: it no longer does; nothing was written.
    """
    if before == after:
        return
    language = _C.get(PurePosixPath(path).suffix)
    if path.endswith(_PYTHON):
        kind, problem = "Python", await _python_problem(place, before, after)
    elif language is not None and is_installed(*PACKS["c"].needs):
        kind, problem = "C", await _c_problem(place, before, after, language)
    else:
        return
    if problem:
        message = f"nothing was written: `{path}` would no longer be {kind} code ({problem})"
        raise PackError("syntax", message, path=path, problem=problem)


async def _python_problem(place: Workspace, before: bytes, after: bytes) -> str:
    async def of(code: bytes) -> str:
        call = "aish.packs.workspace.python_syntax:python_problem"
        try:
            found: str = await place.worker.run(call, code, largest=LARGEST)
        except PackError as error:
            if error.code != "too_slow":
                raise
            return "it is too deep or too long to be parsed"
        return found

    problem = await of(after)
    # If it did not parse before, any edit may be part of the repair.
    return problem if problem and not await of(before) else ""


async def _c_problem(place: Workspace, before: bytes, after: bytes, language: str) -> str:
    call = "aish.packs.c.c_parser:new_problem"
    try:
        found: str = await place.worker.run(
            call, before, after, largest=LARGEST, language=language, macros=list(place.macros)
        )
    except PackError as error:
        if error.code != "too_slow":
            raise
        # The parser mends everything: what it cannot finish was too long before, too.
        return ""
    return found


T = TypeVar("T")


@frozen
class Draft:
    """A file's text before, its new text, and its encoding; `old` is `None` for a new file."""

    old: Original | None
    before: str
    after: str
    spelling: Spelling

    @property
    def data(self) -> bytes:
        """The bytes to be written."""
        return encoded(self.after, self.spelling)


async def in_thread(work: Callable[[], T]) -> T:
    """Disk work that is awaited even if the run is cancelled: no write continues unnoticed."""
    return await anyio.to_thread.run_sync(work)


def read(place: Workspace, path: str, expected: str | None) -> Original | None:
    """The file as it is; `None` if there is none and none was expected.

    Raises:
        PackError: it is not the expected file, or may not be changed.
    """
    with place.folder.place_of(path) as (folder, name):
        original = read_original(folder, name, path)
    if original is not None:
        check_unchanged(original, expected, path)
    elif expected is not None:
        raise not_found(path)
    return original


def edited(
    place: Workspace, path: str, expected: str | None, change: Callable[[str, Spelling], str]
) -> Draft:
    """The draft of a change to existing text; `edit_text` does it whole.

    Raises:
        PackError: there is no such text, or the change is not possible.
    """
    original = read(place, path, expected)
    if original is None:
        raise not_found(path)
    before, spelling = decoded(original.content, path)
    return Draft(original, before, change(before, spelling), spelling)


def replaced(place: Workspace, path: str, expected: str | None, content: str) -> Draft:
    """The draft of a complete new content, in the encoding of the old one if there is one."""
    original = read(place, path, expected)
    if original is None:
        return Draft(None, "", content, PLAIN)
    before, spelling = decoded(original.content, path)
    check_fits(spelling, content, path)
    return Draft(original, before, in_lines_of(spelling, content, before), spelling)


async def edit_text(
    place: Workspace, path: str, expected: str | None, change: Callable[[str, Spelling], str]
) -> Answer:
    """Change existing text; no other change of the file comes between reading and writing it.

    Raises:
        PackError: there is no such text, or the change is not possible.
    """
    async with writing(place, path):
        draft = await in_thread(lambda: edited(place, path, expected, change))
        return await finish(place, path, draft)


async def finish(place: Workspace, path: str, draft: Draft) -> Answer:
    """Write a draft and report the change; both are within one `writing`.

    Raises:
        PackError: it is too large, breaks code, or cannot be written.
    """
    change = change_of(path, draft)
    if change.old is not None and len(change.data) <= LARGEST:
        await check_parses(place, path, change.old.content, change.data)
    return await replace_file(place, change)


@frozen
class Change:
    """The new bytes of a file and both of its texts; `old` is `None` for a new file."""

    path: str
    old: Original | None
    data: bytes
    before: str
    after: str
    encoding: str

    @property
    def sha256(self) -> str:
        """The hash of the new file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def diff(self) -> Diff:
        """The difference between the texts."""
        return diff_of(self.before, self.after, self.path)


def change_of(path: str, draft: Draft) -> Change:
    """A draft in the bytes of its encoding."""
    return Change(path, draft.old, draft.data, draft.before, draft.after, draft.spelling.name)


async def replace_file(place: Workspace, change: Change) -> Answer:
    """Write a change as it is, code too, and report it; within one `writing`.

    Raises:
        PackError: it is too large, or cannot be written.
    """

    def work() -> Diff:
        _put(place, change)
        return change.diff

    return _answer(change, await in_thread(work))


def replace_files(place: Workspace, changes: Sequence[Change]) -> None:
    """Write changes of existing files, all or none of them; within one `writing`.

    Raises:
        PackError: one cannot be written, and those before it are as they were.
    """
    done: list[Change] = []
    try:
        for change in changes:
            _put(place, change)
            done.append(change)
    except PackError as error:
        for change in reversed(done):
            _take_back(place, change, error)
        raise


def _take_back(place: Workspace, change: Change, error: PackError) -> None:
    """Write the old content of a file again, if nobody has changed the new one."""
    try:
        written = read(place, change.path, change.sha256)
        assert change.old is not None
        old = change.old.content
        _put(place, Change(change.path, written, old, change.after, change.before, ""))
    except PackError as second:
        message = f"{error.message}; and `{change.path}` is changed already: {second.message}"
        raise PackError(error.code, message, **error.details) from None


def _put(place: Workspace, change: Change) -> None:
    if len(change.data) > LARGEST:
        message = f"`{change.path}` would have {len(change.data):,} bytes; {LARGEST:,} are the most"
        raise PackError("too_large", message, path=change.path, limit=LARGEST)
    if change.old is None or change.old.content != change.data:
        with place.folder.place_of(change.path) as (folder, name):
            put(folder, name, change.path, change.data, change.old)


def _answer(change: Change, diff: Diff) -> Answer:
    what = "created" if change.old is None else "changed" if diff.text else "unchanged"
    size, digest = len(change.data), change.sha256
    head = f"{what} `{for_line(change.path)}` ({counted(size, 'byte')}, sha256 {digest})"
    text = f"{head}\n{diff.text}"
    if diff.truncated:
        text += "[truncated: true; the change is longer than shown, file_read shows the file]"
    described: dict[str, JsonValue] = {
        "path": change.path,
        "created": change.old is None,
        "bytes": size,
        "sha256": digest,
        "encoding": change.encoding,
        "diff": diff.text,
        "truncated": diff.truncated,
    }
    return Answer(text, described)
