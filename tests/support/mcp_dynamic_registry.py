"""A registry of servers that come and go, as tests of `aish.mcp` open it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_scenes import Notices, Scene

from aish.core.events import ServerInfo
from aish.mcp.client.dynamic_registry import DynamicRegistry, open_dynamic_registry
from aish.mcp.transports.adapter import CassetteAdapter
from aish.mcp.transports.settings import ServerConnection
from aish.system.process.reaper import Reaper


@dataclass
class DynamicScene(Scene):
    """An open dynamic_registry; `heard` are the servers that settled in the background."""

    dynamic_registry: DynamicRegistry = None  # type: ignore[assignment]  # always given; what `Scene` has has defaults
    heard: list[ServerInfo] = field(default_factory=list)

    @property
    def states(self) -> dict[str, str]:
        """How each server is."""
        return {info.alias: info.state for info in self.registry.servers}

    @property
    def picture(self) -> tuple[Any, ...]:
        """All that a failure must not change."""
        return self.registry.servers, self.registry.listed()


@asynccontextmanager
async def dynamic_registry(
    *connections: ServerConnection,
    logs: Path | None = None,
    max_tool_name: int = 64,
    elicit: Any = None,
    adapter: CassetteAdapter | None = None,
    settled: bool = True,
) -> AsyncGenerator[DynamicScene]:
    """Open a registry and begin with `connections`; `settled` waits for them."""
    notices, heard = Notices(), list[ServerInfo]()
    reaper = Reaper()
    try:
        async with open_dynamic_registry(
            reaper=reaper,
            logs=logs,
            max_tool_name=max_tool_name,
            notice=notices,
            on_settled=heard.append,
            elicit=elicit,
            adapter=adapter,
        ) as opened:
            opened.begin(connections)
            if settled:
                await opened.wait_until_settled()
            yield DynamicScene(opened.registry, notices, dynamic_registry=opened, heard=heard)
    finally:
        reaper.close()
