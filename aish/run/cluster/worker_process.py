"""A local worker as a process: `python -m aish.run.cluster.worker_process < settings.json`."""

import asyncio
import json
import sys
from typing import Any

from aish.run.cluster.dask import quiet


def main() -> None:
    """Work for the scheduler that standard input names, until it is gone or we are ended."""
    settings = json.load(sys.stdin)
    quiet()
    asyncio.run(_serve(settings))


async def _serve(settings: Any) -> None:
    from distributed import Security, Worker

    worker = Worker(
        settings["scheduler"],
        name=settings["name"],
        nthreads=settings["threads"],
        host="127.0.0.1",
        security=Security(require_encryption=True, **settings["tls"]),
        memory_limit=0,
        dashboard=False,
        death_timeout=30,
    )
    async with worker:
        await worker.finished()


if __name__ == "__main__":
    main()
