"""Listeners for clients of the MCP server, one module for each kind of framing."""
