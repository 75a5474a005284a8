"""Records the cassettes of `pipelines/` again, from real peers: `make record`.

The embedded model stands in for a cloud endpoint, but for `release-notes.yaml`, `fix-test.yaml`
and `ask-page.yaml`, which have a scripted one. The servers are those of the registries. What is
recorded is decided by the files' `tests:`; a recording that fails leaves the old cassette.
`hub.yaml` is recorded with a client of it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import record_hub
import record_release_notes
import record_scripted
from mcp_peers import TOP, clock_by_uvx, free_port, listening, npm_server

from aish.config.loader import load_pipeline
from aish.config.model import ModelEntry
from aish.models.embedded import start_embedded
from aish.models.smollm2 import NAME

PIPELINES = TOP / "pipelines"
AISH = Path(sys.executable).with_name("aish")


def cassettes_of(files: Sequence[Path]) -> list[Path]:
    """The cassettes that the tests of the files use."""
    found: dict[Path, None] = {}
    for file in files:
        pipeline = load_pipeline(file)
        for case in pipeline.tests:
            settings = case.cassette or pipeline.cassette
            if settings is not None:
                found[settings.path] = None
    return list(found)


@contextmanager
def aside(cassettes: Sequence[Path]) -> Generator[None]:
    """Out of the way while they are recorded anew, and back where that did not work."""
    with tempfile.TemporaryDirectory() as folder:
        old = {path: Path(folder, str(n)) for n, path in enumerate(cassettes) if path.exists()}
        for path, place in old.items():
            place.write_bytes(path.read_bytes())
            path.unlink()
        try:
            yield
        finally:
            for path, place in old.items():
                if not path.exists():
                    path.write_bytes(place.read_bytes())


@asynccontextmanager
async def endpoint() -> AsyncGenerator[Mapping[str, str]]:
    """A real model behind an endpoint, as the variables of `review.yaml` name it."""
    entry = ModelEntry(alias="cloud", embedded=NAME)
    async with start_embedded(entry, reaper=None, folder=None) as started:
        yield {
            "REVIEW_URL": started.base_url,
            "REVIEW_MODEL": NAME,
            "REVIEW_KEY": started.key,
        }


@contextmanager
def servers() -> Generator[Mapping[str, str]]:
    """The tool servers of `mcp.yaml`: one over HTTP, one that `uvx` is asked for."""
    port = free_port()
    with ExitStack() as stack:
        origin = stack.enter_context(
            listening(
                *npm_server("server-everything"),
                "streamableHttp",
                port=port,
                environment={"PORT": str(port)},
            )
        )
        yield {"EVERYTHING_URL": f"{origin}/mcp", **stack.enter_context(clock_by_uvx())}


async def main() -> int:
    """Record everything, and say how that went."""
    files = [Path(name) for name in sys.argv[1:]] or sorted(PIPELINES.glob("*.yaml"))
    scripted = [file for file in files if file.name in record_scripted.SCRIPTED]
    notes = [file for file in files if file.name == record_release_notes.NAME]
    hubs = [file for file in files if file.name == record_hub.NAME]
    real = [file for file in files if file not in {*scripted, *notes, *hubs}]
    code = 0
    if hubs:
        code = await anyio.to_thread.run_sync(record_hub.record)
    for file in scripted:
        code = await anyio.to_thread.run_sync(record_scripted.record, file.name) or code
    if not real and not notes:
        return code
    with servers() as tools:
        if notes:
            found = await anyio.to_thread.run_sync(record_release_notes.record, tools)
            code = found or code
        async with endpoint() as model:
            found = await anyio.to_thread.run_sync(record, real, {**tools, **model})
    return code or found


def record(files: Sequence[Path], more: Mapping[str, str]) -> int:
    """The exit code of the tests on what they have just recorded."""
    command = [str(AISH), "test", "--record=missing", *map(str, files)]
    with aside(cassettes_of(files)):
        return subprocess.run(command, env={**os.environ, **more}, check=False).returncode


if __name__ == "__main__":
    sys.exit(anyio.run(main))
