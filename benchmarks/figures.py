"""What every measure needs: the programs, a row of the table, a pipeline file, a tool server."""

import json
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from endpoint import Endpoint
from process import Cost, run

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".bench-venv"
PYTHON = str(VENV / "bin" / "python")
AISH = str(VENV / "bin" / "aish")
FLOOR = str(ROOT / "benchmarks" / "floor.py")
HTTP_SERVER = str(ROOT / "tests" / "support" / "mcp_http_server.py")
STDIO_SERVER = str(ROOT / "tests" / "support" / "mcp_stdio_server.py")


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


def per_turn(endpoint: Endpoint, first: int = 0) -> float:
    """Median time between an answer and the next request, from turn `first` on."""
    times = endpoint.times
    gaps = [b - a for a, b in zip(times.answered, times.arrived[1:], strict=False)]
    return float(median(gaps[first:]))


def mean_gap(endpoint: Endpoint, first: int, last: int) -> float:
    """Mean time between an answer and the next request: what comes only now and then counts."""
    times = endpoint.times
    gaps = [b - a for a, b in zip(times.answered, times.arrived[1:], strict=False)][first:last]
    return sum(gaps) / len(gaps)


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
