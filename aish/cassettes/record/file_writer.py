"""Writes a cassette next to its target, and renames it to the target at the end.

The input is already redacted; until all of it is checked, only the current user can read the file.
Nothing is written, and no YAML imported, before the first
interaction is complete: the first byte of a response is not delayed. The temporary file is locked
from the start: a second recording of the same cassette is refused, and one that was killed does not
block.
"""

import fcntl
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aish.cassettes.format.file import UNFINISHED, partial, require_cassette, show_path
from aish.cassettes.format.interaction import (
    LARGEST,
    CassetteFileError,
    Interaction,
    RecordingMetadata,
)
from aish.system.files import file_mode

if TYPE_CHECKING:
    from aish.cassettes.format.parts import Parts

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PRIVATE_FILE = 0o600


class Recording:
    """A cassette while it is recorded; left without `finish`, it stays as `.partial`."""

    def __init__(self, path: Path, head: RecordingMetadata, *, most: int = LARGEST) -> None:
        """Reserve the file next to `path`.

        Raises:
            CassetteFileError: the folder cannot be written to, another run records this one, or
                what stands there is something else.
        """
        self._path = path
        self._most = most
        self._head = replace(head, complete=False)
        self._is_empty = True
        self._size = 0
        self._by_alias = 0
        self._parts: Parts | None = None
        self._written: dict[int, tuple[Interaction, str | None, slice]] = {}
        with _raise_file_errors(path):
            require_place(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _open_and_lock(path)
            os.ftruncate(self._descriptor, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, interaction: Interaction) -> None:
        """Store an interaction in case the run does not end well.

        Raises:
            CassetteFileError: it cannot be written, such as on a full disk.
        """
        from aish.cassettes.format.layout import entry, head_text
        from aish.cassettes.format.parts import Parts

        if self._is_empty:
            self._is_empty = False
            self._write(head_text(self._head).encode())
        self._parts = self._parts or Parts()
        in_parts = self._parts.lay_out(interaction.request.body)
        self._by_alias = self._parts.by_alias
        began = self._size
        self._write(entry(interaction, in_parts).encode())
        self._written[id(interaction)] = interaction, in_parts, slice(began, self._size)

    def finish(
        self,
        head: RecordingMetadata,
        interactions: Iterable[Interaction],
        place: Path | None = None,
    ) -> None:
        """Write everything anew, in the given order, and rename it to its target, or another path.

        Raises:
            CassetteFileError: it cannot be written; what stood in its place is as it was.
        """
        from aish.cassettes.format.layout import END, NOTHING, head_text
        from aish.cassettes.format.parts import Parts

        self._is_empty = False
        parts = Parts()
        with _raise_file_errors(self._path):
            entries = [
                self._read_back(one, parts.lay_out(one.request.body)) for one in interactions
            ]
            beginning = head_text(replace(head, complete=True))
            pieces = (beginning.encode(), *(entries or [NOTHING.encode()]), END.encode())
            self._by_alias = parts.by_alias
            # Before the existing file is replaced.
            self._require_room(sum(map(len, pieces)))
            self._size = 0
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        for data in pieces:
            self._write(data)
        with _raise_file_errors(self._path):
            os.fchmod(self._descriptor, file_mode(place or self._path))
            os.fsync(self._descriptor)
            partial(self._path).replace(place or self._path)
        self.close()

    def discard(self) -> None:
        """Remove what was written: nothing is left next to the cassette."""
        self._is_empty = True
        self.close()

    def close(self) -> None:
        """Close the file; an empty one is removed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self._is_empty:
            with suppress(OSError):
                partial(self._path).unlink()
        os.close(descriptor)

    def _read_back(self, interaction: Interaction, in_parts: str | None) -> bytes:
        """Read an interaction back as it was formatted when appended; formatting is slow."""
        from aish.cassettes.format.layout import entry

        known, was, there = self._written.get(id(interaction), (None, None, slice(0)))
        # In another order, other parts come first.
        if known is interaction and was == in_parts:
            data = os.pread(self._descriptor, there.stop - there.start, there.start)
            if len(data) == there.stop - there.start:
                return data
        return entry(interaction, in_parts).encode()

    def _require_room(self, size: int) -> None:
        if size + self._by_alias > self._most:
            raise CassetteFileError(
                f"`{show_path(self._path)}` would be larger than {self._most >> 20} MB",
                hint="each request contains the whole conversation: a lower `result_limit` helps",
            )

    def _write(self, data: bytes) -> None:
        self._require_room(self._size + len(data))
        with _raise_file_errors(self._path):
            rest = memoryview(data)
            while rest:
                written = os.write(self._descriptor, rest)
                self._size += written
                rest = rest[written:]


def require_place(path: Path) -> None:
    """Check that the target may be replaced: a typing error must not overwrite even a device.

    Raises:
        CassetteFileError: the existing file is not a cassette, or the name is that of a recording.
    """
    if path.suffix == UNFINISHED:
        raise CassetteFileError(
            f"`{show_path(path)}` is the name of an unfinished recording",
            hint=f"name the cassette itself: `{show_path(path.with_suffix(''))}`",
        )
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(mode):
        raise CassetteFileError(f"`{show_path(path)}` is a folder, not a cassette")
    if not stat.S_ISREG(mode):
        raise CassetteFileError(
            f"`{show_path(path)}` is not a regular file, and a cassette has to be one"
        )
    require_cassette(path)


def _open_and_lock(path: Path) -> int:
    beside = partial(path)
    while True:
        descriptor = os.open(beside, _FLAGS, _PRIVATE_FILE)
        try:
            _refuse_planted(os.fstat(descriptor), beside)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other recording may have ended, and renamed the file, a moment ago.
            if beside.exists() and os.path.samestat(os.fstat(descriptor), beside.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise CassetteFileError(
                f"`{show_path(path)}` is being recorded by another run"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _refuse_planted(status: os.stat_result, beside: Path) -> None:
    """Refuse all but a regular file of this user without other hard links."""
    is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink <= 1
    if not is_plain or status.st_uid != os.geteuid():
        raise CassetteFileError(f"`{show_path(beside)}` is not a regular file of this user")


@contextmanager
def _raise_file_errors(path: Path) -> Generator[None]:
    """The error of the operating system, as text."""
    try:
        yield
    except OSError as error:
        message = f"the cassette `{show_path(path)}` cannot be written: {error.strerror}"
        raise CassetteFileError(message) from None
