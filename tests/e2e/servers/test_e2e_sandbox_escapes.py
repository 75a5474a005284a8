"""Ways out of the sandbox of a server, each tried by a server of ours: none leads out (T41)."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from confined_servers import KINDS, add_probe, call
from e2e_project import Project
from mcp_peers import free_port

from aish.config.model import ServerEntry, ServerSandbox
from aish.mcp.transports.confined import start_confined
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper
from aish.system.process.sandbox import NoSandboxError
from aish.system.process.supervisor import Supervisor

ALL = os.environ.get("AISH_TEST_ALL") == "1"

# Each is refused in both kinds; `unmount` needs something hidden, which Landlock has not.
WAYS = (
    *("socket of a path", "abstract socket", "tcp", "udp", "raw", "packet", "netlink", "vsock"),
    *("io_uring", "x32", "keys", "terminal", "own terminal"),
    *("ptrace", "root of a process", "environment of a process", "words of a process", "signal"),
    *("mount", "remount", "namespace", "setuid program", "setuid", "device"),
    *("system folder", "sysctl", "swap", "descriptor", "core", "capabilities"),
)
LANDLOCK_ONLY = ("datagrams of a pair",)
BUBBLEWRAP_ONLY = ("unmount",)


@contextlib.contextmanager
def outside(folder: Path) -> Generator[dict[str, Any]]:
    """What there is to be reached: sockets that answer, and a process with a secret."""
    paths = {"socket": folder / "s.sock", "datagrams": folder / "d.sock"}
    abstract = f"aish-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        servers[0].bind(str(paths["socket"]))
        servers[1].bind("\0" + abstract)
        for server in servers:
            server.listen()
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(str(paths["datagrams"]))
        # One that the kernel gives to nobody: a port that is free for TCP may be taken for UDP.
        port = free_port()
        servers.append(stack.enter_context(socket.create_server(("127.0.0.1", port))))
        echo = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        echo.bind(("127.0.0.1", port))

        def answer() -> None:
            while True:
                data, peer = echo.recvfrom(10)
                if not data:
                    return
                echo.sendto(data, peer)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", "import sys; sys.stdin.read()", "canary-in-its-words"],
                stdin=subprocess.PIPE,
                env={"CANARY": "in-its-environment"},
            )
        )
        try:
            yield {
                **{name: str(path) for name, path in paths.items()},
                "abstract": abstract,
                "port": port,
                "pid": process.pid,
            }
        finally:
            process.kill()
            echo.sendto(b"", echo.getsockname())
            thread.join(60)


@pytest.mark.requirement("T41")
@pytest.mark.parametrize("network", ["none", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_way_leads_out_of_the_sandbox_of_a_server(
    project: Project, kind: str, network: str
) -> None:
    add_probe(project, {"kind": kind, "read": ["data"], "network": network})
    secret = project.write("kept/.env", "KEY=canary")
    names = [*WAYS, *(LANDLOCK_ONLY if kind == "landlock" else ())]
    told: dict[str, Any] = {"given": str(project.folder / "data"), "outside": str(secret.parent)}
    if kind == "bubblewrap":
        hidden = project.write("data/.env", "KEY=canary")
        told["hidden"] = str(hidden)
        names += BUBBLEWRAP_ONLY
    if network == "full":  # that is what it was given
        names = [name for name in names if name not in {"tcp", "udp"}]

    with outside(project.folder / "kept") as reached:
        tried = call(project, "try", names=names, **told, **reached)

    assert [name for name, why in tried.items() if why is None] == [], json.dumps(tried, indent=1)
    assert (project.folder / "data" / "shown.txt").exists()


def plant(project: Project) -> set[str]:
    """Put 1,000 canaries where a server without a sandbox finds them."""
    canaries = [f"canary-{number}-{os.urandom(8).hex()}" for number in range(1000)]
    home = Path(project.aish.env["HOME"])
    folders = (
        home,
        home / ".ssh",
        home / ".local" / "state" / "aish" / "serve",
        project.folder / "kept",
        project.folder / ".aish" / "runs" / "old",
    )
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        for canary in canaries[number * 150 : (number + 1) * 150]:
            (folder / f"{canary[7:]}.txt").write_text(canary, "utf-8")
    # Of aish, and of another server by its arguments and its environment.
    project.aish.env.update({f"KEY_{one[7:11]}_X": one for one in canaries[750:900]})
    return set(canaries)


@pytest.mark.requirement("T40")
@pytest.mark.parametrize("kind", ["off", *KINDS])
def test_a_hostile_server_finds_nothing_that_it_was_not_given(project: Project, kind: str) -> None:
    add_probe(project, "off" if kind == "off" else {"kind": kind, "read": ["data"]})
    canaries = plant(project)
    text = (project.folder / "p.yaml").read_text("utf-8")
    rest = sorted(canaries, key=lambda one: int(one.split("-")[1]))[900:]
    other = {
        "command": [sys.executable, "probe.py", *rest[:50]],
        "env": {f"SECRET_{number}": one for number, one in enumerate(rest[50:])},
        "protocol": "legacy",
    }
    head, _, steps = text.partition('"servers": {')
    project.write("p.yaml", f'{head}"servers": {{"other": {json.dumps(other)}, {steps}')
    folders = [project.aish.env["HOME"], str(project.folder)]

    found = call(project, "steal", folders=folders)

    seen = {*found["processes"], *found["files"]}
    if kind == "off":  # so it would find them
        assert len(seen) >= 800, {name: len(words) for name, words in found.items()}
    else:
        assert seen == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_in_a_folder_that_a_server_may_only_read_is_not_its_own(
    project: Project, kind: str
) -> None:
    """A mount that is read-only keeps nobody from connecting: what is there was given."""
    add_probe(project, {"kind": kind, "read": ["data"]})

    with outside(project.folder / "data") as reached:
        tried = call(project, "try", names=["socket of a path"], **reached)

    assert (tried["socket of a path"] is None) == (kind == "bubblewrap")


@pytest.mark.slow(reason="starts confined servers again and again")
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_swapped_by_a_link_while_a_server_starts_is_not_shown(
    tmp_path: Path, kind: str
) -> None:
    """A link goes to and fro in the place of a folder; whatever starts sees the folder alone."""
    swapping = """
