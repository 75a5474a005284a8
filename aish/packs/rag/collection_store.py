"""Collections of passages on disk: a SQLite file each, with an index of words.

Many processes read, one writes: a lock beside the file says which. A change is one transaction, so
that a crash leaves what was there. What others may have put there is not trusted: a file is used
only if it has the tables of a collection and nothing else.
"""

import os
import sqlite3
import stat
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.packs.pack_error import PackError
from aish.packs.rag.chunks import TextChunk
from aish.packs.rag.rag_options import COLLECTION_NAME
from aish.system.files import is_there, open_append, private_folder

_END = ".sqlite"
_APPLICATION = 0x61697368
_VERSION = 1
_BUSY_SECONDS = 5.0
_CACHED_PAGES = -16_384
_LARGEST_VALUE = 64 * 1024 * 1024
_PRIVATE = 0o600
_MARK = _APPLICATION.to_bytes(4, "big")
_MARK_AT = 68
"""Where a file of SQLite has the number of its application."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_COLUMNS = (int, str, str, int, str, str)
_IGNORED = b"*\n"

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sources (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL, category TEXT NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL, place INTEGER NOT NULL,
    section TEXT NOT NULL, content TEXT NOT NULL
);
CREATE INDEX chunks_of_source ON chunks (source);
CREATE TABLE vectors (chunk INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(
    path, section, content, content='', columnsize=1, tokenize='porter unicode61'
);
"""


class UnreadableCollectionError(Exception):
    """A file that is no collection, or a damaged one; the message says why."""


class MissingCollectionError(Exception):
    """The collection does not exist."""


@frozen
class Facts:
    """Facts that a collection keeps; `generation` differs after every change."""

    model: str
    dimension: int
    generation: str


@frozen
class CollectionSource:
    id: int
    path: str
    sha256: str


@frozen
class StoredPassage:
    id: int
    path: str
    category: str
    place: int
    section: str
    content: str


@frozen
class CollectionStore:
    """A folder of collections. No part of its path below `within` may be a link."""

    folder: Path
    within: Path
    is_own: bool
    """Whether the folder is ours, so that version control is told to leave it out."""

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{_END}"

    def names(self) -> list[str]:
        """The collections that seem to be there.

        Raises:
            OSError: the folder cannot be read.
            UnreadableCollectionError: it is behind a link.
        """
        if not self._is_there():
            return []
        names = (path.stem for path in self.folder.iterdir() if path.suffix == _END)
        return sorted(name for name in names if COLLECTION_NAME.fullmatch(name))

    def identity(self, name: str) -> tuple[int, int] | None:
        """Device and inode of a collection's file; `None` if there is none.

        Raises:
            UnreadableCollectionError: it is a link, or no file of this user.
        """
        try:
            status = self.path(name).lstat() if self._is_there() else None
        except FileNotFoundError:
            status = None
        if status is None:
            return None
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != os.geteuid():
            raise UnreadableCollectionError("it is not a regular file of this user")
        return status.st_dev, status.st_ino

    def is_foreign(self, name: str) -> bool:
        """Return true if a file outside our folder is not marked as a collection."""
        if self.is_own:
            return False
        try:
            descriptor = os.open(self.path(name), _READ)
        except FileNotFoundError:
            return False
        except OSError:  # a link, or closed to us
            return True
        try:
            return os.pread(descriptor, len(_MARK), _MARK_AT) != _MARK
        except OSError:  # a folder
            return True
        finally:
            os.close(descriptor)

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            UsageError: a part of its path is a link, or it is of another user.
        """
        private_folder(self.folder, self.within)
        if self.is_own:
            with suppress(FileExistsError):
                descriptor = os.open(self.folder / ".gitignore", _NEW, _PRIVATE)
                try:
                    os.write(descriptor, _IGNORED)
                finally:
                    os.close(descriptor)

    def open_lock(self, name: str) -> int:
        return open_append(self.folder / f"{name}.lock")

    def remove(self, name: str) -> None:
        """Remove a collection's files; its lock has to be held."""
        for end in ("", "-wal", "-shm", "-journal"):
            self.folder.joinpath(f"{name}{_END}{end}").unlink(missing_ok=True)

    def _is_there(self) -> bool:
        if is_there(self.folder, self.within):
            return True
        if self.folder.is_symlink() or os.path.lexists(self.folder):
            raise UnreadableCollectionError("the store is behind a link")
        return False


