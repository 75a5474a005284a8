"""A registry over given servers, as tests of `aish.mcp` open it."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from aish.config.model import ServerEntry, ServerTimeout
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Progress, Sampler
from aish.core.tools import ToolName, ToolResult
from aish.mcp.client.registry import Registry, open_registry
from aish.mcp.transports.adapter import CassetteAdapter
from aish.mcp.transports.settings import ServerConnection
from aish.packs.framework.pack import READS, Pack, PackServices, PackTool
from aish.packs.framework.server import OpenPacks
from aish.packs.parse_worker import ParseWorker
from aish.packs.tool_results import Answer
from aish.system.process.child import child_environment
from aish.system.process.reaper import Reaper

STDIO_SERVER = Path(__file__).with_name("mcp_stdio_server.py")
HTTP_SERVER = Path(__file__).with_name("mcp_http_server.py")
PATIENCE = 60.0

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


@dataclass
class Notices:
    """What was said of the servers: alias, code and text."""

    said: list[tuple[str, str, str]] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, alias: str, code: str, text: str) -> None:
        self.said.append((alias, code, text))
        self.news.set()
        self.news = anyio.Event()

    @property
    def codes(self) -> list[str]:
        return [code for _, code, _ in self.said]

    def texts(self, code: str) -> list[str]:
        return [text for _, found, text in self.said if found == code]

    async def wait_for(self, code: str) -> str:
        """The text of the first notice with this code, now or later."""
        while not self.texts(code):
            await self.news.wait()
        return self.texts(code)[0]


@dataclass
class Scene:
    """An open registry and what was heard of it."""

    registry: Registry
    notices: Notices
    progress: list[Progress] = field(default_factory=list)

    async def call(self, name: str, sample: Sampler | None = None, **arguments: Any) -> ToolResult:
        """Call `alias__tool`, which must be there."""
        alias, _, tool = name.partition("__")
        found = self.registry.by_name(ToolName(alias, tool))
        assert found is not None, f"there is no {name}: {self.registry.servers}"
        return await self.registry.call(found, arguments, self.progress.append, sample)

    async def text(self, name: str, **arguments: Any) -> str:
        """The content of a successful call."""
        result = await self.call(name, **arguments)
        assert result.kind == "ok", result
        return result.content

    @property
    def names(self) -> list[str]:
        return [tool.wire for tool in self.registry.listed()]


def http(
    url: str, alias: str = "web", *, token: str | None = None, **fields: Any
) -> ServerConnection:
    """A connection over HTTP; `connect` and `call` are its time-outs."""
    return ServerConnection(_entry(alias, fields, url=url), token=token)


def stdio(*flags: str, alias: str = "kid", **fields: Any) -> ServerConnection:
    """A connection to `mcp_stdio_server.py` with these flags."""
    argv = (sys.executable, str(STDIO_SERVER), *flags)
    return command(*argv, alias=alias, **fields)


def command(*argv: str, alias: str = "kid", **fields: Any) -> ServerConnection:
    """A connection to any command."""
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    entry = _entry(alias, fields, command=argv)
    return ServerConnection(entry, child_env=child_environment(entry.env, environ))


def _entry(alias: str, fields: dict[str, Any], **more: Any) -> ServerEntry:
    connect, call = fields.pop("connect", PATIENCE), fields.pop("call", PATIENCE)
    timeout = ServerTimeout(connect, call, fields.pop("seconds_by_tool", {}))
    return ServerEntry(alias=alias, timeout=timeout, **fields, **more)


@asynccontextmanager
async def registry(
    *connections: ServerConnection,
    logs: Path | None = None,
    max_tool_name: int = 64,
    elicit: Any = None,
    reaper: Reaper | None = None,
    adapter: CassetteAdapter | None = None,
) -> AsyncGenerator[Scene]:
    """Open a registry; its reaper is ended afterwards."""
    notices = Notices()
    own = Reaper() if reaper is None else reaper
    try:
        async with open_registry(
            connections,
            reaper=own,
            logs=logs,
            max_tool_name=max_tool_name,
            notice=notices,
            elicit=elicit,
            adapter=adapter,
        ) as opened:
            yield Scene(opened, notices)
    finally:
        own.close()


def play(
    scene: Callable[[], Awaitable[Any]], *, seconds: float = PATIENCE, run: Any = anyio.run
) -> Any:
    """Run an async test body under a deadline that only a hang reaches."""

    async def bounded() -> Any:
        with anyio.fail_after(seconds):
            return await scene()

    return run(bounded)


def aliases(connections: Sequence[ServerConnection]) -> list[str]:
    return [connection.entry.alias for connection in connections]


class TwinPack(OpenPacks):
    """A pack in memory, of `read`, which fails for `path=bad`, and `bug`."""

    def __init__(self) -> None:
        worker = ParseWorker(None)
        services = PackServices(tasks=cast("TaskGroup", None), reaper=Reaper(), worker=worker)
        tools = tuple(map(_pack_tool, ("read", "bug")))
        super().__init__({"twin": Pack(tools, root="none")}, None, services, {})

    async def start(self) -> None:
        """It shares nothing."""

    async def call(self, name: str, arguments: JsonObject) -> dict[str, JsonValue]:
        if name == "bug":
            raise ZeroDivisionError("oops")
        text = f"{name} {dict(arguments)}"
        bad = arguments.get("path") == "bad"
        return {"content": [{"type": "text", "text": text}], "isError": bad}


def _pack_tool(name: str) -> PackTool:
    async def function() -> Answer:
        await anyio.lowlevel.checkpoint()
        raise AssertionError("the pack answers itself")

    return PackTool(
        name,
        "does it",
        {},
        {},
        READS,
        codes=(),
        older={},
        older_parameters={},
        function=function,
    )
