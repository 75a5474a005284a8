"""MCP messages and values of both eras: pure, for a client and a server."""
