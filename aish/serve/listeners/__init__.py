"""Where clients of the MCP server connect, one module for each kind of framing."""
