"""The pack `fs`: reads and writes files and folders below the root.

The work is done in threads, because a disk may be slow, except for small cached files. All of it is
bounded.
"""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable
from typing import Literal, TypeVar

import anyio.lowlevel
import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.core.tools import Media
from aish.packs.framework.pack import (
    ADDS,
    CHANGES,
    FILE_CHANGE,
    PATH_CODES,
    READS,
    READS_BELOW,
    REPLACES,
    WRITE_CODES,
    ExpectedHash,
    FilePath,
    Older,
    Pack,
    tool,
)
from aish.packs.pack_error import PackError
from aish.packs.tool_results import NOTE_ROOM, Answer, count_that_fits, room
from aish.packs.workspace.atomic_write import (
    check_unchanged,
    map_write_error,
    read_original,
    rename_new,
    settle,
)
from aish.packs.workspace.confined_path import not_found, writable
from aish.packs.workspace.file_change import in_thread, replace_content, replace_file
from aish.packs.workspace.file_options import FilesOptions
from aish.packs.workspace.file_summary import summary_of
from aish.packs.workspace.file_text import (
    IMAGE_LIMIT,
    SCAN_LIMIT,
    FileContent,
    FileLines,
    content_of,
    image_type,
    plain_text,
    read_lines,
)
from aish.packs.workspace.folder_tree import find_files, folder_tree
from aish.packs.workspace.folder_walk import FolderEntry, FolderWalk, format_name, list_folder
from aish.packs.workspace.languages import FIRST_LINE, language_of
from aish.packs.workspace.text_search import (
    MOST_CONTEXT,
    SearchMatches,
    TextSearch,
    search_literal,
    search_regex,
)
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import check_not_own, folder_locks, lock_files


@tool(REPLACES, result=FILE_CHANGE, codes=WRITE_CODES, older={"write_file": Older()})
async def file_write(
    place: Workspace,
    path: FilePath,
    content: str,
    expect_sha256: ExpectedHash = None,
    *,
    create_folders: bool = True,
) -> Answer:
    """Writes a whole text file, a new one or in the place of the old one.

    The old one's encoding, line ends and mode are kept.

    Args:
        content: The new content of the file.
        create_folders: Whether folders that are missing are made.
    """
    plain_text(content, "content")
    check_not_own(place, path)
    above = "/".join(writable(path, place.folder.deny_names)[:-1])
    folders: tuple[str, ...] = ()
    # With a hash the file has to be there already, and so has its folder.
    if create_folders and above and expect_sha256 is None:
        folders = await in_thread(lambda: place.folder.make_folders(above))
    try:
        async with lock_files(place, path):
            change = await in_thread(lambda: replace_content(place, path, expect_sha256, content))
            return await replace_file(place, change)
    except BaseException:
        place.folder.remove_folders(folders)
        raise


@tool(
    CHANGES,
    result={"path": "string", "deleted": "boolean"},
    codes=(*PATH_CODES, "protected", "unwritable", "changed", "not_empty"),
)
async def file_delete(place: Workspace, path: str, expect_sha256: ExpectedHash = None) -> Answer:
    """Deletes one file or an empty folder. Links are left alone.

    Args:
        path: The file or folder, relative to the root folder.
    """

    def work() -> None:
        with place.folder.place_of(path) as (folder, name), folder_locks([folder], path):
            mode = _kind(folder, name, path)
            is_folder = mode is not None and stat.S_ISDIR(mode) and expect_sha256 is None
            if not is_folder:
                _check_file(folder, name, path, expect_sha256)
            try:
                (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)
            except FileNotFoundError:
                raise not_found(path) from None
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                    message = f"the folder `{path}` is not empty; delete what is in it first"
                    raise PackError("not_empty", message, path=path) from None
                raise map_write_error(error, path) from None
            settle(folder)

    async with lock_files(place, path):
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
    path: FilePath,
    new_path: str,
    expect_sha256: ExpectedHash = None,
    *,
    overwrite: bool = False,
) -> Answer:
    """Renames or moves one file. Folders and links are left alone.

    Args:
        new_path: What it is to be, relative to the root folder; its folder has to be there.
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

    async with lock_files(place, path, new_path):
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
        path: The folder, relative to the root folder.
    """
    check_not_own(place, path)
    folders = await in_thread(lambda: place.folder.make_folders(path))
    line = for_line(path)
    text = f"made the folder `{line}`" if folders else f"the folder `{line}` was there already"
    return Answer(text, {"path": path, "created": list(folders)})


def _check_file(folder: int, name: str, path: str, expected: str | None) -> None:
    """Check that a name is a regular file, and unchanged if a digest is given."""
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
        raise map_write_error(error, path) from None


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
        raise map_write_error(error, new_path) from None
    settle(target)
    settle(folder)


