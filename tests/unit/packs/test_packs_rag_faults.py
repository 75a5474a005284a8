"""What can go wrong with collections of the pack `rag`, and what is left then (K60-K62, K89)."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs
from swap_programs import SWAP_FILE, SWAP_FOLDER, swapped_rounds

from aish.core.options import PackOptions
from aish.packs.pack_error import PackError
from aish.packs.rag.ingest import LARGEST_FILE, MOST_FILES
from aish.packs.rag.rag_options import Embeddings, RagOptions
from aish.packs.workspace.confined_path import Folder

EVERYTHING = os.environ.get("AISH_TEST_ALL") == "1"
NO_VECTORS = {"rag": RagOptions(embeddings=Embeddings("none"))}
KEY = "embedding-key-1234"


Answer = tuple[int, dict[str, str], bytes]


class EmbeddingServer:
    """An endpoint of embeddings whose answers a test decides; a vector says how long a text is."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[int], Answer | None] = lambda _number: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append({**body, "path": self.path, "headers": dict(self.headers)})
                made = outer.answer(len(outer.asked))
                status, headers, data = made or (200, {}, outer.vectors(self.path, body["input"]))
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # ruff: ignore[builtin-argument-shadowing] - the name of the base class
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def vectors(path: str, texts: list[str]) -> bytes:
        found = [[float(len(text)), 1.0, float("server" in text)] for text in texts]
        if path == "/api/embed":
            return json.dumps({"embeddings": found}).encode()
        rows = [{"index": n, "embedding": one} for n, one in enumerate(found)]
        return json.dumps({"data": list(reversed(rows))}).encode()

    def options(self, provider: Any = "openai", model: str = "m") -> PackOptions:
        embeddings = Embeddings(provider, self.url, model, "EMBED_KEY")
        return {"rag": RagOptions(embeddings=embeddings)}


@pytest.fixture
def endpoint() -> Iterator[EmbeddingServer]:
    made = EmbeddingServer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@contextmanager
def asked_by(root: Path, options: PackOptions, **services: Any) -> Generator[PackScene]:
    with opened_packs(["rag"], root, options, secrets={"EMBED_KEY": KEY}, **services) as scene:
        yield scene


def always(answer: Answer, _number: int) -> Answer:
    return answer


def many(word: str, count: int = 100) -> str:
    return "\n".join(f"# Part {n}\n\nThe {word} of part {n} is here.\n" for n in range(count))


def found(scene: PackScene, question: str, **more: Any) -> int:
    more = {"top_k": 50, "mode": "lexical", **more}
    return len(scene.data("rag_query", question=question, **more)["results"])


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_an_endpoint_makes_the_vectors(
    tmp_path: Path, endpoint: EmbeddingServer, provider: str
) -> None:
    with asked_by(tmp_path, endpoint.options(provider)) as scene:
        scene.put("docs/a.md", "# Run\n\nStart the server.\n\n# Else\n\nNothing.\n")
        scene.data("rag_ingest", path="docs")
        data = scene.data("rag_query", question="which server", mode="vector", top_k=1)
        (row,) = scene.data("rag_collections", show_stats=True)["collections"]
    assert data["results"][0]["section"] == "Run"
    assert (row["model"], row["dimension"]) == (f"{provider}/m", 3)
    assert [one["model"] for one in endpoint.asked] == ["m", "m"]
    assert endpoint.asked[0]["headers"]["authorization"] == f"Bearer {KEY}"
    assert {one["path"] for one in endpoint.asked} == {
        "/embeddings" if provider == "openai" else "/api/embed"
    }


