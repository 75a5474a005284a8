"""A hub under load for a long time: calls, reloads, and a server that is killed again and again.

    python tests/support/hub_soak.py [--seconds 600] [--rate 200]

Eight clients on a socket file and four over HTTP call tools at a steady rate, beside a reload every
five seconds (some of a broken file) and a `kill -9` of a server every seven. Prints what happened
as JSON, and ends with 1 if an error was not one that the contract names, memory grew, a client was
cut off, or something was left after SIGTERM.
"""

import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp_processes import is_alive
from plain_http import PLAIN

from aish.system.files import state_of_servers

SERVER = Path(__file__).with_name("mcp_stdio_server.py")
LINE_CLIENTS, HTTP_CLIENTS = 8, 4
RELOAD_SECONDS, KILL_SECONDS, SAMPLE_SECONDS = 5.0, 7.0, 2.0
GROWTH_KIB = 10 * 1024
PATIENCE = 30.0
META = "io.modelcontextprotocol/"
MODERN = {
    f"{META}protocolVersion": "2026-07-28",
    f"{META}clientInfo": {"name": "soak", "version": "1"},
    f"{META}clientCapabilities": {},
}
NAMED = re.compile(
    r"unknown tool: (victim|extra)__|\[aish\] (victim|extra): "
    r"(tool transport error: (the server ended with signal 9|.*is not connected"
    r"|the server is closed|the server no longer reads its stdin|the server is not running)"
    r"|the server is not connected: .*; it is tried again"
    r"|the tool is not offered any more|tool call denied)"
    r"|^\[aish\] tool call denied: (victim|extra)__echo has changed"
    r"|^\[aish\] \w+: busy: "
)
"""What a call may be answered where its server was killed, or is in the file no more."""


