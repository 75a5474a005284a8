#!/usr/bin/env bash
# mcp-server-sqlite 2025.4.25 (PyPI; the newest) requires `mcp>=1.6.0` without an upper bound, and does
# not start with version 2 of that SDK, which `pip` and `uvx` install with it today.
#
# It decorates its handlers by `@server.list_resources()`, which the low-level `Server` of version 2
# has no more. A client sees a server that ends with code 1 before the handshake. With `mcp<2`, as
# `uvx --with 'mcp<2' mcp-server-sqlite` has it, the same package answers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for sdk in mcp==2.3.0 'mcp<2'; do
  python3 -m venv "$folder/$sdk"
  "$folder/$sdk/bin/pip" install --quiet --disable-pip-version-check "$sdk" mcp-server-sqlite==2025.4.25 2> /dev/null
done
python3 - "$folder" <<'PY'
import json
import subprocess
import sys

hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
ask = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})


def start(sdk):
    python = f"{sys.argv[1]}/{sdk}/bin/python"
    # Its installed script names the interpreter by a path that holds `<` and `=`.
    words = [python, "-c", "import mcp_server_sqlite as s; s.main()", "--db-path", f"{sys.argv[1]}/x.db"]
    return subprocess.run(words, input=f"{ask}\n", capture_output=True, text=True, timeout=60)


new, old = start("mcp==2.3.0"), start("mcp<2")
print("mcp 2.3.0:", new.returncode, new.stderr.strip().splitlines()[-1])
print("mcp<2:    ", json.loads(old.stdout.splitlines()[0])["result"]["serverInfo"]["name"], "answers")
assert new.returncode == 1 and not new.stdout
assert new.stderr.strip().endswith("'Server' object has no attribute 'list_resources'")
PY
