"""The MCP server: tools of packs and servers, offered to clients behind one gate."""
