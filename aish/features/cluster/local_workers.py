"""`--cluster local:N`: a scheduler in this process, and N worker processes.

All connections use TLS with a certificate made for this run: other users of the machine can reach
the port, and a scheduler executes any code that it receives. A worker is a process of this module:
`python -m aish.features.cluster.local_workers < settings.json`.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import dask
from distributed import Scheduler, Security, Worker

from aish.core.errors import UnavailableError
from aish.features.cluster.connection import close_in_order, quiet
from aish.system.process.child import Process, start_process
from aish.system.process.reaper import Reaper
from aish.system.task_group import task_group

_RESTARTS = 3
_THREADS = 4
# Dask serves a dashboard over HTTP without authentication: disabled as far as possible.
_NO_ROUTES: dict[str, list[str]] = {
    f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")
}
_WITHOUT_PAGES: Any = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_TLS = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")


@dataclass(slots=True)
class LocalCluster:
    """Address and credentials of the scheduler; `living` returns the number of workers left.

    They exist until the cluster is closed, even if the run is cancelled before that: it still has
    resources to close on them.
    """

    address: str
    security: Security
    living: int
    workers: list[anyio.CancelScope] = field(default_factory=list)
    over: bool = False


@asynccontextmanager
async def local_cluster(count: int, logs: Path | None) -> AsyncGenerator[LocalCluster]:
    """Start `count` workers; one that dies is replaced, a limited number of times."""
    security = Security.temporary()
    options: Any = {"host": "127.0.0.1", "port": 0, "security": security, **_WITHOUT_PAGES}
    with ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        with dask.config.set(_NO_ROUTES):
            scheduler = Scheduler(protocol="tls://", **options)
        async with close_in_order(scheduler), task_group() as tasks:
            cluster = LocalCluster(scheduler.address, security, count)
            for number in range(1, count + 1):
                tasks.start_soon(_keep, cluster, number, logs, reaper)
            try:
                yield cluster
            finally:
                cluster.over = True
                for scope in cluster.workers:
                    scope.cancel()


async def _keep(cluster: LocalCluster, number: int, logs: Path | None, reaper: Reaper) -> None:
    """Keep one worker running, replacing it if it dies."""
    with anyio.CancelScope(shield=True) as scope:
        cluster.workers.append(scope)
        for _ in range(0 if cluster.over else _RESTARTS + 1):
            try:
                process = _start(cluster, number, logs, reaper)
            except OSError as error:
                message = f"a worker cannot be started: {error.strerror or error}"
                raise UnavailableError(message, where="--cluster") from error
            try:
                await process.wait()
            finally:
                # It has closed its resources, or will not: its own children end with it.
                await process.stop(0)
    cluster.living -= 1


def _start(cluster: LocalCluster, number: int, logs: Path | None, reaper: Reaper) -> Process:
    tls = {name: getattr(cluster.security, name) for name in _TLS}
    settings = {
        "scheduler": cluster.address,
        "name": f"worker-{number}",
        "threads": _THREADS,
        "tls": tls,
    }
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        # Certificate and key: a few kilobytes, less than the capacity of a pipe.
        with os.fdopen(writing, "w") as pipe:
            json.dump(settings, pipe)
        log = os.devnull if logs is None else str(logs / f"worker-{number}.log")
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, out)
        # -P: do not import from the current folder.
        argv = [sys.executable, "-P", "-m", "aish.features.cluster.local_workers"]
        streams = (reading, out, out)
        return start_process(argv, cwd=Path.cwd(), env=os.environ, streams=streams, reaper=reaper)


def main() -> None:
    """Work for the scheduler given on standard input, until it or this process ends."""
    settings = json.load(sys.stdin)
    quiet()
    asyncio.run(_serve(settings))


async def _serve(settings: Any) -> None:
    dask.config.set(_NO_ROUTES)
    worker = Worker(
        settings["scheduler"],
        name=settings["name"],
        nthreads=settings["threads"],
        host="127.0.0.1",
        security=Security(require_encryption=True, **settings["tls"]),
        memory_limit=0,
        death_timeout=30,
        **_WITHOUT_PAGES,
    )
    async with worker:
        await worker.finished()


if __name__ == "__main__":
    main()
