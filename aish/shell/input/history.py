"""History of typed lines: a private file of limited size, one JSON string per line."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import History

from aish.core.errors import AishError
from aish.shell.url_keys import without_keys
from aish.system.files import atomic_write, open_append, open_own, private_folder

# The file is cut to half of this size when it exceeds it.
LONGEST_FILE = 1 << 20
LONGEST_ENTRY = 1 << 16


class HistoryFile:
    """Lines on disk, masked and without keys in URLs.

    An error is reported once, and then the file is no longer used.
    """

    def __init__(
        self, path: Path | None, mask: Callable[[str], str], notice: Callable[[str], None]
    ) -> None:
        self._path = path
        self._mask = mask
        self._notice = notice

    def read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            data = _content(self._path)
        except (OSError, AishError) as error:
            self._report_loss(error)
            return []
        return [text for line in data.splitlines() if (text := _text(line)) is not None]

    def add(self, text: str) -> None:
        if self._path is None:
            return
        line = json.dumps(without_keys(self._mask(text))).encode() + b"\n"
        if len(line) > LONGEST_ENTRY:
            return
        try:
            _append(self._path, line)
        except (OSError, AishError) as error:
            self._report_loss(error)

    def _report_loss(self, error: OSError | AishError) -> None:
        why = error.strerror if isinstance(error, OSError) else str(error)
        path, self._path = self._path, None
        self._notice(f"lines are not stored in `{path}`: {why}")


class Remembered(History):
    """The history of the editor; lines that begin with a space are never kept."""

    def __init__(self, file: HistoryFile) -> None:
        super().__init__()
        self.listening = True
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._file.read())

    def append_string(self, string: str) -> None:
        if self.listening and string.strip() and not string.startswith(" "):
            if self._loaded_strings[:1] == [string]:
                return
            super().append_string(string)

    def store_string(self, string: str) -> None:
        self._file.add(string)


def _append(path: Path, line: bytes) -> None:
    if not path.parent.exists():
        private_folder(path.parent)
    descriptor = open_append(path)
    try:
        # One call, so that two concurrent sessions do not mix their lines.
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    """The content of the file; if it has grown too long, it is cut to its end."""
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        if size <= LONGEST_FILE:
            return _read(descriptor)
        os.lseek(descriptor, size - LONGEST_FILE // 2, os.SEEK_SET)
        content = _read(descriptor).partition(b"\n")[2]
    finally:
        os.close(descriptor)
    atomic_write(path, content)
    return content


def _read(descriptor: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, LONGEST_FILE), b""))


def _text(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
