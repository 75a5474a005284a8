"""Pages of the web: from HTML to Markdown."""

import json
import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, ROOT, Bench, Row, ms

LOAD = str(ROOT / "benchmarks" / "pages_load.py")
MOST, MORE = 1.5, 0.010


def page_markdown(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, LOAD, str(4 * bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    mine, floor = map(median, zip(*json.loads(done.stdout), strict=True))
    yield Row(
        "`web_fetch` of 1 MB of HTML as Markdown, wall, against the library",
        ms(mine),
        ms(floor),
        mine / floor,
        f"<= {MOST:g} of the floor + {ms(MORE)}",
        mine <= MOST * floor + MORE,
    )
