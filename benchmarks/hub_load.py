"""One load on a server over HTTP, in a process of its own; the figures as JSON.

python benchmarks/hub_load.py calls URL TOOL ARGUMENTS CALLS CLIENTS
python benchmarks/hub_load.py sessions URL TOOL ARGUMENTS PID SESSIONS SECONDS RATE CHANGE
python benchmarks/hub_load.py churn URL TOOL ARGUMENTS PID CALLS SESSIONS
python benchmarks/hub_load.py audit FOLDER

The token of the server, if it wants one, is in `HUB_TOKEN`.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from hub_client import AsyncClient, calls_per_second

CLOCK = os.sysconf("SC_CLK_TCK")
TOKEN = os.environ.get("HUB_TOKEN")


def cpu_of(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def memory_of(pid: int) -> int:
    """Bytes that it alone holds."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no such figure")


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def children_of(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())


async def calls(url: str, tool: str, arguments: Any, number: int, clients: int) -> Any:
    return {"per_second": await calls_per_second(url, TOKEN, tool, arguments, number, clients)}


async def sessions(
    url: str,
    tool: str,
    arguments: Any,
    pid: int,
    number: int,
    seconds: float,
    rate: int,
    change: str,
) -> Any:
    first = await AsyncClient(url, TOKEN).open()
    await first.listen()
    await first.call(tool, arguments)
    before = memory_of(pid)
    opened = [await AsyncClient(url, TOKEN).open() for _ in range(number - 1)]
    for client in opened:
        await client.listen()
    memory = (memory_of(pid) - before) / len(opened)
    begun = time.perf_counter(), cpu_of(pid)
    await asyncio.sleep(16)  # with one sign of life on each stream
    idle = (cpu_of(pid) - begun[1]) / (time.perf_counter() - begun[0])
    taken: list[float] = []
    errors = 0

    async def one(client: AsyncClient) -> None:
        nonlocal errors
        start = time.perf_counter()
        try:
            await client.call(tool, arguments)
        except RuntimeError:
            errors += 1
        taken.append(time.perf_counter() - start)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for count in range(int(seconds * rate)):
            due = start + count / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one(opened[count * 7 % len(opened)]))
    told = [asyncio.ensure_future(_told(client)) for client in opened]
    await asyncio.sleep(0)
    changed = time.perf_counter()
    await first.call(change, {})  # and the list of tools is another one
    await asyncio.gather(*told)
    heard = time.perf_counter() - changed
    for client in (first, *opened):
        client.close()
    p99 = quantiles(taken, n=100)[98]
    return {
        "memory": memory,
        "idle": idle,
        "errors": errors,
        "p50": median(taken),
        "p99": p99,
        "heard": heard,
    }


async def _told(client: AsyncClient) -> None:
    assert client.stream is not None
    while b"list_changed" not in await client.stream.events.get():
        pass


async def churn(
    url: str, tool: str, arguments: Any, pid: int, number: int, sessions: int
) -> dict[str, float]:
    async def some(count: int) -> None:
        for _ in range(count):
            client = await AsyncClient(url, TOKEN).open()
            for _ in range(number // sessions):
                await client.call(tool, arguments)
            await client.end()

    await asyncio.gather(*(some(sessions // 320) for _ in range(16)))
    before = memory_of(pid), descriptors_of(pid), children_of(pid)
    await asyncio.gather(*(some(sessions // 16) for _ in range(16)))
    await asyncio.sleep(1)
    after = memory_of(pid), descriptors_of(pid), children_of(pid)
    names = ("memory", "descriptors", "children")
    return {name: b - a for name, a, b in zip(names, before, after, strict=True)}


def audit(folder: str) -> Any:
    from aish.config.model import Pipeline
    from aish.core.events import Place
    from aish.core.tools import Tool, ToolName
    from aish.policy.gate import Decision, Proposal
    from aish.serve.records.audit import Caller, open_audit
    from aish.serve.state import open_state
    from aish.system.clock import SystemClock

    pipeline = Pipeline(file=Path(folder) / "aish.yaml", name="bench")
    log = open_audit(pipeline.serve.audit, open_state(pipeline), SystemClock(), lambda text: text)
    caller = Caller("bench", "0" * 16, {"transport": "http", "address": "127.0.0.1:1"})
    tool = Tool(ToolName("fs", "file_read"), "fs__file_read", "Read a file", {}, builtin=True)
    proposal = Proposal(tool, {"path": "notes.txt"}, Place(call="call"))
    decision = Decision("auto", "tool: fs__*", "0" * 64, None, by_person=False)
    begun = resource.getrusage(resource.RUSAGE_SELF)
    number = 20_000
    for _ in range(number):
        log.note_decision(caller, proposal, decision, "info")
        log.note_end("call", "ok", b"x" * 2048)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    log.close()
    used = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return {"cpu": used / number}


LOADS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "calls": calls,
    "sessions": sessions,
    "churn": churn,
}


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kind, *rest = sys.argv[1:]
    if kind == "audit":
        found = audit(*rest)
    else:
        url, tool, arguments, *more = rest
        parts: list[Any] = [int(one) if one.isdecimal() else one for one in more]
        found = asyncio.run(LOADS[kind](url, tool, json.loads(arguments), *parts))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
