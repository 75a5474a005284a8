"""An MCP server made with the official SDK, over streamable HTTP: what a strict peer does.

    python tests/support/mcp_oracle_server.py PORT [--json]

Speaks both eras. Answers in events, or in JSON with `--json`.
"""

import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("oracle", log_level="WARNING")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("on purpose")


@server.tool()
async def count(steps: int, context: Context) -> str:
    """Report progress so many times."""
    for step in range(steps):
        await context.report_progress(step + 1, steps)
    return "counted"


async def serve() -> None:
    port, in_json = int(sys.argv[1]), "--json" in sys.argv
    await server.run_streamable_http_async(port=port, json_response=in_json)


if __name__ == "__main__":
    anyio.run(serve)
