#!/usr/bin/env bash
# mcp-prometheus-linux-amd64 2.1.1 (npm; a server of the Model Context Protocol in Go) speaks first:
# it sends `notifications/tools/list_changed` before the client has sent anything.
#
# The lifecycle of the protocol (2025-11-25) begins with the client's `initialize`, and the server
# says in its answer whether it tells of changed tools at all. Nothing has changed: the list that is
# asked for next is the first one. A client that lists the tools again at each such message asks for
# them before the handshake is over, or takes all tools of the first list as new.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" mcp-prometheus-linux-amd64@2.1.1 > /dev/null
server="$folder/node_modules/mcp-prometheus-linux-amd64/bin/mcp-prometheus-linux-amd64"
python3 - "$server" --url http://127.0.0.1:9 <<'PY'
import json
import subprocess
import sys
import time

hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
with subprocess.Popen(sys.argv[1:], **pipes) as server:
    time.sleep(1)
    server.stdin.write(json.dumps(ask).encode() + b"\n")
    server.stdin.flush()
    first = json.loads(server.stdout.readline())
    second = json.loads(server.stdout.readline())
    server.stdin.close()
print("first: ", first)
print("second:", second["result"]["serverInfo"]["version"], "answers `initialize`")
assert first["method"] == "notifications/tools/list_changed"
assert second["id"] == 1
assert second["result"]["serverInfo"]["version"] == "v2.1.1"
PY
