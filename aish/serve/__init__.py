"""The MCP server: offers the tools of packs and servers to clients, behind one gate."""
