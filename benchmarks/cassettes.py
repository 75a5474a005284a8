"""What cassettes cost: to load one, to replay a turn, to record while streaming, to test many."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from endpoint import Endpoint, Script
from figures import AISH, PYTHON, Bench, Row, at_most, http_server, pipeline
from process import run

_INTERACTIONS = 2_000
_BYTES = 5_000_000
_TURNS = 200
_CASES = 50
_MORE_ROUNDS = 8

_WRITE = f"""
import sys
from pathlib import Path
from aish.cassettes.format.interaction import (
    Chunk, Interaction, RecordingMetadata, Request, Response,
)
from aish.cassettes.format.layout import whole
def exchange(number):
    body = b'{{"model": "mock", "messages": [{{"role": "user", "content": "%d %s"}}]}}' % (
        number, b"word " * 200)
    said = b"".join(b'data: {{"choices": [{{"delta": {{"content": "piece %d of it"}}}}]}}\\n\\n' % n
        for n in range(20))
    size = len(said) // 20
    chunks = tuple(Chunk(size, n / 100) for n in range(19)) + (Chunk(len(said) - 19 * size, 0.2),)
    return Interaction(Request("POST", "http://127.0.0.1:1/v1/chat/completions", (), body),
        Response(200, "OK", (("content-type", "text/event-stream"),), said, chunks))
head = RecordingMetadata(True, "bench", "2026-11-21T00:00:00Z")
text = whole(head, [exchange(number) for number in range({_INTERACTIONS})])
Path(sys.argv[1]).write_text(text, encoding="utf-8")
"""
_LOAD = """
import sys, time
from pathlib import Path
from aish.cassettes.format.file import load
begun = time.perf_counter()
cassette = load(Path(sys.argv[1]))
print(time.perf_counter() - begun, len(cassette.interactions))
"""


def cassette_load(bench: Bench) -> Iterator[Row]:
    path = bench.folder / "large.yaml"
    bench.cost(PYTHON, "-c", _WRITE, str(path))
    size = path.stat().st_size
    assert size > _BYTES, f"the cassette has only {size} bytes"

    def seconds() -> float:
        said = subprocess.run(
            [PYTHON, "-c", _LOAD, str(path)], env=bench.env, capture_output=True, check=True
        )
        figure, count = said.stdout.split()
        assert int(count) == _INTERACTIONS
        return float(figure)

    name = f"load of a cassette of {size / 1e6:.1f} MB and {_INTERACTIONS} interactions, wall"
    yield at_most(name, bench.alone(seconds), 0.5)


def cassette_replay(bench: Bench) -> Iterator[Row]:
    """200 turns against none: what is left is the turns'. There is a key to be looked for."""
    bench = replace(bench, env={**bench.env, "MOCK_KEY": "sk-0123456789abcdefABCDEF"})
    script = Script(deltas=5, turns=_TURNS, arguments=json.dumps({"text": "x" * 512}))
    long, short = bench.folder / "long-replay.yaml", bench.folder / "short-replay.yaml"
    limits: dict[str, object] = {"max_tool_depth": _TURNS + 1}
    with Endpoint(script) as endpoint, http_server(bench) as mcp:
        servers = {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]}
        models = {"m": {"base_url": endpoint.url, "model": "mock", "key_env": "MOCK_KEY"}}
        file = pipeline(bench, "replayed", endpoint.url, mcp=servers, step=limits, models=models)
        bench.cost(AISH, "run", file, "--record", str(long))
        script.turns = 0
        bench.cost(AISH, "run", file, "--record", str(short))
    per_turn = bench.alone(
        lambda: (
            (
                bench.cost(AISH, "run", file, "--replay", str(long)).wall
                - bench.cost(AISH, "run", file, "--replay", str(short)).wall
            )
            / _TURNS
        )
    )
    yield at_most(f"replay of {_TURNS} tool turns, wall per turn", per_turn, 0.005)


def cassette_size(bench: Bench) -> Iterator[Row]:
    """Each request holds the whole conversation, 84 MB in all."""
    script = Script(deltas=5, turns=_TURNS, arguments=json.dumps({"text": "x" * 2048}))
    path = bench.folder / "long-cassette.yaml"
    with Endpoint(script) as endpoint, http_server(bench) as mcp:
        servers = {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]}
        limits: dict[str, object] = {"max_tool_depth": _TURNS + 1}
        file = pipeline(bench, "conversation", endpoint.url, mcp=servers, step=limits)
        bench.cost(AISH, "run", file, "--record", str(path))
    name = f"{_TURNS} tool turns of 2 KB: size of the cassette"
    yield at_most(name, path.stat().st_size, 4e6, lambda size: f"{size / 1e6:.1f} MB")


