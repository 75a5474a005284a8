"""The pack `edit`: changes within text files below the root."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import (
    CHANGES,
    CHANGES_BELOW,
    FILE_CHANGE,
    WRITE_CODES,
    ExpectedHash,
    FilePath,
    Older,
    Pack,
    tool,
)
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.workspace.atomic_write import Original
from aish.packs.workspace.confined_path import segments_of, writable
from aish.packs.workspace.file_change import (
    FileChange,
    change_of_text,
    changes_answer,
    check_change,
    check_path_below,
    edit_text,
    in_thread,
    read,
    read_existing,
    replace_files,
)
from aish.packs.workspace.file_options import FilesOptions
from aish.packs.workspace.file_text import (
    PLAIN,
    Spelling,
    check_fits,
    decode_text,
    in_lines_of,
    plain_text,
)
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import check_not_own, lock_files

if TYPE_CHECKING:
    from aish.packs.workspace.patch_text import FilePatch

_MOST_LISTED = 20


@tool(
    CHANGES,
    result={**FILE_CHANGE, "replacements": "integer"},
    codes=(*WRITE_CODES, "no_match", "ambiguous"),
    older={"edit_file": Older(rename={"old_string": "old_text", "new_string": "new_text"})},
    older_parameters={"old_string": "old_text", "new_string": "new_text"},
)
async def file_edit(
    place: Workspace,
    path: FilePath,
    old_text: str,
    new_text: str,
    expect_sha256: ExpectedHash = None,
    *,
    replace_all: bool = False,
) -> Answer:
    """Replaces a text in a file by another one.

    The old text has to occur exactly once, unless `replace_all` is set.

    Args:
        old_text: The text to replace, exactly as it stands in the file, spaces included.
        new_text: The text to put in its place.
        replace_all: Whether every occurrence is replaced.
    """
    if not old_text:
        raise PackError("bad_arguments", "`old_text` is empty; file_set_lines puts lines in")
    plain_text(old_text, "old_text")
    plain_text(new_text, "new_text")

    replaced = 0

    def change(text: str, spelling: Spelling) -> str:
        nonlocal replaced
        check_fits(spelling, new_text, path)
        old = in_lines_of(spelling, old_text, text)
        new = in_lines_of(spelling, new_text, text)
        lines = _occurrences(text, old)
        if not lines:
            raise _no_match(text, old, path)
        if len(lines) > 1 and not replace_all:
            raise _ambiguous(lines, path)
        # Overlapping ones are replaced once.
        replaced = text.count(old) if len(lines) > 1 else 1
        return text.replace(old, new)

    answer = await edit_text(place, path, expect_sha256, change)
    return replace(answer, data={**answer.data, "replacements": replaced})


@tool(
    CHANGES,
    result=FILE_CHANGE,
    codes=(*WRITE_CODES, "out_of_range"),
    older={"set_file_slice": Older(rename={"new_content": "content"})},
)
async def file_set_lines(
    place: Workspace,
    path: FilePath,
    start_line: int,
    end_line: int,
    content: str,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Replaces a range of lines of a file, or puts lines in before one.

    Args:
        start_line: The first line to replace; 1 is the first line of the file.
        end_line: The last line to replace; `start_line - 1` replaces none and puts lines in.
        content: The new lines; empty takes the old ones out.
    """
    plain_text(content, "content")

    def change(text: str, spelling: Spelling) -> str:
        check_fits(spelling, content, path)
        lines = [line + "\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        if not lines[-1]:
            lines.pop()
        if (
            start_line < 1
            or end_line < start_line - 1
            or max(start_line - 1, end_line) > len(lines)
        ):
            message = (
                f"`{path}` has {len(lines)} lines; {start_line} to {end_line} are no range of it"
            )
            raise PackError("out_of_range", message, total_lines=len(lines))
        above, below = "".join(lines[: start_line - 1]), "".join(lines[end_line:])
        new = in_lines_of(spelling, content, text)
        end = "\r\n" if "\r\n" in new else "\n"
        if above and new and not above.endswith("\n"):
            above += end
        if new and not new.endswith("\n") and (below or text.endswith("\n") or not text):
            new += end
        return above + new + below

    return await edit_text(place, path, expect_sha256, change)


@tool(
    CHANGES_BELOW,
    result={"changes": "array", "diffs": "object", "truncated": "boolean"},
    rows={
        "changes": {
            "kind": "string",
            "path": "string",
            "new_path": "string",
            "added": "integer",
            "removed": "integer",
            "sha256": "string",
        }
    },
    codes=(*WRITE_CODES, *("no_match", "ambiguous", "exists", "unsupported", "too_slow")),
    older={"apply_patch": Older(rename={"input": "patch"})},
)
async def file_patch(
    place: Workspace, patch: str, path: str = ".", expect_sha256: dict[str, str] | None = None
) -> Answer:
    """Applies a patch to one or more files: all of it, or nothing.

    The patch is a unified diff, as of `git diff`, or has the form `*** Begin Patch`. It can make,
    change, rename and delete files. The lines around a change have to stand in the file exactly;
    line numbers are hints.

    Args:
        patch: The patch, with paths relative to the root folder.
        path: The folder or file that all files of the patch are in. Rules about paths judge it.
        expect_sha256: For some paths of the patch, the SHA-256 that the file has to have now.
    """
    from aish.packs.workspace.patch_text import parse_patch

    plain_text(patch, "patch")
    files = await in_thread(lambda: parse_patch(patch))
    paths = _check_paths(path, files)
    expected = _expected_hashes(expect_sha256 or {})
    if unknown := expected.keys() - {segments_of(one.path) for one in files}:
        message = f"`expect_sha256` names `{'/'.join(min(unknown))}`, which the patch does not"
        raise PackError("bad_arguments", message)
    for name in paths:
        check_not_own(place, name)
    made: list[str] = []
    try:
        await in_thread(lambda: _make_folders(place, files, made))
        async with lock_files(place, *paths):
            return await _write_patch(place, files, expected)
    except BaseException:
        place.folder.remove_folders(tuple(made))
        raise


def _expected_hashes(given: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    expected: dict[tuple[str, ...], str] = {}
    for path, sha256 in given.items():
        if expected.setdefault(segments_of(path), sha256) != sha256:
            message = f"`expect_sha256` has two values for `{path}`"
            raise PackError("bad_arguments", message, path=path)
    return expected


def _make_folders(place: Workspace, files: "Sequence[FilePatch]", made: list[str]) -> None:
    for file in files:
        above = "/".join(writable(file.new_path, place.folder.deny_names)[:-1])
        if above and (file.kind == "create" or file.new_path != file.path):
            made += place.folder.make_folders(above)


async def _write_patch(
    place: Workspace, files: "Sequence[FilePatch]", expected: Mapping[tuple[str, ...], str]
) -> Answer:
    results = await in_thread(lambda: _read_and_apply(place, files, expected))
    for result in results:
        await check_change(place, result.check)
    changes = [change for result in results for change in result.changes]
    # Files are removed last: if it all ends in between, they are there twice.
    changes.sort(key=lambda change: change.data is None)
    await in_thread(lambda: replace_files(place, changes))
    return await in_thread(lambda: _patch_answer(results))


def _check_paths(path: str, files: "Sequence[FilePatch]") -> list[str]:
    """Check that files are below `path` and none is listed twice; return their paths."""
    paths: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for file in files:
        for name in dict.fromkeys((file.path, file.new_path)):
            check_path_below(path, name)
            segments = segments_of(name)
            if segments in seen:
                message = f"`{name}` is in the patch twice (line {file.line}); one part has to do"
                raise PackError("bad_arguments", message, path=name, patch_line=file.line)
            seen.add(segments)
            paths.append(name)
    return paths


@frozen
class _PatchResult:
    """The changes of one part of a patch; `check` has the code before and after."""

    file: "FilePatch"
    changes: tuple[FileChange, ...]
    added: int
    removed: int

    @property
    def check(self) -> FileChange:
        """Check the file before and after, under its new name."""
        return replace(self.changes[0], old=self.changes[-1].old)


_MOST_BYTES = 64 * 1024 * 1024


def _read_and_apply(
    place: Workspace, files: "Sequence[FilePatch]", expected: Mapping[tuple[str, ...], str]
) -> list[_PatchResult]:
    results: list[_PatchResult] = []
    size = 0
    for file in files:
        result = _apply(place, file, expected.get(segments_of(file.path)))
        results.append(result)
        size += sum(len(change.data or b"") for change in result.changes)
        if size > _MOST_BYTES:
            message = f"the files of the patch have more than {_MOST_BYTES:,} bytes"
            raise PackError("too_large", message, limit=_MOST_BYTES)
    return results


def _apply(place: Workspace, file: "FilePatch", expected: str | None) -> _PatchResult:
    from aish.packs.workspace.patch_text import apply_hunks

    path, new_path = file.path, file.new_path
    if file.kind == "create" and expected is not None:
        read_existing(place, path, expected)
    if file.kind in {"create", "rename", "copy"} and read(place, new_path, None) is not None:
        message = f"there is a `{new_path}` already (line {file.line} of the patch)"
        raise PackError("exists", message, path=new_path)
    original: Original | None = None
    before, spelling = "", PLAIN
    if file.kind != "create":
        original = read_existing(place, path, expected)
        before, spelling = _decode(original, file)
    # Where all lines end alike, those of the patch do too.
    keep_ends = original is None or (not spelling.crlf and "\r" in before)
    patched = apply_hunks(before, file, keep_ends=keep_ends)
    for hunk in file.hunks:
        check_fits(spelling, "\n".join(line for sign, line in hunk.rows if sign == "+"), new_path)
    if file.kind == "delete":
        if patched.text and file.hunks:
            message = f"the patch deletes `{path}`, and does not have all of its lines"
            raise PackError("no_match", message, path=path)
        removed = before.count("\n") + bool(before and before[-1] != "\n")
        removal = FileChange(path, original, None, before, "", spelling.name)
        return _PatchResult(file, (removal,), 0, removed)
    change = change_of_text(
        new_path, original if new_path == path else None, before, patched.text, spelling
    )
    if original is not None and not file.hunks:
        change = replace(change, data=original.content)
    changes = [change]
    if original is not None and new_path != path:
        changes = [replace(change, mode=original.mode)]
        if file.kind == "rename":
            # The diff is with the new name.
            changes.append(FileChange(path, original, None, "", "", spelling.name))
    return _PatchResult(file, tuple(changes), patched.added, patched.removed)


def _decode(original: Original, file: "FilePatch") -> tuple[str, Spelling]:
    """Decode a file; a binary one is empty text if its content is kept or removed as a whole."""
    try:
        return decode_text(original.content, file.path)
    except PackError:
        if file.hunks:
            raise
        return "", PLAIN


_DONE = {
    "create": "created",
    "change": "changed",
    "delete": "deleted",
    "rename": "renamed",
    "copy": "copied",
}


def _patch_answer(results: Sequence[_PatchResult]) -> Answer:
    rows: list[JsonValue] = []
    lines: list[str] = []
    notes: list[str] = []
    for result in results:
        file = result.file
        target = f" to `{for_line(file.new_path)}`" if file.new_path != file.path else ""
        counts = f"(+{result.added} -{result.removed})"
        lines.append(f"{_DONE[file.kind]} `{for_line(file.path)}`{target} {counts}\n")
        rows.append(
            {
                "kind": _DONE[file.kind],
                "path": file.path,
                "new_path": file.new_path if target else None,
                "added": result.added,
                "removed": result.removed,
                "sha256": result.changes[0].sha256,
            }
        )
        if file.is_executable:
            notes.append(f"`{for_line(file.new_path)}` was not made executable")
    changes = [change for result in results for change in result.changes]
    return changes_answer("".join(lines), changes, {"changes": rows}, notes)


def _occurrences(text: str, old: str) -> list[int]:
    """Return the lines where a text begins, with overlaps; a few more than are listed."""
    found: list[int] = []
    line, counted, place = 1, 0, text.find(old)
    while place >= 0 and len(found) <= _MOST_LISTED:
        line += text.count("\n", counted, place)
        counted = place
        found.append(line)
        place = text.find(old, place + 1)
    return found


def _ambiguous(lines: list[int], path: str) -> PackError:
    listed = ", ".join(str(line) for line in lines[:_MOST_LISTED])
    more = " and more" if len(lines) > _MOST_LISTED else ""
    message = (
        f"`old_text` occurs more than once in `{path}`, at lines {listed}{more}; "
        "give more of what is around it, or replace_all=true"
    )
    return PackError("ambiguous", message, path=path, lines=[*lines[:_MOST_LISTED]])


def _no_match(text: str, old: str, path: str) -> PackError:
    """Report where the first line of the text occurs with other spaces, if it does."""
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    alike = (
        number for number, line in enumerate(text.split("\n"), 1) if first and line.strip() == first
    )
    lines = list(islice(alike, _MOST_LISTED))
    hint = f"; its first line stands at line {', '.join(map(str, lines))}" if lines else ""
    message = f"`old_text` does not occur in `{path}`{hint}; file_read shows what does"
    return PackError("no_match", message, path=path, lines=[*lines])


PACK = Pack(tools=(file_edit, file_set_lines, file_patch), options=FilesOptions)
