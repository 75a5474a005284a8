"""Each wire against the smallest httpx program, and against the library of its vendor."""

import subprocess
from collections.abc import Callable, Iterator

from endpoint import Endpoint, Script
from figures import AISH, FLOOR, PYTHON, ROOT, Bench, Row, against, http_server, per_turn

SDKS = ("anthropic>=2,<3", "openai>=3,<4")
SDK = str(ROOT / "benchmarks" / "vendor_sdks.py")
VENDOR = {"chat": "openai", "messages": "anthropic", "responses": "openai"}
TURNS = 20
MANY, FEW = 20_000, 200


def _file(bench: Bench, name: str, api: str, url: str, mcp: str = "") -> str:
    tools = (
        f'mcp: {{servers: {{mock: {{url: "{mcp}"}}}}, auto_approve: ["mock__*"]}}\n' if mcp else ""
    )
    path = bench.folder / f"{name}-{api}.yaml"
    path.write_text(
        f'aish: 1\nmodels: {{m: {{api: {api}, base_url: "{url}", model: mock}}}}\n{tools}'
        f"steps: [{{id: go, prompt: Go on., max_tool_depth: {TURNS + 1}}}]\n"
    )
    return str(path)


def _each() -> Iterator[tuple[str, Script]]:
    """The wires, with the libraries of their vendors where they are measured."""
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *SDKS], check=True)
    for api in VENDOR:
        yield api, Script(api=api)


def wire_start(bench: Bench) -> Iterator[Row]:
    """From the start of the process to its first request."""
    for api, script in _each():
        script.deltas = FEW
        with Endpoint(script) as endpoint:

            def first(*argv: str, at: Endpoint = endpoint) -> float:
                at.forget()
                begun = bench.cost(*argv).begun
                return at.times.arrived[0] - begun

            run = (AISH, "run", _file(bench, "start", api, endpoint.url))
            floor = (PYTHON, FLOOR, "text", endpoint.url, api)
            mine, least = bench.pairs(_call(first, *run), _call(first, *floor))
        yield against(f"`api: {api}`: start to first request, wall", mine, least, 1.3)


def wire_deltas(bench: Bench) -> Iterator[Row]:
    """What a delta costs, against the library of the vendor in the same round."""
    for api, script in _each():
        with Endpoint(script) as endpoint:

            def per_delta(*argv: str, script: Script = script) -> float:
                script.deltas = MANY
                many = bench.cost(*argv).cpu
                script.deltas = FEW
                return (many - bench.cost(*argv).cpu) / (MANY - FEW)

            run = (AISH, "run", _file(bench, "deltas", api, endpoint.url))
            vendor = (PYTHON, SDK, api, "text", endpoint.url)
            mine, theirs = bench.pairs(_call(per_delta, *run), _call(per_delta, *vendor))
        name = f"`api: {api}`, {MANY:,} deltas: CPU per delta, against `{VENDOR[api]}`"
        yield against(name, mine, theirs, 0.3, lambda seconds: f"{seconds * 1e6:.1f} us")


def wire_tool_turns(bench: Bench) -> Iterator[Row]:
    """Turns with a call over HTTP MCP: from an answer to the next request."""
    for api, script in _each():
        script.deltas, script.turns = 5, TURNS
        with Endpoint(script) as endpoint, http_server(bench) as mcp:

            def gap(*argv: str, at: Endpoint = endpoint) -> float:
                at.forget()
                bench.cost(*argv)
                assert len(at.times.arrived) == TURNS + 1
                return per_turn(at, first=1)

            run = (AISH, "run", _file(bench, "tools", api, endpoint.url, mcp))
            vendor = (PYTHON, SDK, api, "tools", endpoint.url, mcp)
            mine, theirs = bench.pairs(_call(gap, *run), _call(gap, *vendor))
        name = f"`api: {api}`, {TURNS} tool turns, per turn, against `{VENDOR[api]}`"
        yield against(name, mine, theirs, 1)


def _call(figure: Callable[..., float], *argv: str) -> Callable[[], float]:
    return lambda: figure(*argv)