@contextmanager
def convert_sqlite_errors() -> Generator[None]:
    """Raise what SQLite says as a failure of the collection.

    Raises:
        UnreadableCollectionError: the file is damaged, or none of SQLite.
        PackError: it cannot be written (`unwritable`), or is locked (`unavailable`).
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        message = str(error)
        if "locked" in message:
            raise PackError("unavailable", "the collection is locked by another program") from error
        if any(phrase in message for phrase in ("full", "readonly", "disk I/O", "unable to open")):
            raise PackError("unwritable", f"the store cannot be used: {message}") from error
        raise UnreadableCollectionError(f"it is damaged: {message}") from error
    except (sqlite3.DatabaseError, ValueError, TypeError, OverflowError) as error:
        raise UnreadableCollectionError(f"it is damaged: {error}") from error


class CollectionReader:
    """A collection that is read; each `with` sees one state of it. Not for two threads at once."""

    def __init__(self, store: CollectionStore, name: str) -> None:
        """Open it.

        Raises:
            MissingCollectionError: there is none.
            UnreadableCollectionError: it cannot be read.
            PackError: it is locked.
        """
        identity = store.identity(name)
        if identity is None:
            raise MissingCollectionError(name)
        self.identity = identity
        with ExitStack() as opened, convert_sqlite_errors():
            path = store.path(name)
            can_write = os.access(path, os.W_OK) and os.access(store.folder, os.W_OK)
            # Without rights to write there is no file for the locks of readers, and no writer.
            connection = opened.enter_context(
                closing(_connect(path, "mode=rw" if can_write else "mode=ro&immutable=1"))
            )
            connection.execute("PRAGMA query_only = 1")
            _check(connection, name)
            if store.identity(name) != identity:
                raise UnreadableCollectionError("it was replaced while it was opened")
            opened.pop_all()
        self.connection = connection

    @contextmanager
    def snapshot(self) -> Generator[Facts]:
        """Hold one state of the collection, and yield its facts.

        Raises:
            MissingCollectionError: it is empty: its first writer has not finished.
            UnreadableCollectionError: it is damaged.
        """
        with convert_sqlite_errors():
            self.connection.execute("BEGIN")
            try:
                yield facts_of(self.connection)
            finally:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for pragma in ("trusted_schema = 0", "cell_size_check = 1", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA cache_size = {_CACHED_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, name: str) -> None:
    """Raise unless a file has the tables of a collection, and no triggers or views."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    if not rows:
        raise MissingCollectionError(name)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise UnreadableCollectionError("it is not a collection of ours")
    if version != _VERSION:
        raise UnreadableCollectionError(f"it has the format {version}, and {_VERSION} is read here")
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(_TABLES)
        expected = model.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    # Versions of SQLite differ in the SQL of the tables that an index of words consists of.
    if sorted(map(_comparable, rows)) != sorted(map(_comparable, expected)):
        raise UnreadableCollectionError("it has other tables than a collection")


def _comparable(row: tuple[str, str, str, str | None]) -> tuple[str, str, str, str]:
    kind, name, table, sql = row
    return kind, name, table, "" if name.startswith("words_") else " ".join((sql or "").split())


def facts_of(connection: sqlite3.Connection) -> Facts:
    """Read the facts of a collection.

    Raises:
        UnreadableCollectionError: it does not.
    """
    facts = dict(connection.execute("SELECT name, value FROM facts"))
    try:
        return Facts(facts["model"], int(facts["dimension"]), facts["generation"])
    except KeyError as error:
        raise UnreadableCollectionError("it does not say which model made it") from error


