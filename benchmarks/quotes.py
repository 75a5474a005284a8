"""Evidence: what it costs to look up the quotes of an answer in what was read."""

import subprocess
from collections.abc import Iterator
from statistics import median

from figures import PYTHON, Bench, Row, at_most, ms

_LOAD = """
import random, sys, time
from aish.config.model import Quoted
from aish.engine.expectations.quoted import Passage, Quote, QuoteSearch, describe, evidence_of
chance = random.Random(1)
letters = "etaoinshrdlucmfwypvbgkjqxz"
def word():
    return "".join(chance.choices(letters, range(26, 0, -1), k=chance.randint(2, 9)))
words = [word() for _ in range(5_000)]
lines = [" ".join(chance.choices(words, k=8)) for _ in range(27_000)]
text = "\\n    ".join(lines)[: 1 << 20]
files = [text[at : at + (1 << 16)] for at in range(0, len(text), 1 << 16)]
passages = [
    Passage(one, path=f"{n}.py", lines=range(1, one.count("\\n") + 2))
    for n, one in enumerate(files)
]
quotes = []
for number in range(200):
    file, length = chance.choice(files), chance.randint(20, 160)
    begin = chance.randrange(len(file) - length)
    quote = file[begin : begin + length]
    quotes.append(Quote(str(number), quote if number % 4 else quote[:10] + "0" + quote[11:]))
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    search = QuoteSearch(passages, Quoted())
    found = search.look_up(quotes)
    told = [evidence_of(one, search, ()) for one in found]
    describe(found, told, search)
    print(time.perf_counter() - begun)
    assert sum(one.state == "found" for one in found) == 150
"""


def quotes(bench: Bench) -> Iterator[Row]:
    argv = [PYTHON, "-c", _LOAD, str(bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    wall = median(map(float, done.stdout.split()))
    yield at_most("`quoted`: 200 quotes in 1 MiB of 16 files: wall", wall, 0.1, ms)
