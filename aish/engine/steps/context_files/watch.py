"""The files of one conversation on disk: read once, then read again only if they changed.

The status of a file is compared first: device, inode, size and times. The content is read if they
differ, or if the file was so new when it was last read that an equal status proves nothing. A file
has changed only if its hash has. Every file is opened by
`packs.workspace.confined_path`. All of this blocks, and is called in a thread.
"""

import os
import os.path
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from aish.config.model import ContextFile
from aish.core.errors import StepFailedError, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.phrases import first_of
from aish.core.text import for_line
from aish.packs.pack_error import PackError
from aish.packs.workspace.confined_path import Folder, Where, resolve_root, segments_of
from aish.packs.workspace.file_text import decode_text
from aish.packs.workspace.folder_walk import LEFT_SHUT, FolderEntry, NameBudget, list_folder
from aish.system.globs import FolderGlob, segments_of_glob

Segments = tuple[str, ...]
Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of content and status in ns: equal while nothing changes."""

YOUNG = 2_000_000_000
"""Nanoseconds for which a stamp proves nothing: the clocks of file systems are coarse."""


def stamp_at(folder: Folder, path: str) -> Stamp | None:
    """The stamp of a file or folder; `None` if there is none, or it is out of reach."""
    try:
        return _stamp_of(folder.status(path))
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_settled(stamp: Stamp | None, now: int) -> bool:
    """True if an equal stamp proves that nothing has changed since `now`, in ns."""
    return stamp is None or now - max(stamp[3:]) >= YOUNG


@slotted
class _Visited:
    """A folder as it was when it was listed."""

    path: str
    stamp: Stamp | None
    settled: bool


class GlobListing:
    """The files below `folder` that match a pattern, listed again after a folder was changed.

    `*` and `?` stop at slashes, `**` stands for any folders. Names that begin with a dot are found
    only where the pattern says so, folders that programs fill (`node_modules`) only where it names
    them, and links never: a file behind one is named.
    """

    def __init__(self, folder: Folder, pattern: str, now: Callable[[], int] = time.time_ns) -> None:
        self.pattern = pattern
        self._folder = folder
        self._now = now
        self._glob = FolderGlob(segments_of_glob(pattern))
        self._visited: list[_Visited] = []
        self._found: tuple[Segments, ...] = ()
        self.incomplete = False
        """True if there are more names than are looked at."""

    def files(self) -> tuple[Segments, ...]:
        if not self._visited or not self._is_same():
            self._visited, self.incomplete = [], False
            budget = NameBudget()
            paths = set(self._below((), self._glob.start(), budget))
            self.incomplete = budget.spent
            self._found = tuple(sorted(paths))
        return self._found

    def matches(self, path: str) -> bool:
        """True if a file with this path would be found, if no folder is left out."""
        states = self._glob.start()
        for name in path.split("/"):
            states = self._glob.enter(states, name)
        return self._glob.is_end(states)

    def _is_same(self) -> bool:
        return all(
            one.settled and stamp_at(self._folder, one.path) == one.stamp for one in self._visited
        )

    def _below(self, above: Segments, states: set[int], budget: NameBudget) -> list[Segments]:
        paths: list[Segments] = []
        for entry in self._entries(above, budget):
            if budget.left <= 0:
                budget.spent = True
                break
            budget.left -= 1
            after = self._glob.enter(states, entry.name)
            if not after:
                continue
            if entry.kind == "file" and self._glob.is_end(after):
                paths.append(entry.segments)
            elif entry.kind == "folder" and self._enters(entry.name, states):
                paths += self._below(entry.segments, after, budget)
        return paths

    def _entries(self, above: Segments, budget: NameBudget) -> tuple[FolderEntry, ...]:
        """The entries of a folder; its stamp is taken before, so that no change is missed."""
        path = "/".join(above) or "."
        stamp = stamp_at(self._folder, path)
        self._visited.append(_Visited(path, stamp, is_settled(stamp, self._now())))
        try:
            listing = list_folder(self._folder, above)
        except PackError:
            # Gone meanwhile, or not readable: nothing in it can be shown.
            return ()
        budget.spent = budget.spent or listing.incomplete
        return listing.entries

    def _enters(self, name: str, states: set[int]) -> bool:
        return self._glob.names(states, name) or name not in LEFT_SHUT


MOST_FILES = 256
MOST_BYTES = 1024 * 1024
"""Bytes of text that are put before a prompt."""
MOST_COMPARED = 16 * 1024 * 1024
"""Bytes of changed files that are held at once; of further ones only the names are known."""
LARGEST = 8 * 1024 * 1024
"""Bytes of a file of which a part is shown; the content of a larger one is not compared."""
_PIECE = 1 << 20
_SHOWN = 5


@frozen
class WatchedContent:
    """The content of a file: `text` is `None` if none can be shown, and `why` says why.

    `data` is what it was decoded from, for what reads code. `left_out`: it was listed, and cannot
    be opened.
    """

    text: str | None
    size: int
    why: str = ""
    data: bytes = b""
    left_out: bool = False


GONE = WatchedContent(None, 0, "deleted")
NOT_TEXT = "it is not text"


@slotted
class WatchedFile:
    """A file. `label` is its path as shown; `settled` says that its stamp proves something."""

    folder: Folder
    path: str
    where: Where
    label: str
    stamp: Stamp | None = None
    settled: bool = False
    digest: bytes = b""
    there: bool = True


@frozen
class WatchedPart:
    """The part of a file that is shown: all of it, or what its entry says."""

    source: WatchedFile
    entry: ContextFile

    @property
    def is_whole(self) -> bool:
        return self.entry.lines is None and self.entry.name is None and not self.entry.skeleton

    @property
    def label(self) -> str:
        """Its name, unique in the conversation."""
        entry, name = self.entry, self.source.label
        if entry.lines is not None:
            first, last = entry.lines
            return f"{name} line {first}" if first == last else f"{name} lines {first}-{last}"
        if entry.name is not None:
            return f"{name} {entry.name}"
        return f"{name} (skeleton)" if entry.skeleton else name


class Watch:
    """The files that the entries of a step name or match; `base` is where their labels begin."""

    def __init__(
        self,
        entries: Sequence[ContextFile],
        base: Path,
        now: Callable[[], int] = time.time_ns,
        *,
        allow_broad_root: bool = False,
    ) -> None:
        """Open the folders of the entries; `now` is the time in ns.

        Raises:
            StepFailedError: one cannot be opened.
        """
        self._above = {entry.folder: os.path.relpath(entry.folder, base) for entry in entries}
        """The path of each folder from the pipeline's: an extended file may have its own."""
        self._now = now
        self._broad = allow_broad_root
        self._folders: dict[Path, Folder] = {}
        self._globs: dict[int, GlobListing] = {}
        self._sources: dict[tuple[int, str], WatchedFile] = {}
        self._parts: dict[str, WatchedPart] = {}
        self._followed: dict[int, tuple[Segments, ...]] = {}
        """The matches of each glob of which every file is followed."""
        self._left_out: dict[str, int] = {}
        self._told_left_out: dict[str, int] = {}
        self.entries = tuple(entries)
        try:
            for index, entry in enumerate(self.entries):
                folder = self._folder(entry)
                if entry.is_glob:
                    self._globs[index] = GlobListing(folder, entry.path, now)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for folder in self._folders.values():
            folder.close()

    def begin(self) -> list[tuple[WatchedPart, WatchedContent]]:
        """Every part, with the content of its file.

        Raises:
            StepFailedError: a named file cannot be read, or there are too many or too large ones.
        """
        for part in self._list():
            self._parts.setdefault(part.label, part)
        count = len(self._sources)
        if count > MOST_FILES:
            raise self._too_many(count)
        contents: dict[int, WatchedContent] = {}
        pairs: list[tuple[WatchedPart, WatchedContent]] = []
        sizes: list[tuple[str, int]] = []
        left = MOST_BYTES
        for label, part in list(self._parts.items()):
            source = part.source
            content = contents.get(id(source)) or self._first_content(part)
            if content is None:
                del self._parts[label]
                continue
            contents[id(source)] = content
            if content.text is None and not part.entry.is_glob:
                raise StepFailedError(f"`{source.label}` of `context.files`: {content.why}")
            if part.is_whole and content.text is not None:
                size = len(content.text.encode("utf-8", "surrogatepass"))
                sizes.append((label, size))
                left -= size
                if left < 0:
                    # It is going to be refused: only the sizes are wanted.
                    content = contents[id(source)] = WatchedContent("", size)
            pairs.append((part, content))
        check_size(sizes)
        self._sources = {key: one for key, one in self._sources.items() if id(one) in contents}
        return pairs

    def _first_content(self, part: WatchedPart) -> WatchedContent | None:
        """The content of a file; `None` for one that was deleted since it was listed.

        Raises:
            StepFailedError: it is named, and cannot be read.
        """
        try:
            return _read(part.source, self._now())
        except PackError as error:
            if not part.entry.is_glob:
                raise _unreadable(part.source, error) from error
            if error.code == "not_found":
                return None
            # Such as a link that has taken its place since.
            return WatchedContent(None, 0, f"left out: {error.message}", left_out=True)

    def check(self) -> list[tuple[WatchedPart, WatchedContent]]:
        """The parts of files that were added, changed or deleted since the last look."""
        new = self._new_parts()
        changed: dict[int, WatchedContent] = {}
        left = MOST_COMPARED
        now = self._now()
        for source in self._sources.values():
            content = _look(source, now)
            if content is not None:
                left -= content.size
                changed[id(source)] = content if left >= 0 else _size_only(content)
        pairs = [
            (part, changed[id(part.source)])
            for part in self._parts.values()
            if id(part.source) in changed
        ]
        for part in new:
            with suppress(PackError):
                # Deleted again, or not readable: nothing is known of it yet.
                content = _read(part.source, now)
                self._keep(part)
                left -= content.size
                pairs.append((part, content if left >= 0 else _size_only(content)))
        return pairs

    def would_show(self, label: str) -> bool:
        """True if a glob would show a whole file of this name, if there were one."""
        for index, listing in self._globs.items():
            above = self._above[self.entries[index].folder]
            path = label if above == "." else os.path.relpath(label, above)
            if listing.matches(path):
                return True
        return False

    def newly_left_out(self) -> Iterator[tuple[str, int]]:
        """Globs that match more files than are followed, and how many; each number once."""
        for pattern, count in self._left_out.items():
            if self._told_left_out.get(pattern) != count:
                self._told_left_out[pattern] = count
                yield pattern, count

    def _folder(self, entry: ContextFile) -> Folder:
        place = entry.folder
        if place not in self._folders:
            try:
                self._folders[place] = Folder(resolve_root(place, allow_broad_root=self._broad))
            except UsageError as error:
                message = f"`context.files`: {error.message}"
                raise StepFailedError(message, hint=error.hint) from error
            except OSError as error:
                message = f"the folder of `context.files` cannot be opened: {error.strerror}"
                raise StepFailedError(message, where=str(place)) from error
        return self._folders[place]

    def _list(self) -> Iterator[WatchedPart]:
        for index, entry in enumerate(self.entries):
            if entry.is_glob:
                listing = self._globs[index]
                for segments in listing.files():
                    yield WatchedPart(self._source(entry, "/".join(segments), segments), entry)
                if listing.incomplete:
                    message = f"there are too many names to look through for `{entry.path}`"
                    hint = "name a smaller folder in `context.files`"
                    raise StepFailedError(message, hint=hint)
            else:
                try:
                    path = "/".join(segments_of(entry.path))
                except PackError as error:
                    raise StepFailedError(f"`context.files`: {error.message}") from error
                yield WatchedPart(self._source(entry, path, path), entry)

    def _source(self, entry: ContextFile, path: str, where: Where) -> WatchedFile:
        """The file at this path; each is one, however many entries it has."""
        folder = self._folder(entry)
        key = id(folder), path
        if key not in self._sources:
            self._sources[key] = WatchedFile(folder, path, where, self._label(entry, path))
        return self._sources[key]

    def _label(self, entry: ContextFile, path: str) -> str:
        """The path of a file as seen from the folder of the pipeline."""
        return os.path.normpath(os.path.join(self._above[entry.folder], path))  # ruff: ignore[os-path-join] - a label, and `Path` keeps `..`

    def _new_parts(self) -> list[WatchedPart]:
        """Files that a glob matches now; as many as may be followed."""
        parts: list[WatchedPart] = []
        for index, listing in self._globs.items():
            files = listing.files()
            if files is self._followed.get(index):
                continue
            entry, more, before = self.entries[index], 0, len(parts)
            folder = self._folder(entry)
            for segments in files:
                key = id(folder), "/".join(segments)
                if key in self._sources:
                    continue
                if len(self._sources) + len(parts) >= MOST_FILES:
                    more += 1
                    continue
                label = self._label(entry, key[1])
                part = WatchedPart(WatchedFile(folder, key[1], segments, label), entry)
                if all(part.label != other.label for other in parts):
                    parts.append(part)
            self._left_out.pop(entry.path, None)
            if more:
                self._left_out[entry.path] = more
            elif len(parts) == before:
                self._followed[index] = files
        return parts

    def _keep(self, part: WatchedPart) -> None:
        self._sources[id(part.source.folder), part.source.path] = part.source
        self._parts[part.label] = part

    def _too_many(self, count: int) -> StepFailedError:
        matched = [
            f"`{listing.pattern}` matches {len(listing.files())}"
            for listing in self._globs.values()
        ]
        message = f"`context.files` has {count:,} files, and {MOST_FILES} is the most"
        return StepFailedError(
            f"{message}: {first_of(matched, _SHOWN)}" if matched else message,
            hint="name fewer files, or a smaller folder",
        )