T = TypeVar("T")
DEEPEST_TREE = 16
HEAD = 10
_AT_ONCE = 16 * 1024
"""Bytes of a file that is read without a thread: one of empty lines alone takes 25 ms then."""
MOST_FOUND = 5000
"""Paths that file_find returns at most."""


async def _run_in_thread(work: Callable[[], T]) -> T:
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
    codes=(*PATH_CODES, "binary", "out_of_range", "too_large"),
    older={"read_file": Older(), "read_text_file": Older(), "get_file_slice": Older()},
)
async def file_read(
    place: Workspace, path: FilePath, start_line: int | None = None, end_line: int | None = None
) -> Answer:
    """Reads a text file and returns its content, or an image.

    Args:
        start_line: The first line to return; 1 is the first line of the file.
        end_line: The last line to return.
    """
    first = 1 if start_line is None else start_line
    if first < 1 or (end_line is not None and end_line < first):
        raise PackError("out_of_range", f"lines {first} to {end_line} are not a range")

    def answer(content: FileContent) -> Answer:
        with content.stream:
            if (kind := image_type(content.start)) is not None:
                return _image(path, content, kind)
            described = _file_facts(path, content)
            lines = read_lines(content, path, first, end_line)
        return Answer(lines.text + _how_to_go_on(lines), {**_lines_data(path, lines), **described})

    def work() -> Answer:
        with place.folder.file(path) as descriptor:
            content = content_of(descriptor, path)
        return answer(content)

    # A thread costs more than reading a small file that is in memory.
    whole = place.folder.file_at_once(path, _AT_ONCE)
    if whole is None:
        return await _run_in_thread(work)
    # Many such calls in a row leave room for others, and for their end.
    await anyio.lowlevel.checkpoint()
    return answer(FileContent(io.BytesIO(whole), len(whole), whole))


def _image(path: str, content: FileContent, kind: str) -> Answer:
    if content.whole is None or content.size > IMAGE_LIMIT:
        message = f"`{path}` is an image of {content.size:,} bytes; {IMAGE_LIMIT:,} are the most"
        raise PackError("too_large", message, path=path, limit=IMAGE_LIMIT)
    data: dict[str, JsonValue] = {"path": path, **_file_facts(path, content), "truncated": False}
    text = f"`{for_line(path)}`: {kind}, {content.size:,} bytes"
    return Answer(text, data, (Media(kind, content.whole),))


def _file_facts(path: str, content: FileContent) -> dict[str, JsonValue]:
    """Return the fields of each result of reading a file."""
    first_line = content.start.partition(b"\n")[0][:FIRST_LINE]
    language, _ = language_of(path.rpartition("/")[2], first_line)
    return {"language": language, "sha256": content.sha256}


@tool(READS, result={"path": "string", "exists": "boolean", "kind": "string"}, codes=PATH_CODES)
async def file_exists(place: Workspace, path: str) -> Answer:
    """Tells whether there is a file or a folder of this name.

    Args:
        path: The file or folder, relative to the root folder.
    """
    kind = await _run_in_thread(lambda: place.folder.kind(path))
    text = f"`{for_line(path)}` " + (f"exists; it is a {kind}" if kind else "does not exist")
    return Answer(text, {"path": path, "exists": kind is not None, "kind": kind})


@tool(
    READS_BELOW,
    result={"paths": "array", "count": "integer", "truncated": "boolean"},
    codes=PATH_CODES,
    older={"search_files": Older(rename={"pattern": "glob"})},
)
async def file_find(
    place: Workspace, glob: str, path: str = ".", limit: int = 200, *, ignored: bool = False
) -> Answer:
    """Finds files by a glob over their names, sorted.

    Folders that programs fill, such as `.git` and `node_modules`, are searched only when named, and
    files that `.gitignore` excludes only with `ignored`.

    Args:
        glob: A glob such as `*.py` for names at any depth, or `src/**/*.py` for paths, relative to
            `path` or to the root; `**` is any number of folders.
        path: The folder to search in, relative to the root folder.
        limit: How many paths to return.
        ignored: Whether files are found that `.gitignore` excludes.
    """
    if not glob.strip("/"):
        raise PackError("bad_arguments", "`glob` is empty; `**` finds all files")
    most = min(max(limit, 1), MOST_FOUND)
    walk = FolderWalk(place.folder, ignored=ignored)
    paths = await _run_in_thread(lambda: sorted(find_files(walk, path, glob)))
    text, count = _lines_that_fit([for_line(path) for path in paths[:most]])
    text += f"{len(paths):,} files" if count else "no file matches"
    stopped = walk.incomplete or (f"{count:,} of them are shown" if count < len(paths) else "")
    if stopped:
        text += f"\n[truncated: true, {stopped}; narrow it with path or glob, or raise limit]"
    text += _format_note(walk.unfollowed_note)
    data: dict[str, JsonValue] = {
        "paths": [for_line(path) for path in paths[:count]],
        "count": len(paths),
        "truncated": bool(stopped),
    }
    return Answer(text, data)


