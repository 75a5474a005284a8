"""`make bench`: speed and size of whole processes, each beside the smallest program that does it.

Runs in a virtual environment of its own that holds the runtime dependencies and nothing else, as
a user's does (with `click` installed, importing httpx costs twice as much). Prints a table; never
fails for being slow. `--rounds N` (5), `--only WORD`, `--json FILE`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median

from endpoint import Endpoint, Script
from process import Cost, run

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".bench-venv"
PYTHON = str(VENV / "bin" / "python")
AISH = str(VENV / "bin" / "aish")
FLOOR = str(ROOT / "benchmarks" / "floor.py")
HTTP_SERVER = str(ROOT / "tests" / "support" / "mcp_http_server.py")
STDIO_SERVER = str(ROOT / "tests" / "support" / "mcp_stdio_server.py")


Measured = tuple[Cost, float]


@dataclass(frozen=True)
class Row:
    measure: str
    aish: str
    floor: str
    ratio: float | None
    target: str
    met: bool


@dataclass(frozen=True)
class Bench:
    folder: Path
    rounds: int
    env: dict[str, str]

    def cost(self, *argv: str) -> Cost:
        return run(argv, cwd=str(self.folder), env=self.env)

    def pairs(self, mine: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]:
        """Medians of both, taken in turn so that a drifting machine hits both."""
        mine(), floor()  # the first run of each fills the caches
        figures = [(mine(), floor()) for _ in range(self.rounds)]
        return median(a for a, _ in figures), median(b for _, b in figures)

    def alone(self, figure: Callable[[], float]) -> float:
        figure()
        return median(figure() for _ in range(self.rounds))


def install() -> None:
    """The environment that is measured: aish as a wheel, with its runtime dependencies."""
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, str(ROOT)], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(ROOT)], check=True)
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(VENV / "lib")], check=False)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def against(
    measure: str, mine: float, floor: float, most: float, show: Callable[[float], str] = ms
) -> Row:
    ratio = mine / floor
    return Row(measure, show(mine), show(floor), ratio, f"<= {most:g} of the floor", ratio <= most)


def at_most(measure: str, mine: float, most: float, show: Callable[[float], str] = ms) -> Row:
    return Row(measure, show(mine), "", None, f"<= {show(most)}", mine <= most)


def pipeline(
    bench: Bench, name: str, url: str, *, step: dict[str, object] | None = None, **more: object
) -> str:
    data = {
        "aish": 1,
        "name": name,
        "models": {"m": {"base_url": url, "model": "mock"}},
        "steps": [{"id": "go", "prompt": "Go on.", **(step or {})}],
        **more,
    }
    path = bench.folder / f"{name}.yaml"
    path.write_text(json.dumps(data, indent=1))
    return str(path)


def version(bench: Bench) -> Iterator[Row]:
    mine, floor = bench.pairs(
        lambda: bench.cost(AISH, "--version").cpu,
        lambda: bench.cost(PYTHON, "-c", "import typer").cpu,
    )
    yield against("`aish --version`, CPU, against `import typer`", mine, floor, 1.3)


def validate(bench: Bench) -> Iterator[Row]:
    steps = "".join(
        f"  - id: s{n}\n    prompt: |\n      Say {{{{ inputs.word }}}} in one line,\n"
        f"      then {n} more words about it.\n    model: m\n"
        for n in range(17)
    )
    path = bench.folder / "hundred.yaml"
    path.write_text(
        "aish: 1\nname: hundred\ninputs:\n  word: {type: string, default: sea}\n"
        'models:\n  m:\n    base_url: "http://127.0.0.1:1/v1"\n    model: mock\n'
        "    params: {temperature: 0}\nmcp:\n  servers:\n    repo: {pack: [fs], root: .}\n"
        '  auto_approve:\n    - "repo__file_*"\n    - repo__dir_list\n'
        "limits: {time: 10m}\nsteps:\n" + steps
    )
    cpu = bench.alone(lambda: bench.cost(AISH, "validate", str(path)).cpu)
    lines = len(path.read_text().splitlines())
    yield at_most(f"`aish validate` of {lines} lines, CPU", cpu, 0.30)


def one_turn(bench: Bench) -> Iterator[Row]:
    with Endpoint(Script(deltas=200)) as endpoint:
        file = pipeline(bench, "turn", endpoint.url)
        mine: list[Measured] = []
        floors: list[Measured] = []

        def measured(into: list[Measured], *argv: str) -> None:
            endpoint.forget()
            cost = bench.cost(*argv)
            into.append((cost, endpoint.times.arrived[0] - cost.begun))

        for _ in range(bench.rounds + 1):
            measured(mine, AISH, "run", file)
            measured(floors, PYTHON, FLOOR, "text", endpoint.url)

    def middle(costs: list[Measured], figure: Callable[[Measured], float]) -> float:
        return median(figure(row) for row in costs[1:])

    for name, figure in (
        ("one turn, 200 deltas: CPU", lambda row: row[0].cpu),
        ("one turn, 200 deltas: wall", lambda row: row[0].wall),
        ("one turn: start to first request, wall", itemgetter(1)),
    ):
        yield against(name, middle(mine, figure), middle(floors, figure), 1.6)
    peak = middle(mine, lambda row: row[0].peak)
    yield at_most("one turn: peak memory", peak, 60, lambda value: f"{value:.0f} MiB")


def per_turn(endpoint: Endpoint, first: int = 0) -> float:
    """Median time between an answer and the next request, from turn `first` on."""
    times = endpoint.times
    gaps = [b - a for a, b in zip(times.answered, times.arrived[1:], strict=False)]
    return float(median(gaps[first:]))


@contextmanager
def http_server(bench: Bench) -> Generator[str]:
    port = bench.folder / "mcp.port"
    port.unlink(missing_ok=True)
    with subprocess.Popen(
        [PYTHON, HTTP_SERVER, "--port-file", str(port), "--watch-stdin"], stdin=subprocess.PIPE
    ) as server:
        while not port.exists():
            if server.poll() is not None:
                raise RuntimeError("the mock MCP server did not start")
        try:
            yield f"http://127.0.0.1:{port.read_text().strip()}/mcp"
        finally:
            server.terminate()


def tool_turns(bench: Bench) -> Iterator[Row]:
    turns = 20
    script = Script(deltas=5, turns=turns)
    limits: dict[str, object] = {"max_tool_depth": turns + 1}
    approve = {"auto_approve": ["mock__*"]}
    with Endpoint(script) as endpoint, http_server(bench) as mcp:

        def gap(*argv: str) -> float:
            endpoint.forget()
            bench.cost(*argv)
            return per_turn(endpoint, first=1)

        over_http = {"servers": {"mock": {"url": mcp}}, **approve}
        file = pipeline(bench, "http", endpoint.url, mcp=over_http, step=limits)
        mine, floor = bench.pairs(
            lambda: gap(AISH, "run", file),
            lambda: gap(PYTHON, FLOOR, "http", endpoint.url, mcp, str(turns)),
        )
        yield against("20 tool turns over HTTP MCP, per turn", mine, floor, 2)
        server = [PYTHON, STDIO_SERVER]
        over_stdio = {"servers": {"mock": {"command": server}}, **approve}
        file = pipeline(bench, "stdio", endpoint.url, mcp=over_stdio, step=limits)
        mine, floor = bench.pairs(
            lambda: gap(AISH, "run", file),
            lambda: gap(PYTHON, FLOOR, "stdio", endpoint.url, str(turns), *server),
        )
        yield against("20 tool turns over stdio MCP, per turn", mine, floor, 2)


def many_deltas(bench: Bench) -> Iterator[Row]:
    def per_delta(script: Script, *argv: str) -> Callable[[], float]:
        def figure() -> float:
            script.deltas = 20_000
            many = bench.cost(*argv).cpu
            script.deltas = 200
            return (many - bench.cost(*argv).cpu) / 19_800

        return figure

    for per_write in (1, 20):
        script = Script(per_write=per_write)
        with Endpoint(script) as endpoint:
            file = pipeline(bench, "deltas", endpoint.url)
            mine, floor = bench.pairs(
                per_delta(script, AISH, "run", file),
                per_delta(script, PYTHON, FLOOR, "text", endpoint.url),
            )
        name = f"20,000 deltas, {per_write} a write: CPU per delta"
        yield against(name, mine, floor, 1.0, lambda s: f"{s * 1e6:.1f} us")


def parallel(bench: Bench) -> Iterator[Row]:
    script = Script(deltas=5, turns=1, calls=8, tool="mock__sleep", arguments='{"ms": 200}')
    with Endpoint(script) as endpoint, http_server(bench) as mcp:
        rules = {"auto_approve": ["mock__*"], "parallel": ["mock__*"]}
        servers = {"servers": {"mock": {"url": mcp}}, **rules}
        file = pipeline(bench, "parallel", endpoint.url, mcp=servers)

        def gap() -> float:
            endpoint.forget()
            bench.cost(AISH, "run", file)
            return endpoint.times.arrived[1] - endpoint.times.answered[0]

        yield at_most("8 parallel calls of 200 ms, answer to next request", bench.alone(gap), 0.235)


def long_conversation(bench: Bench) -> Iterator[Row]:
    turns, tail = 200, 180
    script = Script(deltas=5, turns=turns, arguments=json.dumps({"text": "x" * 2048}))
    with Endpoint(script) as endpoint, http_server(bench) as mcp:

        def gap(*argv: str) -> float:
            endpoint.forget()
            bench.cost(*argv)
            return per_turn(endpoint, first=tail)

        servers = {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]}
        limits: dict[str, object] = {"max_tool_depth": turns + 1}
        file = pipeline(bench, "long", endpoint.url, mcp=servers, step=limits)
        mine, floor = bench.pairs(
            lambda: gap(AISH, "run", file),
            lambda: gap(PYTHON, FLOOR, "http", endpoint.url, mcp, str(turns)),
        )
        yield against("200 tool turns of 2 KB, per turn at the end", mine, floor, 1.0)


MEASURES = (
    version,
    validate,
    one_turn,
    tool_turns,
    many_deltas,
    parallel,
    long_conversation,
)


def table(rows: list[Row]) -> str:
    lines = [
        "| measure | aish | floor | ratio | target | |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = "met" if row.met else "missed"
        lines.append(
            f"| {row.measure} | {row.aish} | {row.floor} | {ratio} | {row.target} | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="measures whose name holds this word")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="measure what is installed")
    options = parser.parse_args()
    if not options.keep:
        install()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="aish-bench-") as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8"}
        bench = Bench(Path(folder), options.rounds, env)
        for measure in MEASURES:
            if options.only in measure.__name__:
                for row in measure(bench):
                    rows.append(row)
                    print(f"{row.measure}: {row.aish}", file=sys.stderr)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
