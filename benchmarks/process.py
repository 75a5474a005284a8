"""One whole process, measured from outside."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Seconds; `peak` in MiB; `begun` is `perf_counter` when the process was started."""

    cpu: float
    wall: float
    peak: float
    begun: float


def run(argv: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> Cost:
    """Run `argv` to its end; raises with its output if it fails."""
    with tempfile.TemporaryFile() as output:
        begun = time.perf_counter()
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise RuntimeError(f"{argv} ended with {child.returncode}: {output.read().decode()}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, begun)
