#!/usr/bin/env bash
# Servers of the Model Context Protocol that tell a failure as a good answer. Where their service
# cannot be reached, `tools/call` has no `isError` with @upstash/context7-mcp 4.1.1 (npm), mcp-nixos
# 3.1.0 and awslabs.aws-documentation-mcp-server 1.2.3 (PyPI); the last one gives a search result
# whose title is the error. arxiv-mcp-server 0.8.2 (PyPI) reports the same with `isError: true`.
#
# MCP 2025-06-18, "Error Handling" of tools: failures of an API are reported in a result with
# `isError: true`. Whoever counts failed calls, or tries them again, does not see these; a model
# reads them as what was found.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for package in mcp-nixos==3.1.0 awslabs.aws-documentation-mcp-server==1.2.3 arxiv-mcp-server==0.8.2; do
  python3 -m venv "$folder/${package%%==*}"
  "$folder/${package%%==*}/bin/pip" install --quiet --disable-pip-version-check "$package" 2> /dev/null
done
npm install --silent --no-audit --no-fund --prefix "$folder" @upstash/context7-mcp@4.1.1 > /dev/null
# Without a network, so that it is the same everywhere.
unshare --user --map-root-user --net python3 - "$folder" <<'PY'
import json
import subprocess
import sys

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def call(program, tool, arguments):
    """The result of a call, with the text of its first block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([f"{sys.argv[1]}/{program}"], **pipes) as server:
        def ask(message):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            server.stdin.flush()
            while "id" in message:
                answer = json.loads(server.stdout.readline())
                if answer.get("id") == message["id"]:
                    return answer["result"]

        ask({"id": 1, "method": "initialize", "params": HELLO})
        ask({"method": "notifications/initialized"})
        result = ask({"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        server.terminate()
    text = " ".join(result["content"][0]["text"].split())
    print(f"{program.rpartition('/')[2]}: isError {result.get('isError')}: {text[:100]}")
    return bool(result.get("isError")), text


context7 = call("node_modules/.bin/context7-mcp", "resolve-library-id", {"query": "hooks", "libraryName": "react"})
nixos = call("mcp-nixos/bin/mcp-nixos", "nix_versions", {"package": "git"})
aws = call(
    "awslabs.aws-documentation-mcp-server/bin/awslabs.aws-documentation-mcp-server",
    "search_documentation",
    {"search_phrase": "buckets"},
)
arxiv = call("arxiv-mcp-server/bin/arxiv-mcp-server", "search_papers", {"query": "graphs"})
assert context7 == (False, "Error searching libraries: TypeError: fetch failed")
assert not nixos[0] and nixos[1].startswith("Error (API_ERROR): ")
assert not aws[0] and '"title": "Error searching AWS docs: ' in aws[1]
assert arxiv[0] and "Could not connect to arXiv" in arxiv[1]
PY
