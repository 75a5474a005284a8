"""A run against the smallest httpx program that does the same: start, turns, deltas, tools."""

import json
import subprocess
from collections.abc import Callable, Iterator
from operator import itemgetter
from statistics import median

from endpoint import Endpoint, Script
from figures import (
    AISH,
    FLOOR,
    PYTHON,
    STDIO_SERVER,
    Bench,
    Row,
    against,
    at_most,
    http_server,
    mean_gap,
    per_turn,
    pipeline,
)
from process import Cost

Measured = tuple[Cost, float]


def version(bench: Bench) -> Iterator[Row]:
    mine, floor = bench.pairs(
        lambda: bench.cost(AISH, "--version").cpu,
        lambda: bench.cost(PYTHON, "-c", "import typer").cpu,
    )
    yield against("`aish --version`, CPU, against `import typer`", mine, floor, 1.3)


def help_screen(bench: Bench) -> Iterator[Row]:
    mine, floor = bench.pairs(
        lambda: bench.cost(AISH, "--help").cpu,
        lambda: bench.cost(PYTHON, "-c", "import typer").cpu,
    )
    yield against("`aish --help`, CPU, against `import typer`", mine, floor, 1.8)


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


def tool_listing(bench: Bench) -> Iterator[Row]:
    """`aish tools` with every pack whose libraries are installed, and with none."""
    heads = {
        "none": "",
        "packs": f"mcp: {{servers: {{repo: {{pack: [{_packs()}], root: root}}}}}}\n",
    }
    (bench.folder / "root").mkdir()
    for name, mcp in heads.items():
        model = "models: {m: {base_url: 'http://127.0.0.1:1/v1', model: mock}}\n"
        (bench.folder / f"{name}.yaml").write_text(f"aish: 1\n{model}{mcp}prompt: Go on.\n")

    def cost(name: str) -> float:
        return bench.cost(AISH, "tools", str(bench.folder / f"{name}.yaml"), "--format", "json").cpu

    packs, none = bench.pairs(lambda: cost("packs"), lambda: cost("none"))
    yield at_most("`aish tools` of all packs: added CPU", packs - none, 0.060)


def _packs() -> str:
    """The packs that can be opened in the measured environment."""
    script = (
        "from importlib.util import find_spec\n"
        "from aish.packs.catalogue import PACKS\n"
        "print(', '.join(n for n, one in PACKS.items() if all(map(find_spec, one.needs))))"
    )
    argv = [PYTHON, "-c", script]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


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

    for name, figure, bound in (
        ("one turn, 200 deltas: CPU", lambda row: row[0].cpu, 1.15),
        ("one turn, 200 deltas: wall", lambda row: row[0].wall, 1.15),
        ("one turn: start to first request, wall", itemgetter(1), 1.25),
    ):
        yield against(name, middle(mine, figure), middle(floors, figure), bound)
    peak = middle(mine, lambda row: row[0].peak)
    yield at_most("one turn: peak memory", peak, 60, lambda value: f"{value:.0f} MiB")


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
        yield against("20 tool turns over HTTP MCP, per turn", mine, floor, 0.9)
        server = [PYTHON, STDIO_SERVER]
        over_stdio = {"servers": {"mock": {"command": server}}, **approve}
        file = pipeline(bench, "stdio", endpoint.url, mcp=over_stdio, step=limits)
        mine, floor = bench.pairs(
            lambda: gap(AISH, "run", file),
            lambda: gap(PYTHON, FLOOR, "stdio", endpoint.url, str(turns), *server),
        )
        yield against("20 tool turns over stdio MCP, per turn", mine, floor, 1.1)


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
        most = 0.6 if per_write == 1 else 0.75
        yield against(name, mine, floor, most, lambda s: f"{s * 1e6:.1f} us")


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


def tenth_turn(bench: Bench) -> Iterator[Row]:
    """The turns about the tenth of a conversation with results of 2 KB."""
    turns = 12
    script = Script(deltas=5, turns=turns, arguments=json.dumps({"text": "x" * 2048}))
    with Endpoint(script) as endpoint, http_server(bench) as mcp:

        def gap(*argv: str) -> float:
            endpoint.forget()
            bench.cost(*argv)
            return per_turn(endpoint, first=7)

        servers = {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]}
        file = pipeline(bench, "tenth", endpoint.url, mcp=servers, step={"max_tool_depth": turns})
        mine, floor = bench.pairs(
            lambda: gap(AISH, "run", file),
            lambda: gap(PYTHON, FLOOR, "http", endpoint.url, mcp, str(turns)),
        )
        yield against("tool turns of 2 KB, the tenth", mine, floor, 1.0)


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
        yield against("200 tool turns of 2 KB, per turn at the end", mine, floor, 0.5)


def shortened_conversation(bench: Bench) -> Iterator[Row]:
    """Old results left out on the way: the last hundred turns against an early hundred."""
    turns = 1000
    text = json.dumps({"text": "x" * 2048})
    script = Script(deltas=5, turns=turns, arguments=text, counts=True)
    with Endpoint(script) as endpoint, http_server(bench) as mcp:
        more = {
            "mcp": {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]},
            "context": {"max_tokens": 50_000},
        }
        limits: dict[str, object] = {"max_tool_depth": turns}
        file = pipeline(bench, "shortened", endpoint.url, step=limits, **more)
        early: list[float] = []

        def late() -> float:
            endpoint.forget()
            bench.cost(AISH, "run", file)
            early.append(mean_gap(endpoint, 100, 200))
            return mean_gap(endpoint, turns - 100, turns)

        last = bench.alone(late)
        first = median(early[1:])
        name = f"{turns} tool turns of 2 KB, shortened: a turn at the end against turn 100 to 200"
        yield against(name, last, first, 2)
