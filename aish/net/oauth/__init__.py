"""OAuth of an MCP server: metadata, tokens, and the transport that sends them."""
