"""Finds passages for a question: by words, by vectors, or by both ranks together."""

import os
import re
import sqlite3
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from aish.core.frozen import frozen
from aish.packs.rag.collection_store import (
    CollectionReader,
    CollectionStore,
    Facts,
    StoredPassage,
    UnreadableCollectionError,
    passages_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mode = Literal["auto", "hybrid", "vector", "lexical"]
CANDIDATES = 50
"""Passages of each rank that are fused."""
MOST_TERMS = 32
_COMPARED = 10
_FUSION = 20
_TOGETHER = 3
_ENOUGH = 0.5
"""The share of a question's words in the first passages by words, so that these are fused."""
_KEPT_BYTES = 256 * 1024 * 1024
"""Vectors that are kept in memory; those of a collection that is larger are read by each query."""
_BLOCK = 4_096
_THREADS = "OPENBLAS_NUM_THREADS"
_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    """
    a about am an and any are as at be been being but by can cannot could did do does doing done for
    from get gets give given go had has have having he her here him his how i if in into is it its
    just like make makes many may me might more most much must my need needs no nor not of off on
    once one only or other our out over own per please same shall she should so some such than that
    the their them then there these they this those through to too up upon us use used uses using
    very was way we were what when where whether which while who whom whose why will with within
    without would you your
    """.split()  # ruff: ignore[split-static-string] - a list of words is read as words
)


@frozen
class Hit:
    """A passage and how well it fits, 0 to 1."""

    passage: StoredPassage
    score: float


@frozen
class FoundPassages:
    """Passages, the best one first, and the mode that found them."""

    hits: tuple[Hit, ...]
    mode: Mode


@frozen
class _CollectionVectors:
    """All vectors of a collection; `chunks` are their passages, in ascending order."""

    generation: str
    chunks: "NDArray[np.int64]"
    matrix: "NDArray[np.float32]"


class Collections:
    """The collections of a store that were asked, kept open, the one asked last at the end."""

    def __init__(self, store: CollectionStore) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._open: dict[str, OpenCollection] = {}

    def get(self, name: str) -> "OpenCollection":
        """A collection, opened again if its file is another one.

        Raises:
            MissingCollectionError: there is none.
            UnreadableCollectionError: it cannot be read.
            PackError: it is locked.
        """
        with self._guard:
            known = self._open.get(name)
            if known is not None and known.identity != self._store.identity(name):
                del self._open[name]
                known.close()
                known = None
            if known is None:
                known = OpenCollection(CollectionReader(self._store, name))
            self._open.pop(name, None)
            self._open[name] = known
            return known

    def forget_vectors(self) -> None:
        """Keep the vectors of those that were asked last, as many as fit."""
        with self._guard:
            size = 0
            for collection in reversed(self._open.values()):
                size += collection.vector_bytes
                if size > _KEPT_BYTES:
                    size -= collection.forget_vectors()

    def close(self) -> None:
        with self._guard:
            for collection in self._open.values():
                collection.close()
            self._open.clear()


