"""`aish serve` at its standard streams: what a call through it takes more than a direct one."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from figures import AISH, PYTHON, ROOT, STDIO_SERVER, Bench, Row, at_most, ms

CALLS = 400
SIZE = 2048
TOOLS = 500


class Client:
    """A client that sends a request and waits for its answer, with nothing in between."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._number = 0
        self.ask(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "bench", "version": "1"},
            },
        )
        self._input.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()
        found = json.loads(self._output.readline())
        assert "result" in found, found
        return found["result"]

    def seconds(self, name: str) -> float:
        """How long a call takes whose result has 2 KB."""
        begun = time.perf_counter()
        self.ask("tools/call", {"name": name, "arguments": {"n": SIZE}})
        return time.perf_counter() - begun


@contextmanager
def _client(bench: Bench, *argv: str) -> Generator[Client]:
    with subprocess.Popen(
        argv,
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield Client(process)
        finally:
            process.kill()


def _file(bench: Bench, *flags: str) -> str:
    command = [PYTHON, STDIO_SERVER, *flags]
    servers = {"s": {"command": command, "protocol": "legacy"}}
    path = bench.folder / "served.yaml"
    path.write_text(json.dumps({"aish": 1, "mcp": {"servers": servers, "auto_approve": ["s__*"]}}))
    return str(path)


def proxied_call(bench: Bench) -> Iterator[Row]:
    with (
        _client(bench, PYTHON, STDIO_SERVER) as direct,
        _client(bench, AISH, "serve", _file(bench)) as hub,
    ):
        pairs = [(hub.seconds("s__big"), direct.seconds("big")) for _ in range(CALLS)]
    mine, floor = (median(column) for column in zip(*pairs[CALLS // 10 :], strict=True))
    name = "a call of 2 KB through `aish serve`, stdio to stdio: more than a direct one, p50"
    row = at_most(name, mine - floor, 0.0005)
    yield Row(name, ms(mine), ms(floor), mine / floor, f"+ {ms(0.0005)}", row.met)


def served_list(bench: Bench) -> Iterator[Row]:
    with _client(bench, AISH, "serve", _file(bench, "--many", str(TOOLS))) as hub:

        def seconds() -> float:
            begun = time.perf_counter()
            assert len(hub.ask("tools/list", {})["tools"]) > TOOLS
            return time.perf_counter() - begun

        seconds()
        taken = median(seconds() for _ in range(50))
    yield at_most(f"`tools/list` of {TOOLS} tools from `aish serve`: wall", taken, 0.003)


def pack_calls(bench: Bench) -> Iterator[Row]:
    root = bench.folder / "called"
    root.mkdir()
    (root / "note.txt").write_text("a line\n" * 20)
    servers = {"fs": {"pack": "fs", "root": str(root)}}
    path = bench.folder / "called.yaml"
    path.write_text(json.dumps({"aish": 1, "mcp": {"servers": servers, "auto_approve": ["fs__*"]}}))
    peer = str(ROOT / "benchmarks" / "hub_peers.py")

    def per_second(client: Client, name: str) -> float:
        begun = time.perf_counter()
        for _ in range(CALLS):
            client.ask("tools/call", {"name": name, "arguments": {"path": "note.txt"}})
        return CALLS / (time.perf_counter() - begun)

    with (
        _client(bench, AISH, "serve", str(path)) as hub,
        _client(bench, sys.executable, peer, "sdk", "0", str(root)) as sdk,
    ):
        rounds = [
            (per_second(hub, "fs__file_read"), per_second(sdk, "file_read")) for _ in range(8)
        ]
    mine, theirs = (median(column) for column in zip(*rounds[1:], strict=True))
    name = "calls/s of a pack's tool, stdio, one client, against the SDK's server"
    yield Row(name, f"{mine:,.0f}", f"{theirs:,.0f}", mine / theirs, ">= 2", mine >= 2 * theirs)


def served_packs(bench: Bench) -> Iterator[Row]:
    root = bench.folder / "served"
    root.mkdir()

    def seconds() -> float:
        begun = time.perf_counter()
        with _client(bench, AISH, "serve", "--pack", "fs", "--root", str(root)) as hub:
            hub.ask("tools/list", {})
            return time.perf_counter() - begun

    taken = bench.alone(seconds)
    yield at_most("`aish serve --pack fs`: start to the list of tools, wall", taken, 0.5)
