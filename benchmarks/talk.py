"""A session at a terminal: what it costs to draw an answer as the Markdown it is."""

import os
import pty
import subprocess
from collections.abc import Callable, Iterator

from endpoint import Endpoint, Script
from figures import AISH, PYTHON, ROOT, Bench, Row, against, pipeline
from talk_load import answer

LOAD = str(ROOT / "benchmarks" / "talk_load.py")
DELTAS = 20_000
LAST = "The end of it."


def talk_deltas(bench: Bench) -> Iterator[Row]:
    def drawn(manner: str) -> Callable[[], float]:
        return lambda: bench.cost(PYTHON, LOAD, str(DELTAS), manner).cpu

    mine, floor = bench.pairs(drawn("markdown"), drawn("plain"))
    yield against("20,000 deltas drawn as Markdown, CPU, against plain", mine, floor, 3)
    empty = bench.alone(lambda: bench.cost(PYTHON, LOAD, "1", "plain").cpu)
    name = "the same without the start of the process"
    yield against(name, mine - empty, floor - empty, 3)


def shell_deltas(bench: Bench) -> Iterator[Row]:
    text = f"{answer(DELTAS - 10)}\n\n{LAST}"
    with Endpoint(Script(deltas=-(-len(text) // 4), text=text)) as endpoint:
        file = pipeline(bench, "talk", endpoint.url)
        mine, floor = bench.pairs(
            lambda: _session(bench, AISH, "shell", file, "--ephemeral"),
            lambda: _session(bench, AISH, "shell", file, "--ephemeral", "--plain"),
        )
    yield against("`aish shell`, an answer of 20,000 deltas: CPU, against --plain", mine, floor, 3)


def _session(bench: Bench, *argv: str) -> float:
    """CPU seconds of a session of one question, at a terminal that is read as it is written."""
    terminal, inner = pty.openpty()
    env = {**bench.env, "TERM": "xterm-256color", "COLUMNS": "80"}
    child = subprocess.Popen(
        argv,
        cwd=bench.folder,
        env=env,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    os.write(terminal, b"Go on.\r")
    seen, left = b"", False
    while True:
        try:
            seen = seen[-200:] + os.read(terminal, 65536)
        except OSError:  # nobody has the other end any more
            break
        if LAST.encode() in seen and not left:
            left = True
            os.write(terminal, b":quit\r")
    _, status, usage = os.wait4(child.pid, 0)
    os.close(terminal)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, seen
    return usage.ru_utime + usage.ru_stime