@dataclass
class Report:
    """What happened."""

    seconds: float = 0.0
    calls: int = 0
    good: int = 0
    named: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    reloads: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    latencies_ms: dict[str, float] = field(default_factory=dict)
    memory_kib: dict[str, float] = field(default_factory=dict)
    exit_code: int | None = None
    left: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Why the hub has not stood it."""
        found = [f"{count} x {text}" for text, count in self.other.items()]
        if self.exit_code != 0:
            found.append(f"exit code {self.exit_code}")
        if self.memory_kib.get("grown", 0.0) > GROWTH_KIB:
            found.append(f"memory has grown by {self.memory_kib['grown']:.0f} KiB")
        if not (self.good and self.kills and self.reloads["ok"]):
            found.append("nothing was called, killed or reloaded")
        return found + [f"left: {one}" for one in self.left]


class Soak:
    """The folder, the hub in it, and what is known of it."""

    def __init__(self, folder: Path, seconds: float, rate: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.rate = rate
        self.report = Report()
        self.note = folder / "victims"
        self.latencies: list[float] = []
        self.samples: list[int] = []
        self.is_over = False
        self.pid = 0

    def write_file(self, version: int) -> None:
        """The file of a version: what is in it changes from one to the next."""
        command = [sys.executable, str(SERVER)]
        victim = [*command, "--note-pid", str(self.note)]
        servers: dict[str, Any] = {
            "victim": {"command": victim},
            "steady": {"command": command},
            "fs": {"pack": "fs", "root": "."},
        }
        rules = ["*__echo", "*__add", "fs__file_read"]
        if version % 2:
            servers = {"extra": {"command": command}, **servers}
        deny = ["steady__fail"] if version % 3 else []
        text = json.dumps(
            {
                "aish": 1,
                "mcp": {"servers": servers, "auto_approve": rules, "deny": deny},
                "serve": {"audit": {"rotate": "1MiB", "keep": 5}},
            }
        )
        if version % 4 == 3:
            text = text.replace('"servers"', '"serverz"', 1)
        (self.folder / "p.yaml").write_text(text, encoding="utf-8")

    async def run(self) -> Report:
        """Start the hub, load it for so long, and end it."""
        self.write_file(0)
        (self.folder / "note.md").write_text("hello\n", encoding="utf-8")
        command = [sys.executable, "-m", "aish", "serve", "p.yaml"]
        command += ["--unix", "run/s", "--http", "127.0.0.1:0"]
        with (self.folder / "stderr").open("wb") as stderr:
            process = await anyio.open_process(
                command, cwd=self.folder, stdin=None, stdout=stderr, stderr=stderr
            )
        self.pid = process.pid
        began = time.monotonic()
        await self._until((state_of_servers(self.folder) / "listeners.json").exists)
        async with anyio.create_task_group() as tasks:
            for number in range(LINE_CLIENTS):
                tasks.start_soon(self._line_client, number)
            for number in range(HTTP_CLIENTS):
                tasks.start_soon(self._http_client, LINE_CLIENTS + number)
            tasks.start_soon(self._reload, process.pid)
            tasks.start_soon(self._kill)
            tasks.start_soon(self._sample, process.pid)
            await anyio.sleep(self.seconds)
            self.is_over = True
        children = _descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(PATIENCE):
            self.report.exit_code = await process.wait()
        with anyio.move_on_after(PATIENCE):
            await self._until(lambda: not any(map(is_alive, children)))
        self._finish(children, time.monotonic() - began)
        return self.report

    def _finish(self, children: set[int], seconds: float) -> None:
        report = self.report
        report.seconds = round(seconds, 1)
        report.left = [f"process {pid}" for pid in sorted(children) if is_alive(pid)]
        for path in (self.folder / "run" / "s", state_of_servers(self.folder) / "listeners.json"):
            if path.exists():
                report.left.append(str(path))
        told = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")
        report.reloads["ok"] = told.count("info: the file is reloaded")
        report.reloads["failed"] = told.count("error: the file is not reloaded")
        if "Traceback" in told or "a request failed" in told:
            report.other["stderr: " + told[-2000:]] += 1
        if self.latencies:
            cuts = statistics.quantiles(self.latencies, n=100)
            report.latencies_ms = {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)}
        # The first third fills caches.
        third = len(self.samples) // 3
        if third:
            early = statistics.median(self.samples[third : 2 * third])
            late = statistics.median(self.samples[2 * third :])
            report.memory_kib = {"early": early, "late": late, "grown": late - early}

    async def _until(self, is_so: Any) -> None:
        with anyio.fail_after(PATIENCE):
            while not is_so():  # ruff: ignore[async-busy-wait] - other processes set no event of ours
                await anyio.sleep(0.05)

    async def _reload(self, pid: int) -> None:
        version = 0
        while not self.is_over:
            await anyio.sleep(RELOAD_SECONDS)
            version += 1
            self.write_file(version)
            os.kill(pid, signal.SIGHUP)

    async def _kill(self) -> None:
        while not self.is_over:
            await anyio.sleep(KILL_SECONDS)
            pid = int(self.note.read_text(encoding="utf-8").split()[-1])
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
                self.report.kills += 1

    async def _sample(self, pid: int) -> None:
        while not self.is_over:
            await anyio.sleep(SAMPLE_SECONDS)
            self.samples.append(_memory_kib(pid))

    def _call(self, number: int) -> dict[str, Any]:
        text = f"text {number}"
        return (
            {"name": "steady__echo", "arguments": {"text": text}},
            {"name": "victim__echo", "arguments": {"text": text}},
            {"name": "fs__file_read", "arguments": {"path": "note.md"}},
            {"name": "extra__echo", "arguments": {"text": text}},
            {"name": "steady__add", "arguments": {"a": number, "b": 1}},
        )[number % 5]

    def _judge(self, answer: dict[str, Any], call: dict[str, Any], began: float) -> None:
        """Count an answer: a success has to be the right one."""
        self.report.calls += 1
        self.latencies.append((time.monotonic() - began) * 1000)
        result = answer.get("result")
        if result is None:
            said = answer["error"]["message"]
        else:
            said = "\n".join(block["text"] for block in result["content"])
            if not result.get("isError"):
                wanted = call["arguments"].get("text")
                if wanted is None or said == wanted:
                    self.report.good += 1
                else:
                    self.report.other[f"{call} was answered {said}"] += 1
                return
        kind = self.report.named if NAMED.search(said) else self.report.other
        kind[re.sub(r"\d+", "N", said)[:300]] += 1

    async def _paced(self, call: Any, number: int) -> None:
        """Call again and again: all clients together at the wanted rate."""
        clients = LINE_CLIENTS + HTTP_CLIENTS
        pause = clients / self.rate
        due = time.monotonic() + number * pause / clients
        count = number
        while not self.is_over:
            await anyio.sleep(max(0.0, due - time.monotonic()))
            due += pause
            count += 1
            await call(self._call(count), count)

    async def _line_client(self, number: int) -> None:
        async with await anyio.connect_unix(self.folder / "run/s") as stream:
            lines = BufferedByteReceiveStream(stream)
            info = {"name": "soak", "version": "1"}
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
            await _send(stream, {"id": 0, "method": "initialize", "params": params})
            await _answer(lines, 0)
            await _send(stream, {"method": "notifications/initialized"})

            async def call(params: dict[str, Any], id: int) -> None:
                began = time.monotonic()
                await _send(stream, {"id": id, "method": "tools/call", "params": params})
                with anyio.fail_after(PATIENCE):
                    self._judge(await _answer(lines, id), params, began)

            await self._paced(call, number + 1)

    async def _http_client(self, number: int) -> None:
        serve = state_of_servers(self.folder)
        listeners = json.loads((serve / "listeners.json").read_text("ascii"))["listeners"]
        url = next(one["listen"] for one in listeners if one["transport"] == "http")
        token = (serve / ".aish" / "token").read_text("ascii").strip()
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
        }
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx.AsyncClient(headers=headers, timeout=PATIENCE, verify=PLAIN)
            )

            async def call(params: dict[str, Any], id: int) -> None:
                began = time.monotonic()
                whole = {**params, "_meta": MODERN}
                message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": whole}
                found = await client.post(url, json=message, headers={"Mcp-Name": params["name"]})
                self._judge(found.json(), params, began)

            await self._paced(call, number + 1)


async def _send(stream: ByteStream, message: dict[str, Any]) -> None:
    await stream.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def _answer(lines: BufferedByteReceiveStream, id: int) -> dict[str, Any]:
    while True:
        found = json.loads(await lines.receive_until(b"\n", 1 << 24))
        if found.get("id") == id and "method" not in found:
            return dict(found)


def _memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None, status
    return int(found[1])


def _descendants(pid: int) -> set[int]:
    """All processes that it has started, and theirs."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def soaked(folder: Path, seconds: float, rate: float) -> Report:
    """What happens to a hub in this folder."""
    return anyio.run(Soak(folder, seconds, rate).run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soaked(Path(folder), arguments.seconds, arguments.rate)
    print(json.dumps(vars(report), indent=2))
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    sys.exit(bool(report.problems))


if __name__ == "__main__":
    main()
