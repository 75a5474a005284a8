"""A C file of 10,000 lines, shown as a skeleton by the tool, and parsed by tree-sitter alone.

    python benchmarks/c_code_load.py FOLDER ROUNDS

Prints the seconds of each round as JSON: the whole call of `c_get_skeleton` with a warm parser
(reading, parsing in its process, cutting), and `tree_sitter.Parser.parse` of the same bytes.
"""

import json
import sys
import time
from pathlib import Path

import anyio
import tree_sitter
import tree_sitter_c

from aish.packs.c.c_pack import c_get_skeleton
from aish.packs.parse_worker import ParseWorker
from aish.packs.workspace.confined_path import Folder
from aish.packs.workspace.workspace import Workspace

LINES = 10_000
PART = """\
/* Adds up what a list has; number N. */
static int sum_N(const struct item_N *items, size_t count, int *out)
{
    int total = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].value > N && (items[i].flags & FLAG_N) != 0) {
            total += items[i].value * 2;
        } else {
            total -= lookup("item N", items[i].weight, &items[i]);
        }
    }
    *out = total;
    return total > 0 ? 0 : -1;
}

#define FLAG_N (1u << (N % 32))
#ifdef WITH_NAMES
typedef struct item_N {
    int value, weight;
    unsigned flags;
    const char *name;
} item_N;
#else
struct item_N { int value, weight; unsigned flags; };
#endif
extern int register_N(struct item_N *item, void (*done)(int code, void *data));

"""


def code() -> bytes:
    parts = ["#include <stddef.h>\n"]
    per_part = PART.count("\n")
    parts += [PART.replace("N", str(number)) for number in range(LINES // per_part)]
    return "".join(parts).replace("FLAG_", "F").encode()


async def measured(folder: Path, rounds: int) -> list[tuple[float, float]]:
    source = code()
    (folder / "code.c").write_bytes(source)
    worker = ParseWorker(None)
    place = Workspace(Folder(folder), folder, worker)
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language()))
    found: list[tuple[float, float]] = []
    # The first round starts the parser and fills the caches.
    for number in range(rounds + 1):
        begun = time.perf_counter()
        answer = await c_get_skeleton.function(place, "code.c")
        between = time.perf_counter()
        parser.parse(source)
        ended = time.perf_counter()
        assert answer.data["broken"] == []
        assert "static int sum_1(" in answer.text
        if number:
            found.append((between - begun, ended - between))
    await worker.close()
    return found


if __name__ == "__main__":
    print(json.dumps(anyio.run(measured, Path(sys.argv[1]), int(sys.argv[2]))))