class OpenCollection:
    """An open collection, which one thread at a time asks."""

    def __init__(self, reader: CollectionReader) -> None:
        self._reader = reader
        self._turn = threading.Lock()
        self._vectors: _CollectionVectors | None = None
        # An index of the words of a few passages tells which of them has which word.
        self._scratch = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._scratch.execute(
            "CREATE VIRTUAL TABLE few USING fts5(text, tokenize='porter unicode61')"
        )
        self._scratch.execute("CREATE VIRTUAL TABLE words USING fts5vocab(few, instance)")

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of its file."""
        return self._reader.identity

    @property
    def vector_bytes(self) -> int:
        """The size of the vectors that are kept in memory."""
        vectors = self._vectors
        return 0 if vectors is None else vectors.matrix.nbytes

    def forget_vectors(self) -> int:
        """Keep no vectors, and tell how many bytes these were."""
        size, self._vectors = self.vector_bytes, None
        return size

    def close(self) -> None:
        """Close it, when nobody asks any more."""
        with self._turn:
            self._reader.close()
            self._scratch.close()

    def facts(self) -> tuple[Facts, int, int]:
        """Read its facts, and count its documents and passages."""
        with self._turn, self._reader.snapshot() as facts:
            execute = self._reader.connection.execute
            (sources,) = execute("SELECT count(*) FROM sources").fetchone()
            (chunks,) = execute("SELECT count(*) FROM chunks").fetchone()
        return facts, sources, chunks

    def search(
        self, question: str, vector: bytes | None, mode: Mode, count: int, threshold: float
    ) -> FoundPassages:
        """The passages for a question; without a vector of it, those that have its words.

        Raises:
            MissingCollectionError: it is empty.
            UnreadableCollectionError: it is damaged.
        """
        with self._turn, self._reader.snapshot() as facts:
            by_words: list[int] = []
            shares: dict[int, float] = {}
            together = 0.0
            if vector is None or mode != "vector":
                by_words = self._by_words(question)
                shares, together = self._shares(question, by_words[: max(_COMPARED, count)])
            if vector is None:
                return self._hits(by_words, shares, "lexical", count, threshold)
            best, cosines = self._by_vector(facts, vector, by_words)
            if mode == "auto":
                mode = "hybrid" if together >= _ENOUGH else "vector"
            if mode == "vector":
                return self._hits(best, cosines, mode, count, threshold)
            scores = {
                chunk: max(cosines.get(chunk, 0.0), shares.get(chunk, 0.0))
                for chunk in (*best, *by_words)
            }
            return self._hits(_fuse(by_words, best), scores, "hybrid", count, threshold)

    def _hits(
        self,
        order: Sequence[int],
        scores: dict[int, float],
        mode: Mode,
        count: int,
        threshold: float,
    ) -> FoundPassages:
        kept = [chunk_id for chunk_id in order if scores.get(chunk_id, 0.0) >= threshold][:count]
        passages = passages_of(self._reader.connection, kept)
        hits = [
            Hit(passages[one], round(scores.get(one, 0.0), 4)) for one in kept if one in passages
        ]
        return FoundPassages(tuple(hits), mode)

    def _by_words(self, question: str) -> list[int]:
        """The passages with words of the question, by BM25."""
        terms = _terms(question)
        if not terms:
            return []
        query = " OR ".join(f'"{term}"' for term in terms)
        rows = self._reader.connection.execute(
            "SELECT rowid FROM words WHERE words MATCH ?"
            " ORDER BY bm25(words, 0.5, 1.5, 1.0) LIMIT ?",
            (query, CANDIDATES),
        )
        return [row[0] for row in rows]

    def _shares(self, question: str, chunks: Sequence[int]) -> tuple[dict[int, float], float]:
        """The share of the question's words that each of these passages has.

        Also the share of those that the first few have together.
        """
        passages = passages_of(self._reader.connection, chunks)
        texts = {0: " ".join(_terms(question))}
        texts |= {one.id: f"{one.path} {one.section} {one.content}" for one in passages.values()}
        execute = self._scratch.execute
        execute("BEGIN")
        try:
            self._scratch.executemany("INSERT INTO few (rowid, text) VALUES (?, ?)", texts.items())
            found: dict[int, set[str]] = {}
            for document, term in execute("SELECT DISTINCT doc, term FROM words"):
                found.setdefault(document, set()).add(term)
        finally:
            execute("ROLLBACK")
        wanted = found.pop(0, set())
        if not wanted:
            return {}, 0.0
        together = set[str]().union(*(found.get(one, set()) for one in chunks[:_TOGETHER]))
        shares = {one: len(wanted & found.get(one, set())) / len(wanted) for one in passages}
        return shares, len(wanted & together) / len(wanted)

    def _by_vector(
        self, facts: Facts, vector: bytes, others: Sequence[int]
    ) -> tuple[list[int], dict[int, float]]:
        """The passages nearest to a vector, and the cosines of these and of some others."""
        load_numpy()
        import numpy as np

        query = np.frombuffer(vector, dtype="<f4")
        if len(query) != facts.dimension:
            raise UnreadableCollectionError(
                f"its vectors have {facts.dimension} numbers, and the question's {len(query)}"
            )
        chunks: list[NDArray[np.int64]] = []
        cosines: list[NDArray[np.float32]] = []
        for some in self._blocks(facts):
            chunks.append(some.chunks)
            cosines.append(some.matrix @ query)
        if not chunks:
            return [], {}
        ids, values = np.concatenate(chunks), np.concatenate(cosines)
        most = min(CANDIDATES, len(ids))
        nearest = np.argpartition(-values, most - 1)[:most]
        nearest = nearest[np.argsort(-values[nearest], kind="stable")]
        places = np.searchsorted(ids, np.asarray(others, dtype=np.int64))
        known = [
            int(place)
            for place, chunk in zip(places, others, strict=True)
            if place < len(ids) and ids[place] == chunk
        ]
        scores = {
            int(ids[place]): min(max(float(values[place]), 0.0), 1.0)
            for place in (*nearest.tolist(), *known)
        }
        return [int(ids[place]) for place in nearest], scores

    def _blocks(self, facts: Facts) -> "list[_CollectionVectors] | _VectorBatches":
        """The vectors: those in memory, if they are of this state and not too many."""
        vectors = self._vectors
        if vectors is not None and vectors.generation == facts.generation:
            return [vectors]
        self._vectors = None
        (count,) = self._reader.connection.execute("SELECT count(*) FROM vectors").fetchone()
        blocks = _VectorBatches(self._reader.connection, facts)
        if count * facts.dimension * 4 > _KEPT_BYTES:
            return blocks
        import numpy as np

        some = list(blocks)
        if not some:
            return []
        chunks = np.concatenate([block.chunks for block in some])
        matrix = np.concatenate([block.matrix for block in some])
        vectors = self._vectors = _CollectionVectors(facts.generation, chunks, matrix)
        return [vectors]


class _VectorBatches:
    """Vectors as they are read, some thousands at a time."""

    def __init__(self, connection: sqlite3.Connection, facts: Facts) -> None:
        self._rows = connection.execute("SELECT chunk, vector FROM vectors ORDER BY chunk")
        self._facts = facts

    def __iter__(self) -> "_VectorBatches":
        return self

    def __next__(self) -> _CollectionVectors:
        """The next ones.

        Raises:
            UnreadableCollectionError: one has another length than the collection says.
        """
        import numpy as np

        rows = self._rows.fetchmany(_BLOCK)
        if not rows:
            raise StopIteration
        data = b"".join(vector for _, vector in rows)
        dimension = self._facts.dimension
        if dimension < 1 or any(len(vector) != dimension * 4 for _, vector in rows):
            raise UnreadableCollectionError("its vectors differ in length")
        return _CollectionVectors(
            self._facts.generation,
            np.array([chunk for chunk, _ in rows], dtype=np.int64),
            np.frombuffer(data, dtype="<f4").reshape(len(rows), dimension),
        )


@cache
def load_numpy() -> None:
    """Import it so that it computes in the thread that asks: others would wait in busy loops.

    Two of them make a product of 20,000 vectors slower, and everything else of the run too.
    """
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_THREADS]


def _terms(question: str) -> list[str]:
    """The words of a question that say what it is about, each once."""
    words = list(dict.fromkeys(_WORD.findall(question.lower())))
    terms = [word for word in words if word not in _STOP_WORDS and len(word) > 1]
    return (terms or words)[:MOST_TERMS]


def _fuse(*ranks: Sequence[int]) -> list[int]:
    """Merge several orders: passages at the front of more of them come first."""
    points: dict[int, float] = {}
    for rank in ranks:
        for place, chunk in enumerate(rank):
            points[chunk] = points.get(chunk, 0.0) + 1 / (_FUSION + place + 1)
    return sorted(points, key=lambda chunk: (-points[chunk], chunk))
