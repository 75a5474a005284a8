"""Commands and the output of a process through the packs, beside the system's own: JSON.

    python benchmarks/commands_load.py MEASURE ROUNDS

`shell` and `bubblewrap`: seconds of `shell_run true`, and of `sh -c true` by `subprocess.run`.
`ring`: seconds of 100 MB through the ring of a process, and through an `os.read` loop, and the
bytes of memory that the ring took.
`server bubblewrap` and `server landlock`: seconds until a server in a sandbox writes its first
line, and until one without does. `relay`: seconds of a request over a new connection by a program
in a sandbox that lists its host, and by one without.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from aish.config.model import ServerEntry, ServerSandbox
from aish.mcp.transports.confined import start_confined
from aish.mcp.transports.settings import ServerConnection
from aish.packs.command_options import ProcOptions, ShellOptions
from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.parse_worker import ParseWorker
from aish.system.process.child import start_child
from aish.system.process.reaper import Reaper
from aish.system.process.supervisor import Supervisor

SIZE = 100_000_000
REQUESTS = 100
SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        with server.accept()[0] as peer:
            peer.sendall(peer.recv(100))
"""
CLIENT = f"""
import json, socket, sys, time
def ask():
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
        peer.sendall(b"request")
        peer.recv(100)
    return time.perf_counter() - begun
print(json.dumps(sorted(ask() for _ in range({REQUESTS}))[{REQUESTS} // 2]), flush=True)
"""


async def opened(measure: str, rounds: int, root: Path) -> list[tuple[float, ...]]:
    reaper = Reaper()
    try:
        async with anyio.create_task_group() as tasks:
            services = PackServices(
                tasks=tasks, reaper=reaper, worker=ParseWorker(reaper), environ=dict(os.environ)
            )
            sandbox: Any = "bubblewrap" if measure == "bubblewrap" else "off"
            options = {"shell": ShellOptions(sandbox=sandbox), "proc": ProcOptions(sandbox="off")}
            packs = open_packs(["shell", "proc"], root, services, options=options)
            await packs.start()
            figures = ring if measure == "ring" else commands
            found = await figures(packs, rounds)
            await packs.shutdown()
    finally:
        reaper.close()
    return found


async def commands(packs: OpenPacks, rounds: int) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        result = await packs.call("shell_run", {"command": "true"})
        between = time.perf_counter()
        subprocess.run(["sh", "-c", "true"], check=True)  # ruff: ignore[run-process-in-async-function] - nothing else runs
        assert not result["isError"], result
        found.append((between - begun, time.perf_counter() - between))
    return found[1:]  # the first one starts the supervisor, and tries the sandbox


async def ring(packs: OpenPacks, rounds: int) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    await through_ring(packs, 1000)
    for _ in range(rounds):
        before = peak()
        begun = time.perf_counter()
        await through_ring(packs, SIZE)
        between = time.perf_counter()
        taken = peak() - before
        read_alone()
        found.append((between - begun, time.perf_counter() - between, taken))
    return found


async def servers(kind: Any, rounds: int, root: Path) -> list[tuple[float, ...]]:
    reaper = Reaper()
    supervisor = Supervisor(reaper)
    command = (shutil.which("sh") or "sh", "-c", "echo ready; read end")
    sandbox = ServerSandbox(kind=kind, read=(root,))
    entry = ServerEntry("s", command=command, cwd=root, sandbox=sandbox)
    connection = ServerConnection(entry, child_env={"PATH": os.environ["PATH"]})
    found: list[tuple[float, ...]] = []
    try:
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            child, confinement = await start_confined(
                connection,
                kind,
                supervisor,
                reaper,
                log=None,
                secrets=None,
                on_refused=ignore,
            )
            assert await child.read() == b"ready\n"
            between = time.perf_counter()
            await child.stop(0)
            await confinement.close()
            again = time.perf_counter()
            plain = await start_child(command, cwd=root, env=connection.child_env, reaper=reaper)
            assert await plain.read() == b"ready\n"
            found.append((between - begun, time.perf_counter() - again))
            await plain.stop(0)
            await anyio.sleep(0.1)  # the kernel still removes the namespaces of the sandbox
    finally:
        await anyio.to_thread.run_sync(supervisor.close)
        reaper.close()
    return found[1:]  # the first one starts the supervisor, and tries the sandbox


@contextmanager
def echo_server() -> Generator[str]:
    """The port of a server in a process of its own."""
    words = [sys.executable, "-I", "-S", "-c", SERVER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().decode().strip()
        finally:
            server.kill()


async def relayed(rounds: int, root: Path) -> list[tuple[float, float]]:
    """The median of some requests, by both programs in turn."""
    reaper = Reaper()
    supervisor = Supervisor(reaper)
    found: list[tuple[float, float]] = []
    with echo_server() as port:
        command = (sys.executable, "-I", "-S", "-c", CLIENT, port)
        sandbox = ServerSandbox(network=(f"127.0.0.1:{port}",))
        entry = ServerEntry("s", command=command, cwd=root, sandbox=sandbox)
        connection = ServerConnection(entry, child_env={"PATH": os.environ["PATH"]})
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(rounds):
                    child, confinement = await start_confined(
                        connection,
                        "bubblewrap",
                        supervisor,
                        reaper,
                        log=None,
                        secrets=None,
                        on_refused=ignore,
                    )
                    assert confinement.relay is not None
                    tasks.start_soon(confinement.relay.serve)
                    mine = json.loads(await child.read())
                    await child.stop(0)
                    await confinement.close()
                    env = connection.child_env
                    plain = await start_child(command, cwd=root, env=env, reaper=reaper)
                    found.append((mine, json.loads(await plain.read())))
                    await plain.stop(0)
        finally:
            await anyio.to_thread.run_sync(supervisor.close)
            reaper.close()
    return found


def ignore(_name: str, _why: str) -> None:
    """Nobody is told of hosts that are refused."""


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flood(size: int) -> list[str]:
    return ["sh", "-c", f"head -c {size} /dev/zero; echo end"]


async def through_ring(packs: OpenPacks, size: int) -> None:
    command, *args = flood(size)
    started: Any = await packs.call("process_start", {"command": command, "args": args})
    id = started["structuredContent"]["id"]
    arguments = {"id": id, "wait_seconds": 30, "wait_for": "end\n", "since": size}
    result: Any = await packs.call("process_output", arguments)
    assert result["structuredContent"]["found"], result


def read_alone() -> None:
    with subprocess.Popen(flood(SIZE), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while os.read(process.stdout.fileno(), 1 << 16):
            pass


def main() -> None:
    measure, rounds = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        if measure.startswith("server "):
            kind = measure.removeprefix("server ")
            print(json.dumps(anyio.run(servers, kind, rounds, Path(name).resolve())))
            return
        if measure == "relay":
            print(json.dumps(anyio.run(relayed, rounds, Path(name).resolve())))
            return
        print(json.dumps(anyio.run(opened, measure, rounds, Path(name).resolve())))


if __name__ == "__main__":
    main()
