"""Takes documents into a collection: one transaction, after which it is as the files are.

Files are opened beneath the root's descriptor, never through a link, and read once.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from itertools import islice

import anyio
import anyio.to_thread

from aish.core.frozen import frozen, slotted
from aish.core.phrases import counted
from aish.core.text import for_line, safe_utf8
from aish.packs.pack_error import PackError
from aish.packs.rag.chunks import TextChunk, chunks_of
from aish.packs.rag.collection_store import (
    CollectionSource,
    CollectionStore,
    UnreadableCollectionError,
    Writer,
    open_writer_lock,
)
from aish.packs.rag.embeddings import BATCH, NO_MODEL, Embedder
from aish.packs.workspace.confined_path import Folder, segments_of
from aish.packs.workspace.file_text import utf8_content
from aish.packs.workspace.folder_walk import FolderWalk, Segments
from aish.packs.workspace.languages import FIRST_LINE, language_of
from aish.system.file_lock import writer

MOST_FILES = 10_000
LARGEST_FILE = 2 * 1024 * 1024
MOST_CHUNKS = 100_000
MOST_NAMES = 200_000
"""Files that are looked at, those that are not text among them."""
MOST_SKIPPED = 100
"""Rows of `skipped`."""
LOCK_SECONDS = 20.0
EMBED_SECONDS = 60.0
_PAUSE = 0.05
_TRIES = 3
_PUNCTUATION = re.compile(r"[._/>-]+")


@frozen
class SkippedFile:
    path: str
    why: str


@slotted
class Ingested:
    """The result of an ingest; `skipped_count` includes files that are not listed.

    `broken` are the files with bytes that are not UTF-8, which are ingested without these.
    """

    files: int = 0
    chunks: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped_count: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def skip(self, path: str, why: str) -> None:
        """Count a file that is left out, and list the first of them."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append(SkippedFile(path, why))


class _ChangingFileError(Exception):
    """A file is written while it is read."""


@frozen
class _PendingPassage:
    """A passage that is about to be added; its source is added with its first one."""

    path: str
    sha256: str
    category: str
    place: int
    chunk: TextChunk | None
    """`None` for a document without text."""


async def ingest(
    folder: Folder,
    store: CollectionStore,
    path: str,
    collection: str,
    embedder: Embedder | None,
    *,
    recreate: bool,
) -> Ingested:
    """Make a collection of the files at `path`; `embedder` is `None` for one without vectors.

    Raises:
        PackError: nothing has changed then.
    """
    in_thread = anyio.to_thread.run_sync
    walked = await in_thread(_SourceFiles, folder, path)
    with open_writer_lock(store, collection) as descriptor:
        async with _lock(descriptor, collection):
            try:
                opened = await in_thread(partial(Writer, store, collection, recreate=recreate))
            except UnreadableCollectionError as error:
                raise _unreadable(store, collection, error) from error
            try:
                return await _update(opened, walked, collection, embedder, recreate=recreate)
            except UnreadableCollectionError as error:
                raise _unreadable(store, collection, error) from error
            finally:
                with anyio.CancelScope(shield=True):
                    await in_thread(opened.close)


def _unreadable(
    store: CollectionStore, collection: str, error: UnreadableCollectionError
) -> PackError:
    what = "`recreate=true` replaces it"
    if store.is_foreign(collection):
        what = "the file is left as it is: choose another name"
    message = f"the collection `{collection}` cannot be read: {error}; {what}"
    return PackError("unreadable", message, collection=collection)


@asynccontextmanager
async def _lock(descriptor: int, collection: str) -> AsyncGenerator[None]:
    """Lock a collection against changes."""
    until = anyio.current_time() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if anyio.current_time() > until:
                who = writer(descriptor)
                message = f"{who} has been writing the collection `{collection}` all the time"
                raise PackError("unavailable", message) from None
            await anyio.sleep(_PAUSE)
        else:
            break
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


