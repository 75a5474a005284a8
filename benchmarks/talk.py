"""A session at a terminal: what it costs to draw an answer as the Markdown it is."""

from collections.abc import Callable, Iterator

from figures import PYTHON, ROOT, Bench, Row, against, ms

LOAD = str(ROOT / "benchmarks" / "talk_load.py")


def talk_deltas(bench: Bench) -> Iterator[Row]:
    def drawn(manner: str) -> Callable[[], float]:
        return lambda: bench.cost(PYTHON, LOAD, "20000", manner).cpu

    mine, floor = bench.pairs(drawn("markdown"), drawn("plain"))
    yield against("20,000 deltas drawn as Markdown, CPU, against plain", mine, floor, 3, ms)
    empty = bench.alone(lambda: bench.cost(PYTHON, LOAD, "1", "plain").cpu)
    name = "the same without the start of the process"
    yield against(name, mine - empty, floor - empty, 3, ms)
