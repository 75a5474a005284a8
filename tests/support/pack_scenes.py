"""A root folder and packs on it, called one by one and looked at from outside."""

import hashlib
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from aish.core.options import PackOptions
from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import OpenPacks, open_packs
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

LIMIT = 50_000


@dataclass
class PackScene:
    """A root and its packs, which live in an event loop of their own."""

    root: Path
    pack: OpenPacks
    portal: BlockingPortal

    def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = dict(self.portal.call(self.pack.call, name, arguments))
        # Whatever comes out can be sent, and is never too long (K7).
        json.dumps(result).encode()
        assert len(result["content"][0]["text"]) <= LIMIT
        return result

    def text(self, name: str, /, **arguments: Any) -> str:
        result = self.call(name, **arguments)
        assert result["isError"] is False, result
        return str(result["content"][0]["text"])

    def data(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result = self.call(name, **arguments)
        assert result["isError"] is False, result
        data: dict[str, Any] = result["structuredContent"]
        return data

    def error(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result = self.call(name, **arguments)
        assert result["isError"] is True, result
        error: dict[str, Any] = result["structuredContent"]["error"]
        assert result["content"][0]["text"] == f"ERROR: {error['message']}"
        assert set(error) == {"code", "message", "details"}
        return error

    def code(self, name: str, /, **arguments: Any) -> str:
        return str(self.error(name, **arguments)["code"])

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def names(self, path: str = ".") -> list[str]:
        return sorted(each.name for each in (self.root / path).iterdir())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def descriptors() -> set[tuple[str, str]]:
    """What this process has open; other threads may still close some of it, which is no matter."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this very look
            found.add((each.name, str(each.readlink())))
    return found


@contextmanager
def pack_services(**more: Any) -> Generator[PackServices]:
    """What a run offers, outside of an event loop: nothing can be opened with it."""
    reaper = Reaper()
    try:
        worker = ParseWorker(reaper)
        yield PackServices(**{"tasks": None, "reaper": reaper, "worker": worker, **more})
    finally:
        reaper.close()


@asynccontextmanager
async def started_packs(
    names: Sequence[str],
    root: Path | None,
    options: PackOptions | None = None,
    **services: Any,
) -> AsyncGenerator[OpenPacks]:
    """The packs as a run opens them; `services` are fields of `PackServices`."""
    async with anyio.create_task_group() as tasks:
        with pack_services(tasks=tasks, **services) as offered:
            pack = open_packs(names, root, offered, options=options, allow_broad_root=True)
            await pack.start()
            try:
                yield pack
            finally:
                with anyio.CancelScope(shield=True):
                    await pack.shutdown()
                    await offered.worker.close()


@contextmanager
def opened_packs(
    names: Sequence[str],
    root: Path | None,
    options: PackOptions | None = None,
    **services: Any,
) -> Generator[PackScene]:
    """The same for a test that calls one tool after the other."""
    with start_blocking_portal() as portal:
        started = started_packs(names, root, options, **services)
        with portal.wrap_async_context_manager(started) as pack:
            yield PackScene(root or Path("/"), pack, portal)