async def _update(
    opened: Writer,
    documents: "_SourceFiles",
    collection: str,
    embedder: Embedder | None,
    *,
    recreate: bool,
) -> Ingested:
    in_thread = anyio.to_thread.run_sync
    model = NO_MODEL if embedder is None else embedder.model
    if recreate and not opened.is_new:
        await in_thread(opened.clear)
        facts = None
    else:
        facts = await in_thread(opened.facts)
    if facts is not None and facts.model != model:
        message = (
            f"the collection `{collection}` was made with the embeddings `{facts.model}`,"
            f" and these are `{model}`; `recreate=true` makes it anew"
        )
        raise PackError("changed", message, model=facts.model)
    dimension = 0 if facts is None else facts.dimension
    change = _Ingestion(opened, documents, await in_thread(opened.sources, documents.path))
    while batch := await in_thread(change.next_batch):
        vectors: list[bytes | None] = [None] * len(batch)
        texts = [_text_to_embed(passage) for passage in batch if passage.chunk is not None]
        if embedder is not None and texts:
            made = await embedder.vectors(texts, EMBED_SECONDS)
            if dimension not in {0, made.dimension}:
                message = f"the model answers with {made.dimension} numbers, and had {dimension}"
                raise PackError("changed", f"{message}; `recreate=true` makes the collection anew")
            dimension = made.dimension
            rows = iter(made.rows())
            vectors = [None if passage.chunk is None else next(rows) for passage in batch]
        await in_thread(change.add, batch, vectors)
    await in_thread(change.finish)
    await in_thread(opened.commit, model, dimension)
    return change.result


def _text_to_embed(passage: _PendingPassage) -> str:
    assert passage.chunk is not None, "only passages have vectors"
    # As words: a model takes `urllib.parse > urllib.parse.urljoin` for few and rare ones.
    section = _PUNCTUATION.sub(" ", passage.chunk.section)
    return f"{section}. {passage.chunk.content}" if section else passage.chunk.content


class _SourceFiles:
    """The files at a path, in the order of their paths."""

    def __init__(self, folder: Folder, path: str) -> None:
        """Look for them.

        Raises:
            PackError: there is nothing, or more than is read.
        """
        self.folder = folder
        segments = segments_of(path)
        self.path = "/".join(segments)
        self.unfollowed: dict[str, int] = {}
        kind = folder.kind(path)
        if kind == "other":
            raise PackError("not_a_file", f"`{path}` is not a regular file", path=path)
        self.is_file = kind != "folder"
        if self.is_file:
            with folder.file(path, links=False):
                self.all: list[Segments] = [segments]
            return
        with folder.folder(path, links=False):
            walk = FolderWalk(folder, ignored=False)
        self.all = list(islice(walk.files(path), MOST_NAMES + 1))
        if len(self.all) > MOST_NAMES:
            walk.incomplete = f"after {MOST_NAMES:,} files"
        if walk.incomplete:
            message = f"`{path}` has too many files: the search ended {walk.incomplete}"
            raise PackError("too_large", message, path=path)
        self.unfollowed = walk.unfollowed


