"""A change of a file, from reading it to the answer.

The answer contains a unified diff, made in bounded time and length. An edit after which a valid
Python file would no longer parse is refused.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import PurePosixPath
from typing import TypeVar

import anyio.to_thread

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.core.text_diff import diff_rows, equal_start
from aish.packs.catalogue import PACKS
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, room
from aish.packs.workspace.atomic_write import (
    LARGEST,
    Original,
    check_unchanged,
    discard,
    prepare,
    put_prepared,
    read_original,
    remove,
)
from aish.packs.workspace.confined_path import not_found, segments_of
from aish.packs.workspace.file_text import (
    PLAIN,
    Spelling,
    check_fits,
    decode_text,
    encode_text,
    in_lines_of,
)
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import lock_files
from aish.system.globs import is_autorun

ROOM = 20_000
"""Characters of a diff that are returned."""
_COMPARED = 1000
"""Changed lines that are compared one by one; more are shown as taken out and put in."""
_CONTEXT = 3
_LONGEST = 2000


@frozen
class Diff:
    text: str
    truncated: bool


def diff_of(before: str, after: str, path: str) -> Diff:
    if before == after:
        return Diff("", truncated=False)
    rows: list[str] = []
    size = 0
    skipped, begin, end = _alike(before, after)
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    head = (f"--- a/{for_line(path)}", f"+++ b/{for_line(path)}")
    hunks = diff_rows(old, new, _CONTEXT, _COMPARED, skipped + 1, skipped + 1)
    for row in chain(head, hunks):
        cut = row if len(row) < _LONGEST else row[:_LONGEST] + "…"
        size += len(cut) + 1
        if size > ROOM:
            return Diff("".join(rows), truncated=True)
        rows.append(f"{cut}\n")
    return Diff("".join(rows), truncated=False)


def _alike(before: str, after: str) -> tuple[int, int, int]:
    """Count the lines that two texts share at the start, and characters at start and end.

    Lines of context are not counted. Most of a long text is skipped so, without a step for each
    line.
    """
    begin = _cut_to_lines(before, equal_start(before, after))
    end = equal_start(before[begin:][::-1], after[begin:][::-1])
    place = len(before) - end
    for _ in range(_CONTEXT + 1):
        # After a line end, so that neither text seems to end without one.
        place = before.find("\n", place) + 1
        if not place:
            return before.count("\n", 0, begin), begin, 0
    return before.count("\n", 0, begin), begin, len(before) - place


def _cut_to_lines(text: str, place: int) -> int:
    """The begin of the line some lines of context above a place; 0 if there are not as many."""
    for _ in range(_CONTEXT + 1):
        place = text.rfind("\n", 0, place)
        if place < 0:
            return 0
    return place + 1


_PYTHON = (".py", ".pyi", ".pyw")
_C = {
    **dict.fromkeys((".c",), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hpp", ".hh", ".ipp"), "cpp"),
    ".h": "either",
}


async def check_parses(place: Workspace, path: str, before: bytes, after: bytes) -> None:
    """Check that Python or C code which parsed before still does."""
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
            problem: str = await place.worker.run(call, code, largest=LARGEST)
        except PackError as error:
            if error.code != "too_slow":
                raise
            return "it is too deep or too long to be parsed"
        return problem

    problem = await of(after)
    # If it did not parse before, any edit may be part of the repair.
    return problem if problem and not await of(before) else ""


async def _c_problem(place: Workspace, before: bytes, after: bytes, language: str) -> str:
    call = "aish.packs.c.c_parser:new_problem"
    try:
        problem: str = await place.worker.run(
            call, before, after, largest=LARGEST, language=language, macros=list(place.macros)
        )
    except PackError as error:
        if error.code != "too_slow":
            raise
        # The parser mends everything: what it cannot finish was too long before, too.
        return ""
    return problem


T = TypeVar("T")


@frozen
class FileChange:
    """The new bytes of a file and both of its texts.

    `old` is `None` for a new file, which gets `mode`, and `data` for one that is removed.
    """

    path: str
    old: Original | None
    data: bytes | None
    before: str
    after: str
    encoding: str
    mode: int | None = None

    @property
    def sha256(self) -> str | None:
        return None if self.data is None else hashlib.sha256(self.data).hexdigest()

    @property
    def diff(self) -> Diff:
        return diff_of(self.before, self.after, self.path)


def change_of_text(
    path: str, old: Original | None, before: str, after: str, spelling: Spelling
) -> FileChange:
    return FileChange(path, old, encode_text(after, spelling), before, after, spelling.name)


async def in_thread(work: Callable[[], T]) -> T:
    """Disk work that is awaited even if the run is cancelled: no write continues unnoticed."""
    return await anyio.to_thread.run_sync(work)


def check_path_below(path: str, name: str) -> None:
    """Check that a file may be changed by a call that names it, or a folder around it, as `path`.

    Rules judge `path` alone, and files that other programs run by themselves by their very path.
    """
    above, segments = segments_of(path), segments_of(name)
    if segments[: len(above)] != above:
        raise PackError(
            "outside", f"`{name}` is not in `{path}`, the `path` of the call", path=name
        )
    if is_autorun(name) and segments != above:
        message = f"other programs run `{name}` by themselves: change it alone, as the `path`"
        raise PackError("protected", message, path=name)


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


def read_existing(place: Workspace, path: str, expected: str | None) -> Original:
    """The file as it is; `PackError` as with `read`, and if there is none."""
    original = read(place, path, expected)
    if original is None:
        raise not_found(path)
    return original


def replace_content(place: Workspace, path: str, expected: str | None, content: str) -> FileChange:
    """A complete new content, in the encoding of the old one if there is one."""
    original = read(place, path, expected)
    if original is None:
        return change_of_text(path, None, "", content, PLAIN)
    before, spelling = decode_text(original.content, path)
    check_fits(spelling, content, path)
    after = in_lines_of(spelling, content, before)
    return change_of_text(path, original, before, after, spelling)


async def edit_text(
    place: Workspace, path: str, expected: str | None, change: Callable[[str, Spelling], str]
) -> Answer:
    """Change existing text; no other change of the file comes between reading and writing it."""

    def work() -> FileChange:
        original = read_existing(place, path, expected)
        before, spelling = decode_text(original.content, path)
        return change_of_text(path, original, before, change(before, spelling), spelling)

    async with lock_files(place, path):
        return await finish(place, await in_thread(work))


async def finish(place: Workspace, change: FileChange) -> Answer:
    """Write a change and report it, if code still parses; within one `lock_files`."""
    await check_change(place, change)
    return await replace_file(place, change)


async def check_change(place: Workspace, change: FileChange) -> None:
    """Check that the code in a file that is changed still parses."""
    data = change.data
    if change.old is not None and data is not None and len(data) <= LARGEST:
        await check_parses(place, change.path, change.old.content, data)


async def replace_file(place: Workspace, change: FileChange) -> Answer:
    """Write a change as it is, code too, and report it; within one `lock_files`."""

    def work() -> Diff:
        _put(place, change, _prepare(place, change))
        return change.diff

    return _answer(change, await in_thread(work))


def replace_files(place: Workspace, changes: Sequence[FileChange]) -> None:
    """Write changes of several files, all or none of them; within one `lock_files`.

    Raises:
        PackError: one cannot be written, and those before it are as they were.
    """
    done: list[FileChange] = []
    prepared: list[str | None] = []
    try:
        for change in changes:
            # So that a disk which is full is noticed before anything is replaced.
            prepared.append(_prepare(place, change))  # ruff: ignore[manual-list-comprehension] - those before a failure count
        for change, beside in zip(changes, prepared, strict=True):
            _put(place, change, beside)
            done.append(change)
    except BaseException as error:
        left = [problem for change in reversed(done) if (problem := _take_back(place, change))]
        if left and isinstance(error, PackError):
            message = "; and ".join([error.message, *left])
            raise PackError(error.code, message, **error.details) from None
        raise
    finally:
        for change, beside in zip(changes[len(done) :], prepared[len(done) :], strict=False):
            if beside is not None:
                with suppress(PackError), place.folder.place_of(change.path) as (folder, _):
                    discard(folder, beside)


def _take_back(place: Workspace, change: FileChange) -> str:
    """Restore the old content of a file, unless the new one was changed meanwhile.

    Returns what was not restored and why, empty if it was.
    """
    old = change.old
    try:
        written = None if change.data is None else read(place, change.path, change.sha256)
        content, mode = (None, None) if old is None else (old.content, old.mode)
        back = FileChange(change.path, written, content, change.after, change.before, "", mode)
        _put(place, back, _prepare(place, back))
    except PackError as error:
        return f"`{change.path}` is changed already: {error.message}"
    return ""


def _prepare(place: Workspace, change: FileChange) -> str | None:
    """Write the new content beside a file, unless it is to be removed, or to stay as it is."""
    old, data = change.old, change.data
    if data is not None and len(data) > LARGEST:
        message = f"`{change.path}` would have {len(data):,} bytes; {LARGEST:,} are the most"
        raise PackError("too_large", message, path=change.path, limit=LARGEST)
    if data is None or (old is not None and old.content == data):
        return None
    with place.folder.place_of(change.path) as (folder, name):
        return prepare(folder, name, change.path, data, old.mode if old else change.mode)


def _put(place: Workspace, change: FileChange, beside: str | None) -> None:
    """Put what `_prepare` has written in place, or remove the file."""
    if beside is None and change.data is not None:
        return
    with place.folder.place_of(change.path) as (folder, name):
        if beside is not None:
            put_prepared(folder, beside, (name, change.path), change.old)
        elif change.old is not None:
            remove(folder, name, change.path, change.old)


def changes_answer(
    text: str,
    changes: Sequence[FileChange],
    data: Mapping[str, JsonValue],
    notes: Sequence[str] = (),
) -> Answer:
    """Describe changes of several files: a text, a diff for each, and notes below."""
    diffs: dict[str, str] = {}
    is_cut = False
    left = min(ROOM, room() // 2)
    for change in changes:
        diff = diff_of(change.before, change.after, change.path)
        is_cut = is_cut or diff.truncated or len(diff.text) > left
        if len(diff.text) <= left:
            left -= len(diff.text)
            diffs[change.path] = diff.text
    rest = [*notes]
    if is_cut:
        rest.append("truncated: true; the changes are longer than shown, file_read shows the files")
    text = "".join([text, *diffs.values(), *(f"[{note}]\n" for note in rest)])
    return Answer(text.rstrip("\n"), {**data, "diffs": diffs, "truncated": is_cut})


def _answer(change: FileChange, diff: Diff) -> Answer:
    what = "created" if change.old is None else "changed" if diff.text else "unchanged"
    size, digest = len(change.data or b""), change.sha256
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
