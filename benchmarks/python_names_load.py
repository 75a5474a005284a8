"""Usages and subclasses over the standard library: seconds of each call, as JSON.

    python benchmarks/python_names_load.py ROUNDS

The library is copied without its tests. A first call starts the process that parses.
"""

import json
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from aish.packs.framework.pack import PackTool
from aish.packs.parse_worker import ParseWorker
from aish.packs.py.hierarchy import py_get_hierarchy
from aish.packs.py.usages import py_find_usages
from aish.packs.workspace.confined_path import Folder
from aish.packs.workspace.workspace import Workspace

CALLS: dict[str, tuple[bool, PackTool, dict[str, Any]]] = {
    "usages of a name: first call": (True, py_find_usages, {"name": "OrderedDict"}),
    "usages of `self`, 5,000 of them": (False, py_find_usages, {"name": "self", "limit": 5_000}),
    "subclasses of `Exception`: first call": (True, py_get_hierarchy, {"name": "Exception"}),
    "subclasses of `Exception`, and all of theirs": (
        False,
        py_get_hierarchy,
        {"name": "Exception", "depth": 100},
    ),
}


async def measured(root: Path, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in CALLS}
    folder = Folder(root)
    # The first round fills the caches.
    for number in range(rounds + 1):
        worker = ParseWorker(None)
        for name, (is_first, tool, arguments) in CALLS.items():
            if is_first:
                await worker.close()
            begun = time.perf_counter()
            answer = await tool.function(Workspace(folder, root, worker), path=".", **arguments)
            seconds = time.perf_counter() - begun
            assert answer.data.get("hits") or answer.data.get("classes")
            if number:
                found[name].append(seconds)
        await worker.close()
    folder.close()
    return found


def main() -> None:
    ignored = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "*.so")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "library"
        shutil.copytree(sysconfig.get_path("stdlib"), root, ignore=ignored)
        print(json.dumps(anyio.run(measured, root, int(sys.argv[1]))))


if __name__ == "__main__":
    main()