@tool(
    READS_BELOW,
    result={"matches": "array", "files": "integer", "skipped": "integer", "truncated": "boolean"},
    rows={"matches": {"path": "string", "line": "integer", "text": "string"}},
    codes=(*PATH_CODES, "too_slow"),
)
async def file_search(  # ruff: ignore[too-many-arguments] - the parameters of the tool
    place: Workspace,
    query: str,
    path: str = ".",
    glob: str | None = None,
    *,
    regex: bool = False,
    ignore_case: bool = False,
    context: int = 0,
    show: Literal["lines", "files", "counts"] = "lines",
    ignored: bool = False,
) -> Answer:
    """Finds lines that contain a text, in one file or in all files below a folder.

    Folders that programs fill, such as `.git` and `node_modules`, are searched only when named, and
    files that `.gitignore` excludes only with `ignored`.

    Args:
        query: The text to find, exactly as it is written.
        path: The file or folder to search in, relative to the root folder.
        glob: Only files whose name matches, such as `*.py` or `src/**/*.md`.
        regex: Whether the query is a Python regular expression.
        ignore_case: Whether upper and lower case are the same.
        context: How many lines before and after each line are shown, at most 10.
        show: Whether lines are shown, only the files that have some, or their number in each file.
        ignored: Whether files are searched that `.gitignore` excludes.
    """
    if not query:
        raise PackError("bad_arguments", "`query` is empty")
    plain_text(query, "query")
    around = min(max(context, 0), MOST_CONTEXT)
    search = TextSearch(query, path, glob, ignore_case, around, show, ignored)
    if regex:
        return _search_answer(await search_regex(place, search), show)
    return _search_answer(await _run_in_thread(lambda: search_literal(place.folder, search)), show)


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
    codes=(*PATH_CODES, "binary", "too_slow", "too_large"),
    older={"get_file_info": Older(), "get_file_summary": Older()},
)
async def file_summary(place: Workspace, path: FilePath) -> Answer:
    """Describes a text file without returning all of it: size, lines, encoding, first lines.

    Of Python and C also classes and functions, of TOML, YAML and JSON keys, of Markdown headings.
    """

    def work() -> tuple[dict[str, JsonValue], FileLines, FileContent]:
        with place.folder.file(path) as descriptor:
            content = content_of(descriptor, path)
            digest = content.sha256 or _sha256(descriptor)
        with content.stream:
            described = _file_facts(path, content)
            lines = read_lines(content, path, 1, HEAD)
        data: dict[str, JsonValue] = {
            "path": path,
            "language": described["language"],
            "bytes": content.size,
            "lines": lines.total,
            "encoding": lines.encoding,
            "sha256": digest,
            "head": lines.text,
        }
        return data, lines, content

    data, lines, content = await _run_in_thread(work)
    rows = [f"{name}: {value}" for name, value in data.items() if name != "head"]
    rows.append("line ends: " + ("CRLF" if "\r\n" in lines.text else "LF"))
    summary = await summary_of(
        place.worker, path, str(data["language"]), content.whole, place.macros
    )
    data["summary"] = summary
    rows += ["summary:", summary] if summary else []
    return Answer("\n".join([*rows, "first lines:", lines.text]), data)


@tool(
    READS_BELOW,
    result={"path": "string", "entries": "array", "truncated": "boolean"},
    rows={"entries": {"name": "string", "path": "string", "kind": "string", "bytes": "integer"}},
    codes=PATH_CODES,
    older={"list_directory": Older()},
)
async def dir_list(place: Workspace, path: str = ".", after: str = "") -> Answer:
    """Lists the files and folders in a folder.

    Args:
        path: The folder, relative to the root folder.
        after: Only names that come after this one, to go on with a long list.
    """
    listing = await _run_in_thread(lambda: list_folder(place.folder, path, after))
    rows = [format_name(entry.name, entry.kind) + _size_note(entry) for entry in listing.entries]
    text, count = _lines_that_fit(rows)
    entries = listing.entries[:count]
    truncated = listing.incomplete or count < len(rows)
    if truncated and entries:
        text += f"[truncated: true; go on with after={for_line(entries[-1].name)}]"
    data: dict[str, JsonValue] = {
        "path": path,
        "entries": [
            {
                "name": for_line(entry.name),
                "path": for_line(entry.path),
                "kind": entry.kind,
                "bytes": entry.size if entry.kind == "file" else None,
            }
            for entry in entries
        ],
        "truncated": truncated,
    }
    return Answer(text or "nothing here", data)


