"""What is needed to reach one MCP server, everything about it already resolved."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from urllib.parse import urlsplit

from aish.config.server_entry import ServerEntry
from aish.core.frozen import frozen
from aish.mcp.inprocess import Pack


@frozen
class ServerConnection:
    """A server entry with every `${VAR}` in it expanded.

    `token` is the bearer token (M3), `child_env` the whole environment of a child process (M10),
    `pack` the opened pack where the entry names one. A roster calls `let_go` once the server is
    closed.
    """

    entry: ServerEntry
    token: str | None = None
    child_env: Mapping[str, str] = field(default_factory=dict)
    pack: Pack | None = None
    let_go: Callable[[], Awaitable[None]] | None = None

    @property
    def transport(self) -> str:
        """`http`, `stdio` or `pack`."""
        if self.entry.url is not None:
            return "http"
        return "stdio" if self.entry.command else "pack"

    @property
    def address(self) -> str:
        """The URL without query and credentials, the command line, or the names of the packs."""
        if self.entry.url is not None:
            return _bare(self.entry.url)
        if self.entry.command:
            from shlex import join

            return join(self.entry.command)
        return f"pack {', '.join(self.entry.pack)}"


def _bare(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
