"""A run that is asked and answered over its socket: what that costs, and how soon it goes on."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from endpoint import Endpoint, Script
from figures import AISH, PYTHON, Bench, Row, at_most, pipeline

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
QUESTIONS = 60
IDLE_SECONDS = 10.0
# A server whose only tool says when it was called.
STAMPS = f"""
import json, sys, time
sys.path.insert(0, {str(SUPPORT)!r})
import mcp_tools
TOOL = {{"name": "stamp", "description": "Says when", "inputSchema": {{"type": "object"}}}}
for line in sys.stdin:
    now = time.perf_counter()
    message = json.loads(line)
    if "id" not in message:
        continue
    version = mcp_tools.version_of(message)
    extra = {{"resultType": "complete"}} if version else {{}}
    if message["method"] == "tools/list":
        result = {{**extra, "tools": [TOOL]}}
    elif message["method"] == "tools/call":
        result = {{**extra, **mcp_tools.text_result(repr(now))}}
    else:
        print(json.dumps(mcp_tools.answer(message, "legacy")), flush=True)
        continue
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


class _Client:
    """One connection to a run, kept open."""

    def __init__(self, path: str) -> None:
        self._connection = http.client.HTTPConnection("aish")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(path)

    def post(self, path: str, body: object) -> Any:
        kind = {"Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1{path}", json.dumps(body), kind)
        return json.loads(self._connection.getresponse().read())

    def events(self) -> Iterator[Any]:
        """Each event as it comes, to the end of the run."""
        headers = {"Accept": "text/event-stream"}
        self._connection.request("GET", "/api/v1/events", headers=headers)
        for line in self._connection.getresponse():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _waiting_run(
    bench: Bench, count: int
) -> Generator[tuple["subprocess.Popen[bytes]", str, Path]]:
    """A run whose calls are asked about one after the other, its socket and its folder."""
    shutil.rmtree(bench.folder / ".aish", ignore_errors=True)
    server = bench.folder / "stamps.py"
    server.write_text(STAMPS)
    file = bench.folder / "asks.yaml"
    step = {"id": "go", "foreach": str(list(range(count))), "concurrency": 1, "call": "box__stamp"}
    servers = {"box": {"command": [PYTHON, str(server)]}}
    data = {"aish": 1, "name": "asks", "on_ask": "wait", "mcp": {"servers": servers}}
    file.write_text(json.dumps({**data, "steps": [step]}))
    path = bench.folder / "run" / "s"
    argv = (AISH, "run", str(file), "--control", f"unix:{path}")
    with subprocess.Popen(
        argv, cwd=bench.folder, env=bench.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as run:
        assert run.stderr is not None
        next(line for line in run.stderr if b"waits for an answer" in line)
        try:
            yield run, str(path), next((bench.folder / ".aish" / "runs").iterdir())
        finally:
            run.terminate()
            run.stderr.read()


def answer_to_dispatch(bench: Bench) -> Iterator[Row]:
    """From the request with the answer to the arrival of the call at its server."""
    given: list[float] = []
    made: list[float] = []
    with _waiting_run(bench, QUESTIONS) as (_, path, _folder):
        asks, follows = _Client(path), _Client(path)
        for event in follows.events():
            if event["type"] == "approval.asked":
                body = {"answer": "approve", "digest": event["digest"]}
                given.append(time.perf_counter())
                asks.post(f"/approvals/{event['id']}", body)
            elif event["type"] == "tool.finished":
                made.append(float(event["content"]))
            elif event["type"] == "run.finished":
                break
        asks.close()
        follows.close()
    found = median(late - early for early, late in zip(given, made, strict=True))
    yield at_most(
        f"{QUESTIONS} questions, one by one: answer to the call at its server, p50", found, 0.02
    )


def idle(bench: Bench) -> Iterator[Row]:
    """A run that waits for an answer, with a reader of its events."""
    with _waiting_run(bench, 1) as (run, path, _folder):
        follows = _Client(path)
        next(follows.events())
        before = _cpu(run.pid)
        time.sleep(IDLE_SECONDS)
        share = (_cpu(run.pid) - before) / IDLE_SECONDS
        follows.close()
    yield at_most(
        "a run that waits for an answer: CPU", share, 0.01, lambda part: f"{part * 100:.2f} %"
    )


def start(bench: Bench) -> Iterator[Row]:
    """A run of one prompt, with a socket and without."""
    with Endpoint(Script(text="Hello.", deltas=1)) as endpoint:
        file = pipeline(bench, "starts", endpoint.url)
        plain = (AISH, "run", file, "--ephemeral")
        address = f"unix:{bench.folder / 'run' / 'start'}"
        costs = [
            (bench.cost(*plain, "--control", address), bench.cost(*plain))
            for _ in range(4 * bench.rounds + 1)
        ][1:]
    for what in ("cpu", "wall"):
        more = median(getattr(with_it, what) - getattr(without, what) for with_it, without in costs)
        name = what.upper() if what == "cpu" else what
        yield at_most(f"`--control`: more {name} for a run of one turn", more, 0.04)


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
