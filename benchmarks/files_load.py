"""Tools of the packs `fs`, `edit` and `git`, beside the smallest program that does it: JSON.

    python benchmarks/files_load.py find|tree|edit|text|regex|diff ROUNDS RG

The rows are the seconds of a call and of its floor, taken in turn.
"""

import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

Call = tuple[str, dict[str, Any]]
Floor = Callable[[], object]
LITERAL, REGEX = "needle_42", r"needle_\d+"


def tree(root: Path) -> Floor:
    """100,000 empty files in 1,000 folders."""
    for folder in range(1000):
        path = root / f"package{folder // 100}" / f"part{folder // 10 % 10}" / f"module{folder}"
        path.mkdir(parents=True)
        for number in range(100):
            ending = "py" if number % 3 == 0 else "txt"
            os.close(os.open(path / f"file{number}.{ending}", os.O_CREAT | os.O_WRONLY))
    return lambda: sum(len(files) for _, _, files in os.walk(root))


def texts(root: Path) -> None:
    """50 MB in 5,000 files, ten of which have a match."""
    drawn = random.Random(2)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - made-up words
    letters = string.ascii_lowercase
    words = ["".join(drawn.choices(letters, k=drawn.randint(2, 10))) for _ in range(3000)]
    for number in range(5000):
        lines: list[str] = []
        while sum(map(len, lines)) < 10_000:
            lines += [" ".join(drawn.choices(words, k=8)) for _ in range(20)]
        if number % 500 == 0:
            lines[50] = "needle_42 here"
        path = root / f"folder{number % 50}" / f"file{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def edited(root: Path) -> Floor:
    """A file of 1 MB whose line in the middle is replaced there and back."""
    lines = [f"line {number} of a long file\n" for number in range(36_000)]
    for name in ("mine", "floor"):
        (root / name).write_text("".join(lines))

    def floor() -> None:
        text = (root / "floor").read_text()
        assert text.count("line 18000 of") == 1
        with (root / "beside").open("w") as new:
            new.write(text.replace("line 18000 of", "line 18000 of"))
            new.flush()
            os.fsync(new.fileno())
        (root / "beside").rename(root / "floor")

    return floor


def repository(root: Path) -> Floor:
    """100 changed files of 200 lines."""
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for changed in (False, True):
        for number in range(100):
            lines = [f"line {line} of {number}\n" for line in range(200)]
            if changed:
                lines[100] = "changed\n"
            (root / f"file{number}.txt").write_text("".join(lines))
        if not changed:
            subprocess.run([*git, "add", "."], check=True)
            subprocess.run([*git, "commit", "-qm", "all"], check=True)
    return lambda: subprocess.run([*git, "diff"], check=True, stdout=subprocess.DEVNULL)


def prepared(measure: str, root: Path, rg: str) -> tuple[list[Call], Floor]:
    """The calls, made in turn, and the floor."""
    match measure:
        case "find":
            return [("file_find", {"glob": "**/*.py"})], tree(root)
        case "tree":
            return [("dir_tree", {"depth": 16})], tree(root)
        case "edit":
            texts_of = ("line 18000 of", "line 18000 in")
            calls: list[Call] = [
                ("file_edit", {"path": "mine", "old_text": old, "new_text": new})
                for old, new in (texts_of, texts_of[::-1])
            ]
            return calls, edited(root)
        case "diff":
            return [("git_diff", {})], repository(root)
    texts(root)
    query = LITERAL if measure == "text" else REGEX
    argv = [rg, "--no-config", "-n", query, str(root)]
    call: Call = ("file_search", {"query": query, "regex": measure == "regex"})
    return [call], lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


async def figures(packs: OpenPacks, calls: list[Call], floor: Floor, rounds: int) -> Any:
    found = []
    for number in range(rounds + 1):
        name, arguments = calls[number % len(calls)]
        begun = time.perf_counter()
        result = await packs.call(name, dict(arguments))
        between = time.perf_counter()
        floor()
        found.append((between - begun, time.perf_counter() - between))
        assert not result["isError"], result
    return found[1:]  # the first of each fills the caches


async def measured(measure: str, rounds: int, rg: str, root: Path) -> Any:
    calls, floor = prepared(measure, root, rg)
    reaper = Reaper()
    worker = ParseWorker(reaper)
    try:
        async with anyio.create_task_group() as tasks:
            services = PackServices(tasks=tasks, reaper=reaper, worker=worker)
            packs = open_packs(["git" if measure == "diff" else "fs", "edit"], root, services)
            await packs.start()
            found = await figures(packs, calls, floor, rounds)
            await packs.shutdown()
            await worker.close()
    finally:
        reaper.close()
    return found


def main() -> None:
    measure, rounds, rg = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(anyio.run(measured, measure, rounds, rg, Path(name).resolve())))


if __name__ == "__main__":
    main()
