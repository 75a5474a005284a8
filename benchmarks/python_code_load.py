"""Outlines of a Python file by the pack `py` and by the smallest programs: seconds, as JSON.

    python benchmarks/python_code_load.py warm|first FOLDER LINES ROUNDS
    python -I benchmarks/python_code_load.py outline FILE

`warm` is a call when the worker process runs, beside `ast.parse` of the same file; `first` is a
call that starts the worker, beside a process that does the same with tree-sitter: `outline`.
"""

import json
import sys


def outline(path: str) -> None:
    """The floor of a first call: no packs, no limits, no other process."""
    import tree_sitter
    import tree_sitter_python

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    with open(path, "rb") as stream:  # ruff: ignore[builtin-open, read-whole-file] - importing `pathlib` takes long
        tree = parser.parse(stream.read())
    rows = []
    stack = [(tree.root_node, 0)]
    while stack:
        node, depth = stack.pop()
        for child in node.named_children:
            if child.type in {"function_definition", "class_definition"}:
                name = child.child_by_field_name("name")
                assert name is not None
                assert name.text is not None
                start, end = child.start_point.row + 1, child.end_point.row + 1
                rows.append([child.type, name.text.decode(), start, end, depth])
                stack.append((child, depth + 1))
            elif child.child_count and "expression" not in child.type:
                stack.append((child, depth))
    print(json.dumps(rows))


def measured(what: str, folder: str, lines: int, rounds: int) -> None:
    import ast
    import subprocess
    import sysconfig
    import time
    from pathlib import Path

    import anyio

    from aish.packs.parse_worker import ParseWorker
    from aish.packs.py.pack import py_get_code_outline
    from aish.packs.workspace.confined_path import Folder
    from aish.packs.workspace.workspace import Workspace

    module = Path(sysconfig.get_path("stdlib"), "argparse.py").read_text("utf-8")
    source = (module * (lines // module.count("\n") + 1)).encode()
    path = Path(folder, "code.py")

    def write(number: int) -> None:
        # The worker remembers the last file: each round has another one.
        path.write_bytes(source + b"# %d\n" % number)

    def floor() -> None:
        if what == "warm":
            ast.parse(source)
        else:
            argv = [sys.executable, "-I", __file__, "outline", str(path)]
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)

    async def rows() -> list[tuple[float, float]]:
        worker = ParseWorker(None)
        place = Workspace(Folder(path.parent), path.parent, worker)
        found: list[tuple[float, float]] = []
        # The first round fills the caches.
        for number in range(rounds + 1):
            write(number)
            if what == "first":
                await worker.close()
            begun = time.perf_counter()
            answer = await py_get_code_outline.function(place, "code.py")
            between = time.perf_counter()
            floor()
            ended = time.perf_counter()
            assert answer.data["broken"] == []
            if number:
                found.append((between - begun, ended - between))
        await worker.close()
        return found

    print(json.dumps(anyio.run(rows)))


def main() -> None:
    if sys.argv[1] == "outline":
        outline(sys.argv[2])
    else:
        measured(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
