"""One look at unchanged files between two rounds, and as many `os.stat`: seconds, as JSON.

    python benchmarks/context_load.py FILES ROUNDS

The look is the whole of it, as a conversation does it after a round: in a thread, files of a glob,
with the folders in which new ones might be. Each round gives CPU and wall time of it, and the CPU
time of the floor.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from aish.config.model import Context, ContextFile
from aish.core.events import Place
from aish.engine.resources.resources import RunFiles
from aish.engine.steps.context_files.conversation_files import ConversationFiles

PLACE = Place("step", None, 1)
PER_FOLDER = 16
SETTLED = 2.1
"""Seconds after which the times of a file prove that it has not changed."""


async def measured(root: Path, paths: list[str], rounds: int) -> list[tuple[float, ...]]:
    runtime: Any = SimpleNamespace(emit=lambda _: None, mask=str, keep=lambda *_: None)
    settings = Context(files=(ContextFile("src/**/*.py", root, is_glob=True),))
    files = ConversationFiles(settings, root, RunFiles("0" * 12), runtime, PLACE)
    await files.opening()
    await anyio.sleep(SETTLED)
    await files.after_round(PLACE)
    found: list[tuple[float, ...]] = []
    for _ in range(rounds):
        begun, wall = time.process_time(), time.perf_counter()
        assert not await files.after_round(PLACE)
        between, ended = time.process_time(), time.perf_counter()
        for path in paths:
            os.stat(path)  # ruff: ignore[os-stat] - the floor, without what `Path` adds
        found.append((between - begun, ended - wall, time.process_time() - between))
    files.close()
    return found


def main() -> None:
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        paths = [root / "src" / f"p{n // PER_FOLDER}" / f"m{n}.py" for n in range(count)]
        for number, path in enumerate(paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"x = {number}\n" * 40)
        print(json.dumps(anyio.run(measured, root, [str(path) for path in paths], rounds)))


if __name__ == "__main__":
    main()
