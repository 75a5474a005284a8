"""The Python files below a folder, read within limits, and what the child says of them.

Files are opened here and nowhere else: the child gets bytes.
"""

import codecs
import os
import time
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

import anyio
import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.phrases import backticked
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import LARGEST_SOURCE
from aish.packs.py.source_code import encoding_of
from aish.packs.tool_results import room
from aish.packs.workspace.confined_path import Folder, Where, path_text
from aish.packs.workspace.folder_walk import FolderWalk
from aish.packs.workspace.languages import FIRST_LINE, language_of
from aish.packs.workspace.workspace import Workspace

MOST_FILES = 5_000
MOST_BYTES = 64 * 1024 * 1024
SECONDS = 10.0
SUFFIXES = (".py", ".pyi", ".pyw")
_BATCH = 4 * 1024 * 1024
_NOTE = 300
"""Bytes for what is said about a result that was cut."""

SearchPath = Annotated[
    str,
    "the file or folder to look in, from the root folder; what `.gitignore` files exclude "
    "is left out",
]


@frozen
class PythonFile:
    path: str
    data: bytes


@slotted
class PythonFiles:
    """Files in order; `stopped` says why there are not all of them.

    `unfollowed` is about patterns of `.gitignore` files.
    """

    files: list[PythonFile] = field(default_factory=list)
    skipped: int = 0
    stopped: str = ""
    unfollowed: str = ""

    @property
    def note(self) -> str:
        """The note of a result that lacks some files."""
        parts = [f"stopped {self.stopped}"] if self.stopped else []
        parts += [f"{self.skipped} files left out (too large or no text)"] if self.skipped else []
        parts += [self.unfollowed] if self.unfollowed else []
        return "; ".join(parts)

    def last_line(self, hint: str, *, truncated: bool) -> list[str]:
        """The note and a hint as the last line of a result; none without either."""
        text = "; ".join(filter(None, (self.note, hint)))
        return [f"[{'truncated: true; ' if truncated else ''}{text}]"] if text else []

    def with_note(self, message: str) -> str:
        """A message that something is not there, where not every file was read."""
        return f"{message} ({self.note})" if self.note else message


def count_lines_that_fit(lines: Sequence[str]) -> int:
    """Count the lines that a result has room for, beside a note of ours."""
    left = room() - _NOTE
    for count, line in enumerate(lines):
        left -= len(line.encode("utf-8", "replace")) + 1
        if left < 0:
            return count
    return len(lines)


async def read_python_files(place: Workspace, path: str, seconds: float = SECONDS) -> PythonFiles:
    """The file at a path, or the Python files below it."""
    return await anyio.to_thread.run_sync(
        _read_all, place.folder, path, seconds, abandon_on_cancel=True
    )


def _read_all(  # ruff: ignore[complex-structure] - one list of limits
    folder: Folder, path: str, seconds: float
) -> PythonFiles:
    began = time.monotonic()
    files = PythonFiles()
    if folder.kind(path) != "folder":
        data = _read(folder, path)
        if data is None:
            message = f"`{path}` is larger than {LARGEST_SOURCE:,} bytes"
            raise PackError("too_large", message, path=path, limit=LARGEST_SOURCE)
        check_is_python(path, data)
        if b"\0" in data:
            message = f"`{path}` is not Python code: it has NUL characters in it"
            raise PackError("unsupported", message, path=path)
        return PythonFiles([PythonFile(path_text(path), data)])
    size = 0
    walk = FolderWalk(folder, ignored=False)
    for segments in walk.files(path):
        if not segments[-1].endswith(SUFFIXES):
            continue
        if len(files.files) >= MOST_FILES:
            files.stopped = f"after {MOST_FILES:,} files"
        elif size > MOST_BYTES:
            files.stopped = f"after {size:,} bytes"
        elif time.monotonic() - began > seconds:
            files.stopped = f"after {seconds:.0f} seconds"
        if files.stopped:
            return files
        try:
            data = _read(folder, segments)
        except PackError:
            # Removed meanwhile, or not readable.
            data = None
        if data is None or b"\0" in data:
            files.skipped += 1
            continue
        size += len(data)
        files.files.append(PythonFile(path_text(segments), data))
    files.stopped, files.unfollowed = walk.incomplete, walk.unfollowed_note
    return files


def check_is_python(path: str, data: bytes) -> None:
    """Check that a file is Python code, by its name or its `#!` line."""
    if path.endswith(SUFFIXES) or language_of("", data[:FIRST_LINE])[0] == "python":
        return
    message = (
        f"`{path}` is not a Python file: its name ends with none of {backticked(SUFFIXES)}, and no "
        "`#!` line names Python"
    )
    raise PackError("unsupported", message, path=path)


def _read(folder: Folder, where: Where) -> bytes | None:
    """The bytes of a file; `None` if there are more than are parsed."""
    with folder.file(where) as descriptor:
        if os.fstat(descriptor).st_size > LARGEST_SOURCE:
            return None
        pieces: list[bytes] = []
        left = LARGEST_SOURCE + 1
        while left > 0 and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
    if left <= 0:
        return None
    data = b"".join(pieces)
    mark, encoding = encoding_of(data)
    if mark and encoding != "utf-8":
        # So that a name can be looked for in the bytes.
        data = codecs.BOM_UTF8 + data[len(mark) :].decode(encoding, "replace").encode()
    return data


async def ask_child(
    place: Workspace,
    call: str,
    found: PythonFiles,
    files: Sequence[PythonFile],
    deadline: float,
    **options: Any,
) -> list[tuple[PythonFile, Any]]:
    """Call a function in the child for these files, in batches.

    A file that is too much for the child is left out, and so are those after `deadline`; `found`
    says so.

    Raises:
        PackError: there is no other file, or the child raised it.
    """
    results: list[tuple[PythonFile, Any]] = []
    waiting = batches(files)[::-1]
    while waiting:
        left = deadline - anyio.current_time()
        if left <= 0:
            found.stopped = found.stopped or f"after {SECONDS:.0f} seconds"
            break
        batch = waiting.pop()
        data = [file.data for file in batch]
        try:
            rows = await place.worker.run(call, *data, seconds=left, **options)
        except PackError as error:
            if error.code != "too_slow" or len(found.files) == 1:
                raise
            # Which of them it was is found out by halves.
            half = len(batch) // 2
            found.skipped += not half
            waiting += [batch[half:], batch[:half]] if half else []
        else:
            results.extend(zip(batch, rows, strict=True))
    return results


def batches(files: Sequence[PythonFile]) -> list[list[PythonFile]]:
    """The files in groups of a few megabytes."""
    groups: list[list[PythonFile]] = []
    size = 0
    for file in files:
        if not groups or size + len(file.data) > _BATCH:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += len(file.data)
    return groups
