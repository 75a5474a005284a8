"""The pack `fs`: reads and writes files and folders below the root (K4, K5, K6, K7, K8).

The work runs in threads, because a disk may be slow; everything in them is bounded.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import (
    ADDS,
    CHANGES,
    FILE_CHANGE,
    PATH_CODES,
    READS,
    REPLACES,
    WRITE_CODES,
    Older,
    Pack,
    tool,
)
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.workspace.atomic_write import (
    check_unchanged,
    read_original,
    rename_new,
    settle,
    told_of_write,
)
from aish.packs.workspace.confined_path import Folder, not_found
from aish.packs.workspace.file_change import finish, in_thread, replaced
from aish.packs.workspace.file_text import ROOM, SCAN_LIMIT, Lines, plain_text, read_lines
from aish.packs.workspace.folder_walk import Budget, Entry, list_folder, walk
from aish.packs.workspace.text_search import Found, SearchScope, search_literal, search_regex
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import check_not_own, folder_locks, writing


@tool(
    REPLACES,
    result=FILE_CHANGE,
    codes=(*WRITE_CODES,),
    older={"write_file": Older()},
)
async def file_write(
    place: Workspace, path: str, content: str, expect_sha256: str | None = None
) -> Answer:
    """Writes a whole text file, a new one or in the place of the old one.

    The old one's encoding, line ends and mode are kept.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder; its folder has to be there.
        content: The new content of the file.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """
    plain_text(content, "content")
    async with writing(place, path):
        draft = await in_thread(lambda: replaced(place, path, expect_sha256, content))
        return await finish(place, path, draft)


@tool(
    CHANGES,
    result={"path": "string", "deleted": "boolean"},
    codes=(*PATH_CODES, "protected", "unwritable", "changed", "not_empty"),
)
async def file_delete(place: Workspace, path: str, expect_sha256: str | None = None) -> Answer:
    """Deletes one file. Folders and links are left alone.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """

    def work() -> None:
        with place.folder.place_of(path) as (folder, name), folder_locks([folder], path):
            _check_file(folder, name, path, expect_sha256)
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                raise not_found(path) from None
            except OSError as error:
                raise told_of_write(error, path) from None
            settle(folder)

    async with writing(place, path):
        await in_thread(work)
    return Answer(f"deleted `{for_line(path)}`", {"path": path, "deleted": True})


@tool(
    CHANGES,
    result={"path": "string", "old_path": "string"},
    codes=(*PATH_CODES, "protected", "unwritable", "changed", "exists"),
    older={"move_file": Older(rename={"source": "path", "destination": "new_path"})},
    older_parameters={"old_path": "path", "oldPath": "path", "newPath": "new_path"},
)
async def file_rename(
    place: Workspace,
    path: str,
    new_path: str,
    expect_sha256: str | None = None,
    *,
    overwrite: bool = False,
) -> Answer:
    """Renames or moves one file. Folders and links are left alone.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        new_path: What it is to be, relative to the root folder; its folder has to be there.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
        overwrite: Whether a file that has the new name may be replaced.
    """

    def work() -> None:
        with (
            place.folder.place_of(path) as (folder, name),
            place.folder.place_of(new_path) as (target, new),
            folder_locks([folder, target], path),
        ):
            _check_file(folder, name, path, expect_sha256)
            if overwrite and _kind(target, new, new_path) is not None:
                _check_file(target, new, new_path, None)
            _rename((folder, name, path), (target, new, new_path), overwrite=overwrite)

    async with writing(place, path, new_path):
        await in_thread(work)
    text = f"renamed `{for_line(path)}` to `{for_line(new_path)}`"
    return Answer(text, {"path": new_path, "old_path": path})


@tool(
    ADDS,
    result={"path": "string", "created": "array"},
    codes=(*PATH_CODES, "protected", "unwritable"),
    older={"create_directory": Older()},
)
async def dir_create(place: Workspace, path: str) -> Answer:
    """Makes a folder, and those above it that are missing.

    Args:
        place: The root, which no caller names.
        path: The folder, relative to the root folder.
    """
    check_not_own(place, path)
    made = await in_thread(lambda: place.folder.make_folders(path))
    shown = for_line(path)
    text = f"made the folder `{shown}`" if made else f"the folder `{shown}` was there already"
    return Answer(text, {"path": path, "created": list(made)})


def _check_file(folder: int, name: str, path: str, expected: str | None) -> None:
    """Check that a name is a regular file, and the expected one."""
    mode = _kind(folder, name, path)
    if mode is None:
        raise not_found(path)
    if not stat.S_ISREG(mode):
        raise PackError("not_a_file", f"`{path}` is a folder, a link or no file", path=path)
    if expected is not None:
        original = read_original(folder, name, path)
        if original is None:
            raise not_found(path)
        check_unchanged(original, expected, path)


def _kind(folder: int, name: str, path: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise told_of_write(error, path) from None


def _rename(old: tuple[int, str, str], new: tuple[int, str, str], *, overwrite: bool) -> None:
    (folder, name, path), (target, new_name, new_path) = old, new
    try:
        if overwrite:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=target)
        else:
            rename_new(folder, name, target, new_name)
    except FileExistsError:
        message = f"there is a `{new_path}` already; overwrite=true replaces a file"
        raise PackError("exists", message, path=new_path) from None
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise told_of_write(error, new_path) from None
    settle(target)
    settle(folder)


T = TypeVar("T")
DEEPEST_TREE = 16
HEAD = 10


async def _threaded(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


@tool(
    READS,
    result={
        "path": "string",
        "content": "string",
        "start_line": "integer",
        "end_line": "integer",
        "total_lines": "integer",
        "encoding": "string",
        "language": "string",
        "sha256": "string",
        "truncated": "boolean",
    },
    codes=(*PATH_CODES, "binary", "out_of_range"),
    older={"read_file": Older(), "read_text_file": Older(), "get_file_slice": Older()},
)
async def file_read(
    place: Workspace, path: str, start_line: int | None = None, end_line: int | None = None
) -> Answer:
    """Reads a text file and returns its content.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        start_line: The first line to return; 1 is the first line of the file.
        end_line: The last line to return.
    """
    first = 1 if start_line is None else start_line
    if first < 1 or (end_line is not None and end_line < first):
        raise PackError("out_of_range", f"lines {first} to {end_line} are not a range")

    def work() -> Lines:
        with place.folder.file(path) as descriptor:
            return read_lines(descriptor, path, first, end_line)

    lines = await _threaded(work)
    return Answer(lines.text + _how_to_go_on(lines), _lines_data(path, lines))


@tool(
    READS,
    result={"path": "string", "exists": "boolean", "kind": "string"},
    codes=(*PATH_CODES,),
)
async def file_exists(place: Workspace, path: str) -> Answer:
    """Tells whether there is a file or a folder of this name.

    Args:
        place: The root, which no caller names.
        path: The file or folder, relative to the root folder.
    """
    kind = await _threaded(lambda: place.folder.kind(path))
    text = f"`{for_line(path)}` " + (f"exists; it is a {kind}" if kind else "does not exist")
    return Answer(text, {"path": path, "exists": kind is not None, "kind": kind})


@tool(
    READS,
    result={"matches": "array", "files": "integer", "skipped": "integer", "truncated": "boolean"},
    rows={"matches": {"path": "string", "line": "integer", "text": "string"}},
    codes=(*PATH_CODES, "too_slow"),
)
async def file_search(
    place: Workspace,
    query: str,
    path: str = ".",
    glob: str | None = None,
    *,
    regex: bool = False,
    ignore_case: bool = False,
) -> Answer:
    """Finds lines that contain a text, in one file or in all files below a folder.

    Folders that programs fill, such as `.git` and `node_modules`, are searched only when named.

    Args:
        place: The root, which no caller names.
        query: The text to find, exactly as it is written.
        path: The file or folder to search in, relative to the root folder.
        glob: Only files whose name matches, such as `*.py` or `src/**/*.md`.
        regex: Whether the query is a Python regular expression.
        ignore_case: Whether upper and lower case are the same.
    """
    if not query:
        raise PackError("bad_arguments", "`query` is empty")
    wanted = SearchScope(path, glob)
    if regex:
        found = await search_regex(place, wanted, query, ignore_case=ignore_case)
    else:
        found = await _threaded(
            lambda: search_literal(place.folder, wanted, query, ignore_case=ignore_case)
        )
    return _found_answer(found)


@tool(
    READS,
    result={
        "path": "string",
        "language": "string",
        "bytes": "integer",
        "lines": "integer",
        "encoding": "string",
        "sha256": "string",
        "head": "string",
        "summary": "string",
    },
    codes=(*PATH_CODES, "binary", "too_slow"),
    older={"get_file_info": Older(), "get_file_summary": Older()},
)
async def file_summary(place: Workspace, path: str) -> Answer:
    """Describes a text file without returning all of it: size, lines, encoding, first lines.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
    """

    def work() -> dict[str, JsonValue]:
        with place.folder.file(path) as descriptor:
            lines = read_lines(descriptor, path, 1, HEAD)
            size = os.fstat(descriptor).st_size
            digest = _sha256(descriptor, size)
        return {
            "path": path,
            "bytes": size,
            "lines": lines.total,
            "encoding": lines.encoding,
            "line_ends": "CRLF" if "\r\n" in lines.text else "LF",
            "sha256": digest,
            "head": lines.text,
        }

    data = await _threaded(work)
    rows = [f"{name}: {value}" for name, value in data.items() if name != "head"]
    return Answer("\n".join([*rows, "first lines:", str(data["head"])]), data)


@tool(
    READS,
    result={"path": "string", "entries": "array", "truncated": "boolean"},
    rows={"entries": {"name": "string", "path": "string", "kind": "string", "bytes": "integer"}},
    codes=(*PATH_CODES,),
    older={"list_directory": Older()},
)
async def dir_list(place: Workspace, path: str = ".", after: str = "") -> Answer:
    """Lists the files and folders in a folder.

    Args:
        place: The root, which no caller names.
        path: The folder, relative to the root folder.
        after: Only names that come after this one, to go on with a long list.
    """
    listing = await _threaded(lambda: list_folder(place.folder, path, after))
    rows = [_row(entry) for entry in listing.entries]
    text, count = _lines_that_fit(rows)
    shown = listing.entries[:count]
    truncated = listing.incomplete or count < len(rows)
    if truncated and shown:
        text += f"[truncated: true; go on with after={for_line(shown[-1].name)}]"
    data: dict[str, JsonValue] = {
        "path": path,
        "entries": [
            {"name": for_line(entry.name), "kind": entry.kind, "bytes": entry.size}
            for entry in shown
        ],
        "truncated": truncated,
    }
    return Answer(text or "nothing here", data)


@tool(
    READS,
    result={"path": "string", "tree": "string", "entries": "integer", "truncated": "boolean"},
    codes=(*PATH_CODES,),
    older={"directory_tree": Older(), "get_tree": Older(rename={"max_depth": "depth"})},
)
async def dir_tree(place: Workspace, path: str = ".", depth: int = 3) -> Answer:
    """Shows the files and folders below a folder as an indented tree.

    Args:
        place: The root, which no caller names.
        path: The folder to begin with, relative to the root folder.
        depth: How many levels to show.
    """
    levels = min(max(depth, 1), DEEPEST_TREE)
    text, count, more = await _threaded(lambda: _tree(place.folder, path, levels))
    if more:
        text += (
            "[truncated: true; call dir_tree with one of these folders as path, or a smaller depth]"
        )
    data: dict[str, JsonValue] = {
        "path": path,
        "tree": text,
        "entries": count,
        "truncated": more,
    }
    return Answer(text or "nothing here", data)


def _lines_data(path: str, lines: Lines) -> dict[str, JsonValue]:
    return {
        "path": path,
        "content": lines.text,
        "start_line": lines.first,
        "end_line": lines.last,
        "total_lines": lines.total,
        "encoding": lines.encoding,
        "truncated": lines.cut,
    }


def _how_to_go_on(lines: Lines) -> str:
    """The text below content that was cut, which says how to continue (K7)."""
    if not lines.cut:
        return ""
    total = f"of {lines.total:,}" if lines.total is not None else "of very many"
    if lines.inside:
        where = f"within line {lines.last:,} {total}, which is too long to be returned whole"
        return f"\n[truncated: true, {where}; go on with start_line={lines.last + 1}]"
    where = f"after line {lines.last:,} {total}"
    return f"[truncated: true, {where}; go on with start_line={lines.last + 1}]"


def _found_answer(found: Found) -> Answer:
    rows = [f"{for_line(match.path)}:{match.line}: {match.text}" for match in found.matches]
    text, count = _lines_that_fit(rows)
    stopped = found.stopped or ("because the result is long" if count < len(rows) else "")
    skipped = f", {found.skipped} skipped (not text, or too large)" if found.skipped else ""
    text += f"{count} lines in {found.files} files searched{skipped}"
    if stopped:
        text += (
            f"\n[truncated: true, stopped {stopped}; narrow it with path, glob or a longer query]"
        )
    data: dict[str, JsonValue] = {
        "matches": [
            {"path": for_line(match.path), "line": match.line, "text": match.text}
            for match in found.matches[:count]
        ],
        "files": found.files,
        "skipped": found.skipped,
        "truncated": bool(stopped),
    }
    return Answer(text, data)


def _tree(folder: Folder, path: str, levels: int) -> tuple[str, int, bool]:
    """The tree as text, the number of its entries, and whether there were more."""
    budget = Budget()
    rows: list[str] = []
    size = 0
    for level, entry in walk(folder, path, budget, levels):
        row = "  " * (level - 1) + _row(entry)
        size += len(row) + 1
        if size > ROOM:
            return _joined(rows), len(rows), True
        rows.append(row)
    return _joined(rows), len(rows), budget.spent


def _row(entry: Entry) -> str:
    note = {"link": " (link)", "other": " (not a file)"}.get(entry.kind, "")
    return entry.shown + note


def _lines_that_fit(rows: list[str]) -> tuple[str, int]:
    """As many rows as fit into a result, and their number."""
    size = 0
    for count, row in enumerate(rows):
        size += len(row) + 1
        if size > ROOM:
            return _joined(rows[:count]), count
    return _joined(rows), len(rows)


def _joined(rows: list[str]) -> str:
    return "".join(row + "\n" for row in rows)


def _sha256(descriptor: int, size: int) -> str | None:
    """The hash of the whole file; `None` if it is too large to be read."""
    if size > SCAN_LIMIT:
        return None
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        digest = hashlib.sha256()
        left = SCAN_LIMIT
        while left > 0 and (piece := stream.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


PACK = Pack(
    tools=(
        file_read,
        file_write,
        file_delete,
        file_rename,
        file_exists,
        file_search,
        file_summary,
        dir_list,
        dir_create,
        dir_tree,
    )
)
