"""A small MCP server over stdio, with flags for hostile behaviour.

    python tests/support/mcp_stdio_server.py [--era both|legacy|modern] [flags]

`mcp_stdio_serving.py` has all of it: a module is compiled once, and a script at each start.
"""

from mcp_stdio_serving import main

if __name__ == "__main__":
    main()