class Writer:
    """A change of a collection, discarded unless `commit` is called. The lock has to be held."""

    def __init__(self, store: CollectionStore, name: str, *, recreate: bool) -> None:
        """Open it, made if it is missing, replaced if it is damaged and is to be recreated.

        A file of somebody else is never replaced.

        Raises:
            UnreadableCollectionError: it cannot be read.
            PackError: it cannot be written.
        """
        self._store, self._name = store, name
        self.is_new = False
        try:
            self._open()
        except UnreadableCollectionError:
            if not recreate or store.is_foreign(name):
                raise
            store.remove(name)
            self._open()

    def _open(self) -> None:
        path = self._store.path(self._name)
        if self._store.identity(self._name) is None:
            with _convert_file_errors():
                os.close(os.open(path, _NEW, _PRIVATE))
        with ExitStack() as opened, convert_sqlite_errors():
            connection = opened.enter_context(closing(_connect(path, "mode=rw")))
            with suppress(MissingCollectionError):
                _check(connection, self._name)
                self.is_new = False
                opened.pop_all()
                self._begin(connection)
                return
            self.is_new = True
            connection.execute("PRAGMA journal_mode = WAL")
            opened.pop_all()
            self._begin(connection)
            for statement in _TABLES.strip().removesuffix(";").split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _begin(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise

    def facts(self) -> Facts | None:
        """Read the facts from before; `None` if it is new."""
        with convert_sqlite_errors():
            return None if self.is_new else facts_of(self.connection)

    def clear(self) -> None:
        with convert_sqlite_errors():
            for table in ("facts", "sources", "chunks", "vectors"):
                self.connection.execute(f"DELETE FROM {table}")  # ruff: ignore[hardcoded-sql-expression] - names of ours
            self.connection.execute("INSERT INTO words (words) VALUES ('delete-all')")

    def sources(self, folder: str) -> dict[str, CollectionSource]:
        """The documents by path: that of this path, and those below it."""
        with convert_sqlite_errors():
            rows = self.connection.execute("SELECT id, path, sha256 FROM sources")
            sources = list(starmap(CollectionSource, rows))
        below = f"{folder}/"
        return {
            source.path: source
            for source in sources
            if not folder or source.path == folder or source.path.startswith(below)
        }

    def remove(self, source: CollectionSource) -> int:
        """Remove a document with its passages; how many these were."""
        with convert_sqlite_errors():
            rows = self.connection.execute(
                "SELECT id, section, content FROM chunks WHERE source = ?", (source.id,)
            ).fetchall()
            for chunk, section, content in rows:
                # An index without texts of its own has to be told what was in it.
                self.connection.execute(
                    "INSERT INTO words (words, rowid, path, section, content)"
                    " VALUES ('delete', ?, ?, ?, ?)",
                    (chunk, source.path, section, content),
                )
                self.connection.execute("DELETE FROM vectors WHERE chunk = ?", (chunk,))
            self.connection.execute("DELETE FROM chunks WHERE source = ?", (source.id,))
            self.connection.execute("DELETE FROM sources WHERE id = ?", (source.id,))
        return len(rows)

    def add_source(self, path: str, sha256: str, category: str) -> int:
        """Add a document without passages; its number."""
        with convert_sqlite_errors():
            cursor = self.connection.execute(
                "INSERT INTO sources (path, sha256, category) VALUES (?, ?, ?)",
                (path, sha256, category),
            )
        assert cursor.lastrowid is not None, "a row was inserted"
        return cursor.lastrowid

    def add_chunk(
        self, source: int, path: str, place: int, chunk: TextChunk, vector: bytes | None
    ) -> None:
        with convert_sqlite_errors():
            number = self.connection.execute(
                "INSERT INTO chunks (source, place, section, content) VALUES (?, ?, ?, ?)",
                (source, place, chunk.section, chunk.content),
            ).lastrowid
            self.connection.execute(
                "INSERT INTO words (rowid, path, section, content) VALUES (?, ?, ?, ?)",
                (number, path, chunk.section, chunk.content),
            )
            if vector is not None:
                self.connection.execute("INSERT INTO vectors VALUES (?, ?)", (number, vector))

    def counts(self) -> dict[int, int]:
        """Count the passages of each document, by its number."""
        with convert_sqlite_errors():
            rows = self.connection.execute("SELECT source, count(*) FROM chunks GROUP BY source")
            return dict(rows.fetchall())

    def commit(self, model: str, dimension: int) -> None:
        """Keep the change, and say what made the vectors."""
        facts = {"model": model, "dimension": str(dimension), "generation": os.urandom(8).hex()}
        with convert_sqlite_errors():
            self.connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())
            self.connection.execute("COMMIT")
            self.is_new = False

    def close(self) -> None:
        """Close it; what was not committed did not happen."""
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        self.connection.close()
        if self.is_new:
            self._store.remove(self._name)


@contextmanager
def _convert_file_errors() -> Generator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or "input or output error").lower()
        raise PackError("unwritable", f"the store cannot be written: {why}") from error


@contextmanager
def open_writer_lock(store: CollectionStore, name: str) -> Generator[int]:
    """The store's folder, made if it is missing, and the descriptor that a writer locks.

    Raises:
        PackError: it cannot be written (`unwritable`).
    """
    try:
        with _convert_file_errors():
            store.prepare()
            descriptor = store.open_lock(name)
    except UsageError as error:
        raise PackError("unwritable", f"the store cannot be written: {error}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def passages_of(connection: sqlite3.Connection, chunks: Sequence[int]) -> dict[int, StoredPassage]:
    """Passages by number; those that are not there are missing."""
    marks = ", ".join("?" * len(chunks))
    rows = connection.execute(
        "SELECT chunks.id, path, category, place, section, content"  # ruff: ignore[hardcoded-sql-expression] - marks only
        f" FROM chunks JOIN sources ON sources.id = chunks.source WHERE chunks.id IN ({marks})",
        tuple(chunks),
    )
    return {row[0]: StoredPassage(*_check_row(row)) for row in rows}


def _check_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of a file that others may have written: SQLite keeps any value in any column."""
    if tuple(map(type, row)) != _COLUMNS:
        raise TypeError("a value is of another type than its column")
    return row
