"""What `aish serve` is measured against over HTTP; each listens on PORT at `/mcp`.

python benchmarks/hub_peers.py floor PORT URL          the smallest proxy of starlette and httpx
python benchmarks/hub_peers.py sdk PORT FOLDER         a tool that reads a file, by the SDK;
                                                       at its standard streams for port 0
python benchmarks/hub_peers.py fastmcp PORT COMMAND…   FastMCP's proxy before a server
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


def floor(port: int, url: str) -> None:
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    client = httpx.AsyncClient()

    async def forward(request: Request) -> Response:
        headers = {"content-type": "application/json", "accept": request.headers["accept"]}
        found = await client.post(url, content=await request.body(), headers=headers)
        kind = found.headers.get("content-type")
        return Response(found.content, found.status_code, media_type=kind)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    app = Starlette(routes=[Route("/mcp", forward, methods=["POST"])], lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="error", http="h11", loop="asyncio")


def sdk(port: int, folder: str) -> None:
    from mcp.server import MCPServer

    server = MCPServer("peer", log_level="ERROR")

    @server.tool(structured_output=False)
    def file_read(path: str) -> str:
        """Read a file."""
        return (Path(folder) / path).read_text(encoding="utf-8")

    if port:
        server.run("streamable-http", port=port, json_response=True)
    else:
        server.run("stdio")


def fastmcp(port: int, *command: str) -> None:
    from fastmcp.server import create_proxy  # type: ignore[import-not-found]  # in an environment of its own

    servers = {"s": {"command": command[0], "args": list(command[1:])}}
    proxy = create_proxy({"mcpServers": servers}, name="peer")
    proxy.run("http", show_banner=False, port=port, json_response=True, log_level="ERROR")


if __name__ == "__main__":
    {"floor": floor, "sdk": sdk, "fastmcp": fastmcp}[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
