"""What is needed to reach one MCP server, everything about it already resolved."""

from collections.abc import Mapping
from dataclasses import field

from aish.config.server_entry import ServerEntry
from aish.mcp.inprocess import Pack
from aish.vocab.frozen import frozen


@frozen
class ServerConnection:
    """A server entry with every `${VAR}` in it expanded.

    `token` is the bearer token (M3), `child_env` the whole environment of a child process (M10),
    `pack` the opened pack where the entry names one.
    """

    entry: ServerEntry
    token: str | None = None
    child_env: Mapping[str, str] = field(default_factory=dict)
    pack: Pack | None = None

    @property
    def transport(self) -> str:
        """`http`, `stdio` or `pack`."""
        if self.entry.url is not None:
            return "http"
        return "stdio" if self.entry.command else "pack"
