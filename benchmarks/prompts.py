"""A session at a terminal: how soon its prompt is there, and how soon a key is echoed."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from figures import AISH, PYTHON, Bench, Row, at_most, ms, pipeline

SILENT = [PYTHON, "-c", "import sys; sys.stdin.read()"]
PROMPT, KEY = b"m>", b"z"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Ready:
    """CPU and wall seconds until the prompt was there, and wall seconds from a key to its echo."""

    cpu: float
    wall: float
    echo: float


def prompt_ready(bench: Bench) -> Iterator[Row]:
    file = pipeline(bench, "prompt", "http://127.0.0.1:9/v1")
    yield at_most(
        "`aish shell`: CPU until the prompt is there",
        bench.alone(lambda: _ready(bench, file).cpu),
        0.35,
    )


def key_echo(bench: Bench) -> Iterator[Row]:
    servers = {f"s{number}": {"command": SILENT} for number in range(4)}
    file = pipeline(bench, "echo", "http://127.0.0.1:9/v1", mcp={"servers": servers})
    yield at_most(
        "`aish shell`, 4 servers connecting: from a key to its echo, wall",
        bench.alone(lambda: _ready(bench, file).echo),
        0.05,
        ms,
    )


def _ready(bench: Bench, file: str) -> Ready:
    terminal, inner = pty.openpty()
    begun = time.monotonic()
    child = subprocess.Popen(
        [AISH, "shell", file, "--ephemeral"],
        cwd=bench.folder,
        env={**bench.env, "TERM": "xterm-256color", "COLUMNS": "80"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    _until(terminal, PROMPT)
    cpu, wall = _cpu(child.pid), time.monotonic() - begun
    # Servers are asked by then, and none of them answers.
    _until_idle(child.pid)
    pressed = time.monotonic()
    os.write(terminal, KEY)
    _until(terminal, KEY)
    echo = time.monotonic() - pressed
    child.send_signal(signal.SIGKILL)
    child.wait()
    os.close(terminal)
    return Ready(cpu, wall, echo)


def _until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 65536)


def _until_idle(pid: int) -> None:
    before = -1.0
    while (now := _cpu(pid)) != before:
        before = now
        time.sleep(0.3)


def _cpu(pid: int) -> float:
    """Seconds of processor that a process has used, in ticks of a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
