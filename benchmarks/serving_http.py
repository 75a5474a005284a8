"""`aish serve` over HTTP: what a call through it takes, and how many clients it has.

Beside the smallest proxy, the SDK's server, and the two proxies of Python that people use, each
installed from the registry into an environment of its own and measured in the same round.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from figures import (
    AISH,
    PYTHON,
    ROOT,
    STDIO_SERVER,
    Bench,
    Row,
    at_most,
    http_server,
    ms,
)
from hub_client import Client

PEERS = ROOT / ".bench-peers"
NEWER = ("fastmcp>=4,<5",)
OLDER = ("mcp-proxy>=0.12,<1", "mcp<2")  # it works with the first SDK only
CHANGING_SERVER = str(ROOT / "tests" / "support" / "mcp_changing_server.py")
PROGRAM = str(ROOT / "benchmarks" / "hub_peers.py")
LOAD = str(ROOT / "benchmarks" / "hub_load.py")
CALLS = 600
CLIENTS = 1, 50
BIG = {"n": 2048}
NOTE = {"path": "note.txt"}
SECONDS = 60


def _peers() -> tuple[str, str]:
    """The Pythons of the peers: with the second SDK, and with the first."""
    found = []
    for name, wanted in (("newer", NEWER), ("older", OLDER)):
        folder = PEERS / name
        python = folder / "bin" / "python"
        if not (folder / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
            (folder / "done").touch()
        found.append(str(python))
    return found[0], found[1]


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@contextmanager
def _peer(bench: Bench, port: int, *argv: str) -> Generator[str]:
    """A server that listens on a port."""
    with subprocess.Popen(
        argv, cwd=bench.folder, env=bench.env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{argv} did not start") from None
                    time.sleep(0.02)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
            process.wait(10)


class Hub:
    """A running `aish serve` with an HTTP listener."""

    def __init__(self, process: "subprocess.Popen[bytes]", state: Path) -> None:
        self.pid = process.pid
        listeners = json.loads((state / "listeners.json").read_text())["listeners"]
        self.url = listeners[0]["listen"]
        self.token = (state / ".aish" / "token").read_text().strip()

    def load(self, *arguments: str) -> Any:
        return _load(self.url, self.token, *arguments)


@contextmanager
def _hub(bench: Bench, name: str, mcp: Mapping[str, object]) -> Generator[Hub]:
    state = bench.folder / f"{name}-state"
    path = bench.folder / f"{name}.yaml"
    settings = {"state": str(state), "listen": ["http://127.0.0.1:0/mcp"]}
    path.write_text(json.dumps({"aish": 1, "mcp": mcp, "serve": settings}))
    with subprocess.Popen(
        [AISH, "serve", str(path)],
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while not (
                (state / "listeners.json").exists() and (state / ".aish" / "token").exists()
            ):
                if process.poll() is not None:
                    raise RuntimeError("`aish serve` did not start")
                time.sleep(0.02)
            yield Hub(process, state)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


def _load(url: str, token: str | None, kind: str, *arguments: str) -> Any:
    environ = {**os.environ, **({} if token is None else {"HUB_TOKEN": token})}
    argv = [PYTHON, LOAD, kind, url, *arguments]
    return json.loads(subprocess.run(argv, env=environ, stdout=subprocess.PIPE, check=True).stdout)


def _files(bench: Bench) -> dict[str, object]:
    """A pack that reads files."""
    root = bench.folder / "files"
    root.mkdir(exist_ok=True)
    (root / "note.txt").write_text("Remember the milk.\n" * 10)
    return {"servers": {"fs": {"pack": ["fs"], "root": str(root)}}, "auto_approve": ["fs__*"]}


def _before(command: list[str], alias: str = "s") -> dict[str, object]:
    servers = {alias: {"command": command, "protocol": "legacy"}}
    return {"servers": servers, "auto_approve": [f"{alias}__*"]}


def proxied_http(bench: Bench) -> Iterator[Row]:
    port = _free_port()
    with http_server(bench) as direct_url:
        mcp = {"servers": {"s": {"url": direct_url}}, "auto_approve": ["s__*"]}
        with (
            _hub(bench, "proxied", mcp) as hub,
            _peer(bench, port, PYTHON, PROGRAM, "floor", str(port), direct_url) as floor_url,
        ):
            direct, mine = Client(direct_url, None), Client(hub.url, hub.token)
            floor = Client(floor_url, None)
            taken = [
                (mine.seconds("s__big", BIG), floor.seconds("big", BIG), direct.seconds("big", BIG))
                for _ in range(CALLS)
            ][CALLS // 10 :]
    mine_adds = [a - c for a, _, c in taken]
    floor_adds = [b - c for _, b, c in taken]
    p50, floor_p50 = median(mine_adds), median(floor_adds)
    p99 = quantiles(mine_adds, n=100)[98]
    name = "a call of 2 KB through `aish serve`, HTTP to HTTP: more than a direct one"
    ratio = p50 / floor_p50
    met = p50 <= 0.0013 and ratio <= 2
    target = f"+ {ms(0.0013)}, 2 of the floor"
    yield Row(f"{name}, p50", ms(p50), ms(floor_p50), ratio, target, met)
    yield at_most(f"{name}, p99", p99, 0.004)


def pack_call(bench: Bench) -> Iterator[Row]:
    many = _before([PYTHON, STDIO_SERVER, "--many", "500"])
    files = _files(bench)
    both = {
        "servers": {**files["servers"], **many["servers"]},  # type: ignore[dict-item]  # mappings
        "auto_approve": ["fs__*", "s__*"],
    }
    with _hub(bench, "few", files) as few, _hub(bench, "many", both) as more:
        clients = [Client(hub.url, hub.token) for hub in (few, more)]
        for client in clients:
            client.ask("tools/list", {})
        taken = [
            tuple(client.seconds("fs__file_read", NOTE) for client in clients) for _ in range(CALLS)
        ][CALLS // 10 :]
    mine, wide = (median(column) for column in zip(*taken, strict=True))
    yield at_most("a pack's tool through `aish serve`, HTTP: whole call, p50", mine, 0.0008)
    name = "the same with 500 more tools, against few"
    yield Row(name, ms(wide), ms(mine), wide / mine, "<= 1.1", wide / mine <= 1.1)


def pack_throughput(bench: Bench) -> Iterator[Row]:
    newer, _ = _peers()
    files = _files(bench)
    port = _free_port()
    with (
        _hub(bench, "packs", files) as hub,
        _peer(bench, port, newer, PROGRAM, "sdk", str(port), str(bench.folder / "files")) as peer,
    ):
        for clients in CLIENTS:
            more = [json.dumps(NOTE), "8000", str(clients)]
            rounds = [
                (
                    hub.load("calls", "fs__file_read", *more),
                    _load(peer, None, "calls", "file_read", *more),
                )
                for _ in range(3)
            ]
            name = f"calls/s of a pack's tool, HTTP, {_clients(clients)}, against the SDK's server"
            mine, theirs = _per_second(rounds)
            yield _times(name, mine, theirs, 2)
        pair = Client(hub.url, hub.token), Client(peer, None)
        taken = [
            (pair[0].seconds("fs__file_read", NOTE), pair[1].seconds("file_read", NOTE))
            for _ in range(CALLS)
        ][CALLS // 10 :]
    mine, theirs = (median(column) for column in zip(*taken, strict=True))
    name = "a pack's tool, HTTP, one client, against the SDK's server: p50"
    ratio = mine / theirs
    yield Row(name, ms(mine), ms(theirs), ratio, "<= 0.6", ratio <= 0.6)


def proxied_throughput(bench: Bench) -> Iterator[Row]:
    newer, older = _peers()
    command = [PYTHON, STDIO_SERVER]
    ports = _free_port(), _free_port()
    proxy = str(Path(older).with_name("mcp-proxy"))
    flags = ["--port", str(ports[1]), "--log-level", "ERROR", "--"]
    with (
        _hub(bench, "servers", _before(command)) as hub,
        _peer(bench, ports[0], newer, PROGRAM, "fastmcp", str(ports[0]), *command) as fastmcp,
        _peer(bench, ports[1], proxy, *flags, *command) as mcp_proxy,
    ):
        for clients in CLIENTS:
            more = [json.dumps(BIG), "4000", str(clients)]
            rounds = [
                (
                    hub.load("calls", "s__big", *more),
                    _load(fastmcp, None, "calls", "big", *more),
                    _load(mcp_proxy, None, "calls", "big", *more),
                )
                for _ in range(3)
            ]
            mine, first, second = _per_second(rounds)
            name = f"calls/s to a stdio server, HTTP, {_clients(clients)}"
            yield _times(f"{name}, against FastMCP's proxy", mine, first, 4)
            yield _times(f"{name}, against `mcp-proxy`", mine, second, 2)


def thousand_sessions(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "changing"
    folder.mkdir()
    lists = [
        [{"name": name, "inputSchema": {"type": "object"}} for name in "ab"[:n]] for n in (1, 2)
    ]
    (folder / "tools.json").write_text(json.dumps(lists))
    servers = {
        "s": {"command": [PYTHON, STDIO_SERVER], "protocol": "legacy"},
        "c": {"command": [PYTHON, CHANGING_SERVER, "--announce"], "cwd": str(folder)},
    }
    with _hub(bench, "sessions", {"servers": servers, "auto_approve": ["*__*"]}) as hub:
        arguments = [str(hub.pid), "1000", str(SECONDS), "200", "c__a"]
        found = hub.load("sessions", "s__big", json.dumps(BIG), *arguments)
    name = "1,000 clients with open streams"
    yield at_most(f"{name}: memory of each", found["memory"], 65536, _kib)
    yield at_most(f"{name}: idle, CPU", found["idle"], 0.02, _percent)
    yield at_most(f"{name}, 200 calls/s for {SECONDS} s: errors", found["errors"], 0, _count)
    yield at_most(f"{name}, 200 calls/s: p99", found["p99"], 0.05)
    yield at_most("`list_changed` at all 1,000 clients: wall", found["heard"], 1.0)


def growth(bench: Bench) -> Iterator[Row]:
    with _hub(bench, "growth", _files(bench)) as hub:
        more = [str(hub.pid), "200000", "10000"]
        found = hub.load("churn", "fs__file_read", json.dumps(NOTE), *more)
    name = "after 200,000 calls in 10,000 sessions"
    yield at_most(f"{name}: grown", found["memory"], 10 << 20, _kib)
    left = found["descriptors"] + found["children"]
    yield at_most(f"{name}: descriptors and children left", left, 0, _count)


def audit_record(bench: Bench) -> Iterator[Row]:
    folder = bench.folder / "audited"
    folder.mkdir()
    argv = [PYTHON, LOAD, "audit", str(folder)]
    found = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    yield at_most("both audit records of a call: CPU", found["cpu"], 60e-6, _us)


def _clients(number: int) -> str:
    return "one client" if number == 1 else f"{number} clients"


def _per_second(rounds: Sequence[Sequence[Any]]) -> list[float]:
    """The median of each column."""
    columns = zip(*rounds, strict=True)
    return [median(figure["per_second"] for figure in column) for column in columns]


def _times(name: str, mine: float, theirs: float, least: float) -> Row:
    ratio = mine / theirs
    return Row(name, f"{mine:,.0f}", f"{theirs:,.0f}", ratio, f">= {least:g}", ratio >= least)


def _kib(size: float) -> str:
    return f"{size / 1024:.0f} KiB"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _count(number: float) -> str:
    return f"{number:g}"