def check_size(shown: Sequence[tuple[str, int]]) -> None:
    """Refuse more text than may be put before a prompt; `shown` are names and sizes.

    Raises:
        StepFailedError: names the largest.
    """
    total = sum(size for _, size in shown)
    if total > MOST_BYTES:
        largest = sorted(shown, key=lambda row: -row[1])
        named = [f"`{for_line(name)}` with {size:,}" for name, size in largest]
        raise StepFailedError(
            f"`context.files` has {total:,} bytes of text, and {MOST_BYTES:,} is the most:"
            f" {first_of(named, _SHOWN)}",
            hint="name fewer files, or parts of them by `lines`",
        )


def _size_only(content: WatchedContent) -> WatchedContent:
    """A content of which only the size is known, unless there is none."""
    return content if content.text is None else WatchedContent(None, content.size, "read it again")


def _look(source: WatchedFile, now: int) -> WatchedContent | None:
    stamp = stamp_at(source.folder, source.path)
    if stamp == source.stamp and source.settled:
        return None
    before, was_there = source.digest, source.there
    try:
        content = _read(source, now)
    except PackError:
        # Deleted, denied or unreadable: all look the same.
        source.stamp, source.settled = stamp, is_settled(stamp, now)
        source.digest, source.there = b"", False
        return GONE if was_there else None
    return None if was_there and source.digest == before else content


