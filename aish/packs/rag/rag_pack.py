"""The pack `rag`: `rag_query`, `rag_ingest` and `rag_collections`.

Passages of local documents, found by words and by vectors. Without the libraries of its extra it
finds them by words, and says so.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
import anyio.to_thread

from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.core.phrases import counted
from aish.core.text import for_line, for_terminal, safe_utf8
from aish.core.tools import CALL_DEADLINE
from aish.packs.framework.pack import PATH_CODES, READS, REPLACES, Pack, PackContext, tool
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker
from aish.packs.rag.rag_options import COLLECTION_NAME, RagOptions
from aish.packs.tool_results import Answer, enclose, fits

# SQLite and what is above it are imported when a tool is called: listing tools does without.
if TYPE_CHECKING:
    from aish.packs.rag.collection_store import CollectionStore
    from aish.packs.rag.embeddings import Embedder
    from aish.packs.rag.ingest import Ingested
    from aish.packs.rag.retrieval import Collections, FoundPassages, Hit, OpenCollection
    from aish.packs.workspace.workspace import Workspace

_LONGEST_QUESTION = 4_000
_FOR_SEARCHING = 1.0
_MOST_RESULTS = 50
_LISTED = 20
_NAMED = 3

T = TypeVar("T")


class Rag:
    """The state that the tools share; each part is made by the first call of it."""

    def __init__(self, context: PackContext, worker: ParseWorker) -> None:
        assert isinstance(context.options, RagOptions)
        self.options = context.options
        self.workspace: Workspace | None = context.workspace
        self._services = context.services
        self._worker = worker

    @cached_property
    def store(self) -> "CollectionStore":
        from aish.packs.rag.collection_store import CollectionStore

        if self.options.store is not None:
            return CollectionStore(
                self.options.store, _nearest_dir(self.options.store.parent), is_own=False
            )
        assert self.workspace is not None, "the pack was opened with a place for collections"
        root = self.workspace.root
        return CollectionStore(root / ".aish" / "rag", root, is_own=True)

    @cached_property
    def collections(self) -> "Collections":
        from aish.packs.rag.retrieval import Collections

        return Collections(self.store)

    @cached_property
    def missing(self) -> str | None:
        """The reason for no vectors, although options want them."""
        from aish.packs.rag.embeddings import missing_library

        return missing_library(self.options.embeddings)

    @cached_property
    def embedder(self) -> "Embedder | None":
        """The embedder; `None` if it is not installed or not wanted."""
        from aish.packs.rag.embeddings import open_embedder

        if self.missing is not None:
            return None
        services = self._services
        options = self.options.embeddings
        return open_embedder(options, self._worker, services.secrets, services.mask)

    def close(self) -> None:
        if "collections" in self.__dict__:
            self.collections.close()


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[Rag]:
    # A child of its own: it keeps the model, and others must not wait for it.
    worker = ParseWorker(context.services.reaper)
    rag = Rag(context, worker)
    if not COLLECTION_NAME.fullmatch(rag.options.collection):
        raise UsageError(f"`collection` of the pack `rag`: {_not_a_name(rag.options.collection)}")
    if rag.options.store is None and rag.workspace is None:
        hint = "give the server a `root`, or name a folder with `options.rag.store`"
        raise UsageError("the pack `rag` has no place for its collections", hint=hint)
    try:
        yield rag
    finally:
        with anyio.CancelScope(shield=True):
            await worker.close()
            await anyio.to_thread.run_sync(rag.close)


def _nearest_dir(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _not_a_name(name: str) -> str:
    return (
        f"`{for_line(name)[:100]}` is not the name of a collection: lower-case letters, digits,"
        " `-` and `_`, 64 at most"
    )


def _collection(rag: Rag, name: str) -> str:
    """The collection of a call; `default` is the one of the options."""
    collection = rag.options.collection if name == "default" else name
    if not COLLECTION_NAME.fullmatch(collection):
        raise PackError("bad_arguments", _not_a_name(collection))
    return collection


@tool(
    READS,
    codes=("not_found", "unavailable", "timeout", "not_installed"),
    result={
        "results": "array",
        "context": "string",
        "query": "string",
        "collection": "string",
        "mode": "string",
        "degraded": "string",
    },
    rows={
        "results": {
            "content": "string",
            "source": "string",
            "section": "string",
            "category": "string",
            "chunk_index": "integer",
            "score": "number",
        }
    },
    older_parameters={"topK": "top_k"},
)
async def rag_query(
    rag: Rag,
    question: str,
    collection: str = "default",
    top_k: int = 5,
    threshold: float = 0.0,
    mode: Literal["auto", "hybrid", "vector", "lexical"] = "auto",
) -> Answer:
    """Finds passages for a question.

    Args:
        question: What the passages should be about, in words.
        collection: The collection to look in.
        top_k: Most passages to return, 1 to 50.
        threshold: The least score of a passage, 0 to 1.
        mode: `lexical` looks for words, `vector` for meaning, `hybrid` for both; `auto` decides.
    """
    if not question.strip() or len(question) > _LONGEST_QUESTION:
        raise PackError("bad_arguments", f"`question` needs 1 to {_LONGEST_QUESTION:,} characters")
    if not 1 <= top_k <= _MOST_RESULTS:
        raise PackError("bad_arguments", f"`top_k` needs to be 1 to {_MOST_RESULTS}")
    if not 0 <= threshold <= 1:
        raise PackError("bad_arguments", "`threshold` needs to be 0 to 1")
    wanted = _collection(rag, collection)
    text = safe_utf8(question).replace("\0", " ").strip()
    vector, why = None, ""
    if mode != "lexical":
        facts, *_ = await _ask(rag, wanted, lambda collection: collection.facts())
        vector, why = await _vector(rag, text, facts.model, mode)
    found = await _ask(rag, wanted, lambda one: one.search(text, vector, mode, top_k, threshold))
    return _passages(text, wanted, found, why)


async def _ask(rag: Rag, name: str, question: "Callable[[OpenCollection], T]") -> T:
    """Ask a collection in a thread.

    Raises:
        PackError: there is no such collection (`not_found`), or it is damaged (`unavailable`).
    """
    from aish.packs.rag.collection_store import MissingCollectionError, UnreadableCollectionError

    def answer() -> T:
        try:
            return question(rag.collections.get(name))
        finally:
            rag.collections.forget_vectors()

    try:
        return await anyio.to_thread.run_sync(answer)
    except MissingCollectionError:
        message = f"there is no collection `{name}`; rag_ingest makes one of documents"
        raise PackError("not_found", message, collection=name) from None
    except UnreadableCollectionError as error:
        message = f"the collection `{name}` cannot be read: {error}"
        if not rag.store.is_foreign(name):
            message = f"{message}; rag_ingest with `recreate=true` replaces it"
        raise PackError("unavailable", message, collection=name) from error


async def _vector(rag: Rag, text: str, model: str, mode: str) -> tuple[bytes | None, str]:
    """The vector of a question, by the model of the collection; without one, why."""
    from aish.packs.rag.embeddings import NO_MODEL

    code, why = "unavailable", ""
    if model == NO_MODEL:
        why = "the collection has no vectors"
        if rag.embedder is not None:
            why = f"{why}; rag_ingest with `recreate=true` makes them"
        elif mode == "auto" and rag.missing is None:
            # The options want none.
            return None, ""
    if rag.missing is not None:
        code, why = "not_installed", rag.missing
    elif rag.embedder is not None and model not in {NO_MODEL, rag.embedder.model}:
        why = (
            f"the collection was made with the embeddings `{model}`, and these are"
            f" `{rag.embedder.model}`; rag_ingest with `recreate=true` makes it anew"
        )
    elif rag.embedder is None and model != NO_MODEL:
        why = f"the collection was made with the embeddings `{model}`, and the options want none"
    elif not why:
        assert rag.embedder is not None, "all other cases have a reason"
        # The call may have less time: what words find is better than no answer.
        left = CALL_DEADLINE.get() - anyio.current_time() - _FOR_SEARCHING
        seconds = max(min(rag.embedder.query_seconds, left), 0)
        try:
            return (await rag.embedder.vectors([text], seconds)).data, ""
        except PackError as error:
            code, why = error.code, error.message
    if mode == "vector":
        raise PackError(code, why)
    return None, f"found by words alone: {why}"


def _passages(question: str, collection: str, result: "FoundPassages", degraded: str) -> Answer:
    hits = list(result.hits)
    source = f"collection {collection}"
    trailer = f"[degraded: {for_line(degraded)}]" if degraded else ""

    def text() -> str:
        return "\n\n".join(
            f"{number}. {_place(hit)} (score {hit.score:.2f})\n{hit.passage.content}"
            for number, hit in enumerate(hits, 1)
        )

    while hits and not fits(f"{enclose(source, text())}\n{trailer}"):
        del hits[-1]
    rows: list[JsonValue] = [
        {
            "content": for_terminal(hit.passage.content),
            "source": for_line(hit.passage.path),
            "section": for_line(hit.passage.section),
            "category": hit.passage.category,
            "chunk_index": hit.passage.place,
            "score": hit.score,
        }
        for hit in hits
    ]
    data: dict[str, JsonValue] = {
        "results": rows,
        "context": "\n\n".join(enclose(_place(hit), hit.passage.content) for hit in hits),
        "query": question,
        "collection": collection,
        "mode": result.mode,
    }
    if degraded:
        data["degraded"] = degraded
    return Answer(text() or "nothing was found", data, source=source, trailer=trailer)


def _place(hit: "Hit") -> str:
    passage = hit.passage
    return for_line(f"{passage.path}, {passage.section}" if passage.section else passage.path)


@tool(
    REPLACES,
    codes=(
        *PATH_CODES,
        *("changed", "too_large", "unavailable", "timeout", "not_installed", "unwritable"),
    ),
    result={
        "path": "string",
        "collection": "string",
        "files": "integer",
        "chunks": "integer",
        "unchanged": "integer",
        "removed": "integer",
        "skipped": "array",
        "degraded": "string",
    },
    rows={"skipped": {"path": "string", "why": "string"}},
)
async def rag_ingest(
    rag: Rag, path: str, collection: str = "default", *, recreate: bool = False
) -> Answer:
    """Ingests files into a collection.

    Documents that have changed are replaced, and those that are gone are removed. It is done as a
    whole or not at all.

    Args:
        path: A text file, or a folder with all text files below it.
        collection: The collection, made if it is missing.
        recreate: Whether all that the collection has is removed first.
    """
    from aish.packs.rag.embeddings import NO_MODEL
    from aish.packs.rag.ingest import ingest

    if rag.workspace is None:
        raise PackError("not_found", "this server has no `root`, so there is nothing to ingest")
    name = _collection(rag, collection)
    if rag.missing is not None and not recreate:
        try:
            facts, *_ = await _ask(rag, name, lambda collection: collection.facts())
        except PackError as error:
            # Whatever else is wrong is told by the ingest itself.
            if error.code not in {"not_found", "unavailable"}:
                raise
        else:
            if facts.model != NO_MODEL:
                message = f"the collection `{name}` has vectors, and {rag.missing}"
                raise PackError("not_installed", message, model=facts.model)
    done = await ingest(
        rag.workspace.folder, rag.store, path, name, rag.embedder, recreate=recreate
    )
    skipped = [(file.path, file.why) for file in done.skipped]
    summary = (
        f"{counted(done.files, 'file')} with {counted(done.chunks, 'passage')} in `{name}`:"
        f" {done.unchanged} unchanged, {done.removed} removed, {done.skipped_count} skipped"
    )
    lines = [*(f"skipped `{for_line(where)}`: {why}" for where, why in skipped[:_LISTED])]
    if done.skipped_count > _LISTED:
        lines.append(f"and {done.skipped_count - _LISTED:,} more")
    data: dict[str, JsonValue] = {
        "path": path,
        "collection": name,
        "files": done.files,
        "chunks": done.chunks,
        "unchanged": done.unchanged,
        "removed": done.removed,
        "skipped": [{"path": where, "why": why} for where, why in skipped],
    }
    if degraded := _note_of_gaps(rag, done):
        data["degraded"] = degraded
        lines.append(f"[degraded: {degraded}]")
    return Answer(summary, data, trailer="\n".join(lines))


def _note_of_gaps(rag: Rag, done: "Ingested") -> str:
    """Name what cannot be found, or not by vectors, if anything."""
    missing: list[str] = []
    if rag.missing is not None:
        missing.append(f"ingested without vectors: {rag.missing}")
    if done.broken:
        names = ", ".join(f"`{for_line(path)}`" for path in done.broken[:_NAMED])
        more = ", …" if len(done.broken) > _NAMED else ""
        files = counted(len(done.broken), "file")
        missing.append(f"text that is not UTF-8 is not found, in {files}: {names}{more}")
    return "; ".join(missing)


@tool(
    READS,
    codes=("unreadable",),
    result={"collections": "array"},
    rows={
        "collections": {
            "name": "string",
            "chunks": "integer",
            "model": "string",
            "dimension": "integer",
            "status": "string",
        }
    },
)
async def rag_collections(rag: Rag, *, show_stats: bool = False) -> Answer:
    """Lists the collections.

    Args:
        show_stats: Whether their passages and models are listed too.
    """
    from aish.packs.rag.collection_store import UnreadableCollectionError

    try:
        names = await anyio.to_thread.run_sync(rag.store.names)
    except (OSError, UnreadableCollectionError) as error:
        why = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
        raise PackError("unreadable", f"the collections cannot be listed: {why}") from error
    rows: list[JsonValue] = []
    lines: list[str] = []
    for name in names:
        try:
            facts, sources, chunks = await _ask(rag, name, lambda collection: collection.facts())
        except PackError as error:
            if error.code != "not_found":
                # A collection whose first ingest has not finished is not there yet.
                rows.append({"name": name, "status": error.message})
                lines.append(f"{name}: {error.message}")
            continue
        status = _status(rag, facts.model)
        row: dict[str, JsonValue] = {"name": name, "status": status}
        line = f"{name}: {status}"
        if show_stats:
            row |= {"chunks": chunks, "model": facts.model, "dimension": facts.dimension}
            files = f"{counted(chunks, 'passage')} of {counted(sources, 'file')}"
            line = f"{line}; {files}, embeddings {for_line(facts.model)}"
        rows.append(row)
        lines.append(line)
    return Answer("\n".join(lines) or "there are no collections", {"collections": rows})


def _status(rag: Rag, model: str) -> str:
    """`ok`, or why it is not searched by vectors."""
    from aish.packs.rag.embeddings import NO_MODEL

    if model == NO_MODEL:
        return "ok" if rag.embedder is None else "without vectors"
    if rag.missing is not None:
        return f"by words alone: {rag.missing}"
    if rag.embedder is None or rag.embedder.model != model:
        return "of other embeddings than the options name"
    return "ok"


PACK = Pack(
    tools=(rag_query, rag_ingest, rag_collections),
    root="optional",
    lifespan=_open,
    reads="collected",
    options=RagOptions,
)
