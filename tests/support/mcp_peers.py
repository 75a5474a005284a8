"""Real MCP servers from the registries, as tests drive them; what is missing skips, aloud."""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
MODULES = TOP / "node_modules"
PATIENCE = 60.0
_WORKERS = 32
_given: set[int] = set()


def node() -> str:
    """npm's Node, else the machine's."""
    own = MODULES / ".bin" / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if found is None:
        pytest.skip("Node is missing; `make node` brings it")
    return found


def npm_server(package: str) -> tuple[str, str]:
    """The command of a server that npm installed."""
    script = MODULES / "@modelcontextprotocol" / package / "dist" / "index.js"
    if not script.exists():
        pytest.skip(f"{package} is missing; `make node` brings it")
    return node(), str(script)


def python_server(name: str) -> str:
    """A server that pip installed beside the interpreter."""
    script = Path(sys.executable).parent / name
    if not script.exists():
        pytest.skip(f"{name} is missing; `make test` installs it")
    return str(script)


@contextmanager
def clock_by_uvx() -> Generator[Mapping[str, str]]:
    """Variables with which `uvx` starts the clock server that pip installed, and fetches none."""
    python_server("mcp-server-time")
    with tempfile.TemporaryDirectory() as folder:
        uvx = Path(folder) / "uvx"
        # Python's own program, so that a sandbox shows what is installed with it.
        text = f"#!{sys.executable}\nimport sys\nimport mcp_server_time\ndel sys.argv[1:]\n"
        uvx.write_text(f"{text}mcp_server_time.main()\n", "utf-8")
        uvx.chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        yield {"PATH": path, "UV_OFFLINE": "1", "XDG_CACHE_HOME": folder}


@contextmanager
def listening(
    *argv: str, port: int, environment: Mapping[str, str] | None = None
) -> Generator[str]:
    """A server process on a port, once it accepts connections; the origin of its urls."""
    with subprocess.Popen(
        argv,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def open_socket() -> socket.socket:
    """A socket on any port, which listens; for `accepting`."""
    return socket.create_server(("127.0.0.1", 0))


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


@contextmanager
def accepting(
    *argv: str, sockets: Sequence[socket.socket], environment: Mapping[str, str]
) -> Generator[None]:
    """A server process that is given its sockets, as `pass_fds` does; they are closed here.

    They listen already: nothing has to be waited for, and nobody else can take their ports.
    """
    with subprocess.Popen(
        argv,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[one.fileno() for one in sockets],
    ) as process:
        for one in sockets:
            one.close()
        try:
            yield
        finally:
            process.kill()


def free_port() -> int:
    """A port nobody listens on, and that the kernel gives to nobody who asks for any."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    lowest = int(given.split()[0])
    # Until a server listens there, no other caller may be given it: not in this process, and not
    # in another worker of the same tests, each of which has every 32nd port.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    while True:
        port = random.randrange(lowest // 2 + worker, lowest, _WORKERS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    """A server of somebody else does not say when it is ready: ask until it is."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the server did not begin to listen")