import os, sys
given, moved, link = sys.argv[1:]
print("ready", flush=True)
while True:
    os.rename(given, moved)
    os.rename(link, given)
    os.rename(given, link)
    os.rename(moved, given)
"""
    for name, text in (("given", "given"), ("outside", "canary")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(text, "utf-8")
    (tmp_path / "link").symlink_to("outside")
    words = [sys.executable, "-c", swapping, *(str(tmp_path / n) for n in ("given", "m", "link"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            seen = anyio.run(start_often, tmp_path.resolve(), kind, 10_000 if ALL else 30)
        finally:
            process.kill()

    assert set(seen) <= {"given", "replaced"}, seen


async def start_often(folder: Path, kind: Any, times: int) -> Counter[str]:
    """What so many servers see, and more until one has started; each is resolved before."""
    reaper = Reaper()
    supervisor = Supervisor(reaper)
    given = folder / "given"
    entry = ServerEntry(
        "s",
        command=("/bin/cat", str(given / "x.txt")),
        cwd=folder,
        sandbox=ServerSandbox(kind=kind, read=(given,)),
    )
    connection = ServerConnection(entry, child_env={"PATH": "/bin"}, given={given: given})
    seen: Counter[str] = Counter()
    try:
        # On a busy machine it may be a link, or nothing, for long.
        while seen.total() < times or not seen["given"]:
            try:
                child, confinement = await start_confined(
                    connection,
                    kind,
                    supervisor,
                    reaper,
                    log=None,
                    secrets=None,
                    on_refused=lambda *_: None,
                )
            except (NoSandboxError, OSError):
                seen["replaced"] += 1
                continue
            text = (await child.read()).decode()
            await child.stop(0)
            await confinement.close()
            if confinement.relay is not None:
                await confinement.relay.serve()  # which closes its sockets
            seen[text or "replaced"] += 1
    finally:
        await anyio.to_thread.run_sync(supervisor.close)
        reaper.close()
    return seen