def _read(source: WatchedFile, now: int) -> WatchedContent:
    """The content, and what is to be known of it at the next look.

    Raises:
        PackError: it cannot be opened.
    """
    with source.folder.file(source.where) as descriptor:
        status = os.fstat(descriptor)
        stamp = _stamp_of(status)
        data = _content(descriptor, status.st_size)
    source.stamp, source.settled, source.there = stamp, is_settled(stamp, now), True
    if data is None:
        # Never hashed as a whole: its stamp stands for its content.
        source.digest = repr(stamp).encode()
        return WatchedContent(None, status.st_size, f"it has more than {LARGEST:,} bytes")
    source.digest = sha256(data).digest()
    try:
        text, _ = decode_text(data, source.path)
    except PackError:
        return WatchedContent(None, len(data), NOT_TEXT)
    return WatchedContent(text, len(data), data=data)


def _content(descriptor: int, size: int) -> bytes | None:
    """The whole file, which may grow while it is read; `None` if it is too large."""
    pieces: list[bytes] = []
    total = 0
    while size <= LARGEST and total <= LARGEST and (piece := os.read(descriptor, _PIECE)):
        pieces.append(piece)
        total += len(piece)
    return None if max(size, total) > LARGEST else b"".join(pieces)


def _unreadable(source: WatchedFile, error: PackError) -> StepFailedError:
    name = for_line(source.label)
    if error.code == "not_found":
        message = f"there is no file `{name}` of `context.files`, or it may not be shown"
    else:
        message = f"`context.files`: {error.message}"
    return StepFailedError(message, hint="a glob such as `docs/*.md` may also match no file")
