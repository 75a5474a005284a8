#!/usr/bin/env bash
# mcp-time-linux-x64 0.4.0 (npm; a server of the Model Context Protocol in Go): the definitions of its
# tools are others at each start, though nothing was changed.
#
# The description of a parameter of `current_time` lists the names of its predefined formats in the
# order of a Go map, which is another one in each process. Whoever pins tools by a hash of their
# definitions, or caches prompts that hold them, sees a change at each start. The specification does
# not ask for stable definitions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" mcp-time-linux-x64@0.4.0 > /dev/null
python3 - "$folder/node_modules/mcp-time-linux-x64/bin/mcp-time" <<'PY'
import json
import re
import subprocess
import sys

HELLO = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def listed():
    """Version of a new process of the server, and the definition of its tool."""
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        def ask(message):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            server.stdin.flush()

        ask({"id": 1, "method": "initialize", "params": HELLO})
        version = json.loads(server.stdout.readline())["result"]["serverInfo"]["version"]
        ask({"method": "notifications/initialized"})
        ask({"id": 2, "method": "tools/list"})
        tools = json.loads(server.stdout.readline())["result"]["tools"]
        server.stdin.close()
        return version, next(one for one in tools if one["name"] == "current_time")


starts = [listed() for _ in range(5)]
texts = {json.dumps(tool, sort_keys=True) for _, tool in starts}
orders = [re.findall(r"`(\w+)`", tool["inputSchema"]["properties"]["format"]["description"]) for _, tool in starts]
print("versions:", sorted({version for version, _ in starts}))
print("different definitions in 5 starts:", len(texts))
for order in orders[:2]:
    print("  ", " ".join(order[:6]), "…")
assert {version for version, _ in starts} == {"v0.4.0"}
assert len(texts) > 1
assert len({tuple(sorted(order)) for order in orders}) == 1
PY