def test_an_endpoint_that_is_down_changes_nothing_and_is_told(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    with asked_by(tmp_path, endpoint.options()) as scene:
        scene.put("docs/a.md", many("server", 70))
        scene.data("rag_ingest", path="docs")
        # It fails in the middle: of two requests the second one.
        scene.put("docs/a.md", many("pear", 70))
        before = len(endpoint.asked)
        reason = json.dumps({"error": {"message": f"no model, and the key is {KEY}"}}).encode()
        endpoint.answer = lambda number: (500, {}, reason) if number == before + 2 else None
        error = scene.error("rag_ingest", path="docs")
        assert error["code"] == "unavailable"
        assert "answers 500: no model" in error["message"]
        assert len(endpoint.asked) == before + 2
        assert (found(scene, "server"), found(scene, "pear")) == (50, 0)
        # Busy is not down.
        endpoint.answer = lambda number: (
            (429, {"retry-after": "0"}, b"") if number == before + 3 else None
        )
        scene.data("rag_ingest", path="docs")
        assert (found(scene, "server"), found(scene, "pear")) == (0, 50)

        # A quota that is used up is not asked again (issue 27, B5).
        quota = json.dumps({"error": {"code": "insufficient_quota"}}).encode()
        before = len(endpoint.asked)
        endpoint.answer = partial(always, (429, {"retry-after": "0"}, quota))
        assert scene.code("rag_query", question="pear", mode="vector") == "unavailable"
        assert len(endpoint.asked) == before + 1

        for status, body in ((503, b""), (200, b"[1]"), (200, b'{"data": []}'), (302, b"")):
            headers = {"retry-after": "0", "location": "http://127.0.0.1:1/"}
            endpoint.answer = partial(always, (status, headers, body))
            data = scene.data("rag_query", question="pear")
            assert (data["mode"], len(data["results"])) == ("lexical", 5)
            assert data["degraded"].startswith("found by words alone: ")
            text = scene.text("rag_query", question="pear")
            assert "\n[degraded: found by words alone: " in text
            assert scene.code("rag_query", question="pear", mode="vector") == "unavailable"
        endpoint.server.shutdown()
        endpoint.server.server_close()
        with socket.socket() as kept:  # so that nobody else listens there
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", endpoint.server.server_port))
            assert "cannot be asked" in scene.data("rag_query", question="pear")["degraded"]
            assert scene.code("rag_ingest", path="docs", recreate=True) == "unavailable"
        assert found(scene, "pear") == 50


def test_numbers_that_no_vector_can_have_are_an_answer_without_embeddings(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    number = f"1{'0' * 400}"
    data = f'{{"data": [{{"index": 0, "embedding": [{number}, 0.5]}}]}}'
    endpoint.answer = lambda _number: (200, {}, data.encode())
    with asked_by(tmp_path, endpoint.options()) as scene:
        scene.put("docs/a.md", many("server", 1))
        error = scene.error("rag_ingest", path="docs")
        assert error["code"] == "unavailable"
        assert "does not answer with embeddings" in error["message"]


def test_a_key_in_an_answer_is_masked(tmp_path: Path, endpoint: EmbeddingServer) -> None:
    endpoint.answer = lambda _number: (401, {}, json.dumps({"error": f"bad key {KEY}"}).encode())
    with asked_by(
        tmp_path, endpoint.options(), mask=lambda text: text.replace(KEY, "***")
    ) as scene:
        scene.put("docs/a.md", many("server", 1))
        assert "answers 401: bad key ***" in scene.error("rag_ingest", path="docs")["message"]


def test_vectors_of_another_length_or_model_are_not_mixed(
    tmp_path: Path, endpoint: EmbeddingServer
) -> None:
    with asked_by(tmp_path, endpoint.options()) as scene:
        scene.put("docs/a.md", many("server", 3))
        scene.data("rag_ingest", path="docs")
        scene.put("docs/a.md", many("pear", 1))
        longer = json.dumps({"data": [{"index": 0, "embedding": [1.0] * 4}]}).encode()
        endpoint.answer = lambda _number: (200, {}, longer)
        assert scene.code("rag_ingest", path="docs") == "changed"
        assert scene.code("rag_query", question="server", mode="vector") == "unavailable"
        assert found(scene, "server") == 3
    endpoint.answer = lambda _number: None
    with asked_by(tmp_path, endpoint.options(model="other")) as scene:
        error = scene.error("rag_ingest", path="docs")
        assert (error["code"], error["details"]) == ("changed", {"model": "openai/m"})
        assert "openai/m" in scene.data("rag_query", question="server")["degraded"]
        (row,) = scene.data("rag_collections")["collections"]
        assert row["status"] == "of other embeddings than the options name"


INGEST = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pack_scenes import opened_packs
from aish.core.options import PackOptions
from aish.packs.rag.rag_options import Embeddings, RagOptions

last, count = int(sys.argv[3]), 0

def seen(frame, event, called):
    global count
    if event in ("c_call", "c_return") and called.__name__ in ("execute", "executemany"):
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

options = {"rag": RagOptions(embeddings=Embeddings("none"))}
with opened_packs(["rag"], Path(sys.argv[2]), options) as scene:
    threading.setprofile(seen)
    scene.data("rag_ingest", path="docs")
    threading.setprofile(None)
print(count)
"""


def ingesting(root: Path, kill_at: int = 0) -> subprocess.Popen[str]:
    support = str(Path(__file__).parents[2] / "support")
    command = [sys.executable, "-c", INGEST, support, str(root), str(kill_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.real_process
@pytest.mark.slow(reason="starts and kills 21 processes")
def test_a_killed_ingest_keeps_what_was_there(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    with opened_packs(["rag"], before, NO_VECTORS) as scene:
        scene.put("docs/a.md", many("server"))
        scene.put("docs/b.md", many("apple"))
        scene.data("rag_ingest", path="docs")
        scene.put("docs/a.md", many("pear"))
        (before / "docs" / "b.md").unlink()
    with ingesting(shutil.copytree(before, tmp_path / "whole")) as process:
        steps = int(process.communicate()[0])
    assert steps > 1_000

    for point in range(20):
        root = shutil.copytree(before, tmp_path / f"killed-{point}")
        # The last ones are around the end of the transaction.
        at = steps - point if point < 8 else steps * (point - 7) // 13
        with ingesting(root, at) as process:
            assert process.wait() == -9
        with opened_packs(["rag"], root, NO_VECTORS) as scene:
            state = [found(scene, word) for word in ("server", "apple", "pear")]
            assert state in ([50, 50, 0], [0, 0, 50]), at
            assert state == [50, 50, 0] or point < 8
            done = scene.data("rag_ingest", path="docs")
            assert (done["files"], done["chunks"]) == (1, 100)
            assert [found(scene, word) for word in ("server", "apple", "pear")] == [0, 0, 50]


@pytest.mark.real_process
def test_processes_that_ingest_at_once_wait_for_each_other(tmp_path: Path) -> None:
    with opened_packs(["rag"], tmp_path, NO_VECTORS) as scene:
        for number in range(5):
            scene.put(f"docs/{number}.md", many(f"word{number}", 30))
        with ingesting(tmp_path) as one, ingesting(tmp_path) as two:
            own = scene.data("rag_ingest", path="docs")
            assert (one.wait(), two.wait()) == (0, 0)
        assert (own["files"], own["chunks"]) == (5, 150)
        assert scene.data("rag_ingest", path="docs")["unchanged"] == 5
        (row,) = scene.data("rag_collections", show_stats=True)["collections"]
        assert row["chunks"] == 150


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with opened_packs(["rag"], tmp_path, NO_VECTORS) as scene:
        scene.put("docs/a.md", many("server", 60))
        scene.data("rag_ingest", path="docs")
        scene.put("docs/b.md", many("pear", 3_000))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            error = scene.error("rag_ingest", path="docs")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert error["code"] == "unwritable", error
        assert (found(scene, "server"), found(scene, "pear")) == (50, 0)
        scene.data("rag_ingest", path="docs")
        assert found(scene, "pear") == 50


def test_a_file_that_changes_while_it_is_read_is_told_or_whole(tmp_path: Path) -> None:
    over = threading.Event()
    with opened_packs(["rag"], tmp_path, NO_VECTORS) as scene:
        path = scene.put("docs/a.md", "grows\n" * 20_000)

        def grow() -> None:
            with path.open("ab", buffering=0) as stream:
                while not over.is_set():
                    stream.write(b"grows\n")
                    if stream.tell() > 400_000:
                        stream.truncate(120_000)

        growing = threading.Thread(target=grow)
        growing.start()
        try:
            whys = [
                row["why"]
                for _ in range(2)
                for row in scene.data("rag_ingest", path="docs")["skipped"]
            ]
        finally:
            over.set()
            growing.join()
        assert set(whys) <= {"it changes while it is read"}
        done = scene.data("rag_ingest", path="docs")
        assert (done["files"], done["skipped"]) == (1, [])


def test_files_that_are_too_large_or_no_text_are_left_out(tmp_path: Path) -> None:
    with opened_packs(["rag"], tmp_path, NO_VECTORS) as scene:
        with scene.put("docs/huge.txt", "").open("wb") as stream:
            stream.truncate(2 << 30)
        scene.put("docs/a.bin", b"\0\1")
        scene.put("docs/a.txt", "Plums are blue.\n")
        scene.put("docs/.env", "SECRET=plums\n")
        scene.put("docs/sub/.gitignore", "*.log\n")
        scene.put("docs/sub/x.log", "plums\n")
        (tmp_path / "docs" / "link.txt").symlink_to("a.txt")
        done = scene.data("rag_ingest", path="docs")
        assert done["skipped"] == [
            {"path": "docs/a.bin", "why": "it is not text"},
            {"path": "docs/huge.txt", "why": "it is larger than 2 MiB"},
        ]
        assert found(scene, "plums") == 1
        assert scene.code("rag_ingest", path="docs/huge.txt") == "too_large"
        assert scene.code("rag_ingest", path="docs/a.bin") == "unreadable"
        assert scene.code("rag_ingest", path="docs/link.txt") == "outside"
        assert scene.code("rag_ingest", path="docs/.env") == "not_found"


@pytest.mark.slow(reason="makes 10,001 files, and a folder of 2 GB by links to one file")
def test_folders_that_are_too_large_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    with opened_packs(["rag"], tmp_path, NO_VECTORS) as scene:
        scene.put("docs/a.txt", "Plums are blue.\n")
        scene.data("rag_ingest", path="docs")
        for number in range(MOST_FILES + 1):
            scene.put(f"docs/many/{number}.txt", f"Plum {number}.\n")
        error = scene.error("rag_ingest", path="docs")
        assert (error["code"], error["details"]) == ("too_large", {"limit": MOST_FILES})
        assert found(scene, "plums") == 1

        first = scene.put("big/0.txt", "All plums are blue or red.\n" * (LARGEST_FILE // 28))
        for number in range(1, 1_100):
            os.link(first, tmp_path / "big" / f"{number}.txt")
        before = most_memory()
        error = scene.error("rag_ingest", path="big")
        assert (error["code"], error["details"]) == ("too_large", {"limit": 100_000})
        assert most_memory() - before < 128 * 1024
        assert found(scene, "plums") == 1


def most_memory() -> int:
    """The KiB that this process has had at most."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (line,) = [one for one in lines if one.startswith("VmHWM:")]
    return int(line.split()[1])


ROUNDS = 50_000 if EVERYTHING else 5_000
INGESTS = 500 if EVERYTHING else 40


@pytest.mark.parametrize("program", [SWAP_FOLDER, SWAP_FILE], ids=["folder", "file"])
def test_what_is_swapped_for_a_link_is_never_ingested(tmp_path: Path, program: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("secrets")
    root.mkdir()
    (root / "link").symlink_to("../outside")
    seen: Counter[bytes | str] = Counter()
    with opened_packs(["rag"], root, NO_VECTORS) as scene:
        scene.put("docs/a.md", "inside")
        scene.data("rag_ingest", path="docs")
        command = [sys.executable, "-I", "-S", "-c", program]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as swapping:
            try:
                assert swapping.stdout is not None
                swapping.stdout.readline()
                folder = Folder(root)
                for _ in swapped_rounds(ROUNDS, lambda: seen[b"inside"]):
                    seen[attempt(folder)] += 1
                folder.close()
                for _ in swapped_rounds(INGESTS, lambda: seen["ok"]):
                    seen["error" if scene.call("rag_ingest", path="docs")["isError"] else "ok"] += 1
                    assert found(scene, "secrets") == 0
            finally:
                swapping.kill()
    assert set(seen) <= {b"inside", b"", "outside", "not_found", "error", "ok"}
    assert min(seen[b"inside"], seen["ok"]) > 0


def attempt(folder: Folder) -> bytes | str:
    """What an ingest reads of the file when it opens it."""
    try:
        with folder.file(("docs", "a.md"), links=False) as descriptor:
            return os.read(descriptor, 100)
    except PackError as error:
        return error.code