class _Ingestion:
    """The way from files to passages, a batch at a time."""

    def __init__(
        self, opened: Writer, documents: _SourceFiles, known: dict[str, CollectionSource]
    ) -> None:
        self._opened = opened
        self._documents = documents
        self._known = known
        self._kept: set[str] = set()
        self._total = sum(opened.counts().values())
        self._pending = self._passages()
        self._source = 0
        self.result = Ingested()

    def next_batch(self) -> list[_PendingPassage]:
        """The next passages to be added; empty at the end."""
        return list(islice(self._pending, BATCH))

    def add(self, batch: list[_PendingPassage], vectors: list[bytes | None]) -> None:
        for one, vector in zip(batch, vectors, strict=True):
            if one.place == 0:
                self._source = self._opened.add_source(one.path, one.sha256, one.category)
            if one.chunk is None:
                continue
            self._opened.add_chunk(self._source, one.path, one.place, one.chunk, vector)
            self._total += 1
            if self._total > MOST_CHUNKS:
                message = f"a collection has at most {MOST_CHUNKS:,} passages; ingest a part of it"
                raise PackError("too_large", message, limit=MOST_CHUNKS)

    def finish(self) -> None:
        """Remove the documents that are not there any more, and count."""
        for path, count in self._documents.unfollowed.items():
            why = f"{counted(count, 'pattern')} not followed: too many or too long"
            self.result.skip(for_line(safe_utf8(path)), why)
        for path in sorted(self._known.keys() - self._kept):
            self._opened.remove(self._known[path])
            self.result.removed += 1
        counts = self._opened.counts()
        now = self._opened.sources(self._documents.path)
        self.result.chunks = sum(counts.get(source.id, 0) for source in now.values())

    def _passages(self) -> Iterator[_PendingPassage]:
        """The passages of all documents that are new or have changed."""
        for segments in self._documents.all:
            path = "/".join(segments)
            content = self._text(segments, path)
            if content is None:
                continue
            data, text = content
            self.result.files += 1
            if self.result.files > MOST_FILES:
                message = f"more than {MOST_FILES:,} documents; ingest a part of the folder"
                raise PackError("too_large", message, limit=MOST_FILES)
            digest = hashlib.sha256(data).hexdigest()
            known = self._known.get(path)
            self._kept.add(path)
            if known is not None and known.sha256 == digest:
                self.result.unchanged += 1
                continue
            if known is not None:
                self._total -= self._opened.remove(known)
            category, _ = language_of(path, data[:FIRST_LINE])
            place = -1
            for place, chunk in enumerate(chunks_of(text, category)):
                yield _PendingPassage(path, digest, category, place, chunk)
            if place < 0:
                yield _PendingPassage(path, digest, category, 0, None)

    def _text(self, segments: Segments, path: str) -> tuple[bytes, str] | None:
        """The bytes of a document and its text; `None` if it is left out."""
        if not _is_sendable(path):
            self.result.skip(for_line(safe_utf8(path)), "its name is not text")
            return None
        try:
            data = self._read(segments)
        except _ChangingFileError:
            # What is known of it is better than nothing, and will be replaced by the next one.
            self._kept.add(path)
            self.result.skip(path, "it changes while it is read")
            return None
        except PackError as error:
            if self._documents.is_file:
                raise
            self.result.skip(path, error.message)
            return None
        if data is None:
            self._leave_out(path, f"it is larger than {LARGEST_FILE >> 20} MiB", "too_large")
            return None
        text = utf8_content(data, path)
        if text is None:
            self._leave_out(path, "it is not text", "unreadable")
            return None
        decoded = text.decode("utf-8", "replace")
        if "\ufffd" in decoded and decoded.encode() != text:
            self.result.broken.append(path)
        return data, decoded

    def _leave_out(self, path: str, why: str, code: str) -> None:
        if self._documents.is_file:
            raise PackError(code, f"`{path}` cannot be ingested: {why}", path=path)
        self.result.skip(path, why)

    def _read(self, segments: Segments) -> bytes | None:
        """A file as it was at one moment; `None` if it is too large.

        Raises:
            PackError: it cannot be opened.
            _ChangingFileError: it was written each time that it was read.
        """
        for _ in range(_TRIES):
            with self._documents.folder.file(segments, links=False) as descriptor:
                before = os.fstat(descriptor)
                if before.st_size > LARGEST_FILE:
                    return None
                with os.fdopen(os.dup(descriptor), "rb") as stream:
                    data = stream.read(LARGEST_FILE + 1)
                after = os.fstat(descriptor)
            if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns) and (
                len(data) == after.st_size
            ):
                return data
        raise _ChangingFileError


def _is_sendable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
