"""A Dask cluster that is there before the run: a scheduler and workers, known by certificates.

Only for tests that are skipped where Dask is not installed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import Security
from e2e_project import wait_file


@dataclass(frozen=True)
class DaskCluster:
    """Where it is, and the files that open it."""

    address: str
    flags: tuple[str, ...]


@contextmanager
def dask_cluster(folder: Path, env: Mapping[str, str], workers: int) -> Generator[DaskCluster]:
    """A scheduler and workers as their own programs start them."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = Security.temporary()
    cert.write_text(made.tls_ca_file)
    key.write_text(made.tls_client_key)
    found = folder / "scheduler.json"
    common = ["--tls-ca-file", str(cert), "--tls-cert", str(cert), "--tls-key", str(key)]
    scheduler = ["--protocol", "tls", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    worker = ["--no-nanny", "--no-dashboard", "--nthreads", "2", "--host", "127.0.0.1"]
    with ExitStack() as stack:
        where = ["--scheduler-file", str(found)]
        _start(stack, ["dask_scheduler", *scheduler, *common, *where], folder, env)
        wait_file(found, whole=True)
        for _ in range(workers):
            _start(stack, ["dask_worker", *worker, *common, *where], folder, env)
        address = json.loads(found.read_text())["address"]
        flags = ("--cluster-ca", str(cert), "--cluster-cert", str(cert), "--cluster-key", str(key))
        yield DaskCluster(address, flags)


def _start(stack: ExitStack, argv: list[str], cwd: Path, env: Mapping[str, str]) -> None:
    log = stack.enter_context((cwd / f"{argv[0]}.log").open("ab"))
    # So that the worker's temporary files go with the test's.
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{argv[0]}", *argv[1:]],
        cwd=cwd,
        env={**env, "TMPDIR": str(cwd)},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, 9)