def _first_byte(bench: Bench, *argv: str) -> float:
    """Seconds from the start of a process to the first byte on its stdout."""
    begun = time.perf_counter()
    with subprocess.Popen(
        argv,
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(1), f"{argv} printed nothing"
        seconds = time.perf_counter() - begun
        child.stdout.read()
    assert child.returncode == 0, f"{argv} ended with {child.returncode}"
    return seconds


def cassette_first_byte(bench: Bench) -> Iterator[Row]:
    with Endpoint(Script(deltas=200)) as endpoint:
        file = pipeline(bench, "streamed", endpoint.url)
        plain = [AISH, "run", file, "--stream"]
        # The difference is smaller than what a shared machine adds to a start: many more of them.
        many = replace(bench, rounds=bench.rounds * _MORE_ROUNDS)
        recording, live = many.pairs(
            lambda: _first_byte(bench, *plain, "--record", str(bench.folder / "streamed.cassette")),
            lambda: _first_byte(bench, *plain),
        )
    name = f"start to first streamed byte, {live * 1000:.0f} ms: more while recording, wall"
    yield at_most(name, recording - live, 0.010)


def cassette_deltas(bench: Bench) -> Iterator[Row]:
    """What a delta costs more if it is recorded: noted, looked through, laid out, written."""
    script = Script(per_write=20)
    with Endpoint(script) as endpoint:
        file = pipeline(bench, "recorded", endpoint.url)
        record = ("--record", str(bench.folder / "recorded.cassette"))

        def per_delta(*more: str) -> float:
            script.deltas = 20_000
            many = bench.cost(AISH, "run", file, *more).cpu
            script.deltas = 200
            return (many - bench.cost(AISH, "run", file, *more).cpu) / 19_800

        recording, live = bench.pairs(lambda: per_delta(*record), per_delta)
    name = "20,000 deltas, 20 a write: more CPU per delta while recording"
    yield at_most(name, recording - live, 50e-6, lambda s: f"{s * 1e6:.1f} us")


def cassette_cuts(bench: Bench) -> Iterator[Row]:
    """What a piece of an answer costs in a replay, which hands over each as it was cut."""
    script = Script()
    long, short = bench.folder / "long-cuts.yaml", bench.folder / "short-cuts.yaml"
    with Endpoint(script) as endpoint:
        file = pipeline(bench, "cut", endpoint.url)
        for script.deltas, cassette in ((20_000, long), (200, short)):
            bench.cost(AISH, "run", file, "--record", str(cassette))
    per_cut = bench.alone(
        lambda: (
            (
                bench.cost(AISH, "run", file, "--replay", str(long)).cpu
                - bench.cost(AISH, "run", file, "--replay", str(short)).cpu
            )
            / 19_800
        )
    )
    name = "20,000 deltas, 1 a write: CPU per delta in a replay"
    yield at_most(name, per_cut, 50e-6, lambda s: f"{s * 1e6:.1f} us")


def cassette_tests(bench: Bench) -> Iterator[Row]:
    """Ten files of five cases each, every case with a tool call and a streamed answer."""
    folder = bench.folder / "tested"
    folder.mkdir()
    script = Script(deltas=50, turns=1)
    with Endpoint(script) as endpoint, http_server(bench) as mcp:
        servers = {"servers": {"mock": {"url": mcp}}, "auto_approve": ["mock__*"]}
        for number in range(_CASES // 5):
            name = f"case{number}"
            tests = [
                {
                    "name": f"answers {n}",
                    "cassette": f"{name}.cassette.yaml",
                    "expect": [{"tool_called": "mock__echo"}],
                }
                for n in range(5)
            ]
            file = Path(pipeline(bench, f"tested/{name}", endpoint.url, mcp=servers, tests=tests))
            cassette = str(file.with_name(f"{name}.cassette.yaml"))
            bench.cost(AISH, "record", str(file), "-o", cassette)
    walls = []
    for _ in range(bench.rounds + 1):
        cost = run([AISH, "test", str(folder), "-n", "2"], cwd=str(bench.folder), env=bench.env)
        walls.append(cost.wall)
    yield at_most(
        f"`aish test` over {_CASES} cases, `-n 2`, wall",
        median(walls[1:]),
        5.0,
        lambda s: f"{s:.2f} s",
    )