@tool(
    READS_BELOW,
    result={"path": "string", "tree": "string", "entries": "integer", "truncated": "boolean"},
    codes=PATH_CODES,
    older={"directory_tree": Older(), "get_tree": Older(rename={"max_depth": "depth"})},
)
async def dir_tree(
    place: Workspace, path: str = ".", depth: int = 3, *, ignored: bool = False
) -> Answer:
    """Shows the files and folders below a folder as an indented tree.

    Upper levels are complete before lower ones are shown, with 100 entries of each folder. What
    `.gitignore` excludes is left out.

    Args:
        path: The folder to begin with, relative to the root folder.
        depth: How many levels to show.
        ignored: Whether files and folders are shown that `.gitignore` excludes.
    """
    levels = min(max(depth, 1), DEEPEST_TREE)
    walk = FolderWalk(place.folder, ignored=ignored)
    tree = await _run_in_thread(lambda: folder_tree(walk, path, levels, max(room() - NOTE_ROOM, 0)))
    text = tree.text
    if tree.truncated:
        text += (
            "[truncated: true; call dir_tree with one of these folders as path or a smaller depth, "
            "or dir_list for all entries of one]"
        )
    text += _format_note(walk.unfollowed_note)
    data: dict[str, JsonValue] = {
        "path": path,
        "tree": tree.text,
        "entries": tree.entries,
        "truncated": tree.truncated,
    }
    return Answer(text or "nothing here", data)


def _lines_data(path: str, lines: FileLines) -> dict[str, JsonValue]:
    return {
        "path": path,
        "content": lines.text,
        "start_line": lines.first,
        "end_line": lines.last,
        "total_lines": lines.total,
        "encoding": lines.encoding,
        "truncated": lines.cut,
    }


def _how_to_go_on(lines: FileLines) -> str:
    """Return the note below cut content that says how to continue."""
    if not lines.cut:
        return ""
    total = f"of {lines.total:,}" if lines.total is not None else "of very many"
    if lines.inside:
        where = f"within line {lines.last:,} {total}, which is too long to be returned whole"
        return f"\n[truncated: true, {where}; go on with start_line={lines.last + 1}]"
    where = f"after line {lines.last:,} {total}"
    return f"[truncated: true, {where}; go on with start_line={lines.last + 1}]"


def _search_answer(result: SearchMatches, show: str) -> Answer:
    text, count = _lines_that_fit(result.rows)
    matches = [match for match in result.matches if match.row < count]
    stopped = result.stopped or ("because the result is long" if count < len(result.rows) else "")
    skipped = f", {result.skipped} skipped (not text, or too large)" if result.skipped else ""
    what = "line" if show == "lines" else "matching file"
    within = "in" if show == "lines" else "of"
    searched = counted(result.files, "file")
    text += f"{counted(len(matches), what)} {within} {searched} searched{skipped}"
    if stopped:
        text += (
            f"\n[truncated: true, stopped {stopped}; narrow it with path, glob or a longer query]"
        )
    text += _format_note(result.unfollowed)
    data: dict[str, JsonValue] = {
        "matches": [
            {"path": match.path, "line": match.line, "text": match.text} for match in matches
        ],
        "files": result.files,
        "skipped": result.skipped,
        "truncated": bool(stopped),
    }
    return Answer(text, data)


def _format_note(note: str) -> str:
    return f"\n[{note}]" if note else ""


def _size_note(entry: FolderEntry) -> str:
    return f" ({entry.size:,} bytes)" if entry.kind == "file" else ""


def _lines_that_fit(rows: list[str]) -> tuple[str, int]:
    """Return the rows that fit into a result, and their number."""
    count = count_that_fits(rows)
    return "".join(f"{row}\n" for row in rows[:count]), count


def _sha256(descriptor: int) -> str:
    """Return the hash of a file that is too large to be kept in memory."""
    digest = hashlib.sha256()
    place = 0
    while place <= SCAN_LIMIT and (piece := os.pread(descriptor, 1 << 20, place)):
        digest.update(piece)
        place += len(piece)
    return digest.hexdigest()


PACK = Pack(
    tools=(
        file_read,
        file_write,
        file_delete,
        file_rename,
        file_exists,
        file_find,
        file_search,
        file_summary,
        dir_list,
        dir_create,
        dir_tree,
    ),
    reads="files",
    options=FilesOptions,
)
