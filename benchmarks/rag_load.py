"""Questions to a collection of 20,000 passages of the pack `rag`: seconds of each kind, as JSON.

    python benchmarks/rag_load.py ROUNDS

The passages are those of Python files of the standard library. Their vectors are random: how long a
query takes does not depend on what they mean, and 20,000 of the model take minutes. The question
goes through the bundled model, as in a run.
"""

import hashlib
import json
import random
import sys
import sysconfig
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median

import anyio

from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.parse_worker import ParseWorker
from aish.packs.rag.chunks import chunks_of
from aish.packs.rag.collection_store import CollectionStore, Writer, open_writer_lock
from aish.packs.rag.embeddings import BUNDLED
from aish.packs.rag.rag_options import RagOptions
from aish.packs.rag.retrieval import load_numpy
from aish.system.process.reaper import Reaper

PASSAGES = 20_000
DIMENSION = 512
QUESTIONS = (
    "How do I parse the arguments of a command line?",
    "open a socket and read data from a server",
    "Which error is raised for a string that is no number?",
    "temporary file with a name",
    "write the keys of a dictionary to a file",
    "run a function in another thread and wait for its result",
    "compare two sequences of lines",
    "Is the connection closed when the reader stops?",
)


def fill(folder: Path) -> None:
    """Write the collection, in one transaction as an ingest does."""
    # As a run loads it: with one thread.
    load_numpy()
    from numpy import random as numbers

    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(library.glob("*.py")) + sorted(library.glob("*/*.py"))
    random.Random(1).shuffle(paths)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - the same order each time
    texts = ((path, path.read_text("utf-8", "replace")) for path in paths)
    found = (
        (path, chunk) for path, text in texts for chunk in enumerate(chunks_of(text, "python"))
    )
    vectors = numbers.default_rng(1).normal(size=(PASSAGES, DIMENSION)).astype("<f4")
    vectors /= (vectors**2).sum(axis=1, keepdims=True) ** 0.5
    store = CollectionStore(folder, folder.parent, is_own=False)
    with open_writer_lock(store, "default"):
        opened = Writer(store, "default", recreate=False)
        sources: dict[Path, int] = {}
        for (path, (place, chunk)), vector in zip(islice(found, PASSAGES), vectors, strict=True):
            name = path.relative_to(library).as_posix()
            if path not in sources:
                digest = hashlib.sha256(name.encode()).hexdigest()
                sources[path] = opened.add_source(name, digest, "python")
            opened.add_chunk(sources[path], name, place, chunk, vector.tobytes())
        opened.commit(BUNDLED, DIMENSION)
        opened.close()


async def measured(folder: Path, rounds: int) -> list[tuple[float, ...]]:
    fill(folder / "store")
    reaper = Reaper()
    found: list[tuple[float, ...]] = []
    try:
        async with anyio.create_task_group() as tasks:
            services = PackServices(tasks=tasks, reaper=reaper, worker=ParseWorker(reaper))
            options = {"rag": RagOptions(store=folder / "store")}
            packs = open_packs(["rag"], None, services, options=options)
            found = [
                (await asked(packs, "lexical"), await asked(packs, "hybrid"))
                for _ in range(rounds + 1)
            ]
            await packs.shutdown()
    finally:
        reaper.close()
    return found[1:]  # the first one loads the model and the vectors


async def asked(packs: OpenPacks, mode: str) -> float:
    """Seconds of a query, the median of all questions."""
    found: list[float] = []
    for question in QUESTIONS:
        began = time.perf_counter()
        result = await packs.call("rag_query", {"question": question, "mode": mode})
        found.append(time.perf_counter() - began)
        data = result["structuredContent"]
        assert isinstance(data, dict), result
        assert data["mode"] == mode, result
        assert "degraded" not in data, result
    return median(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(anyio.run(measured, Path(folder), int(sys.argv[1]))))
