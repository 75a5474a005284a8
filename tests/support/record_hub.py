"""Records the cassette of `pipelines/hub.yaml`: what a client asks, and all that is behind it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from mcp_peers import TOP

NAME = "hub.yaml"
CALLS: Sequence[tuple[str, dict[str, Any]]] = (
    ("repo__file_read", {"path": "pipelines/data/note.md"}),
    ("repo__dir_list", {"path": "pipelines/data"}),
    ("repo__file_search", {"query": "meeting", "path": "pipelines/data"}),
    ("repo__file_write", {"path": "planted.md", "content": "nobody approves this"}),
    ("pipeline__meeting", {"file": "note.md"}),
)


def messages() -> list[dict[str, Any]]:
    """What the client says, in order."""
    info = {"name": "recorder", "version": "1"}
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    said: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": begin},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ]
    for id, (name, arguments) in enumerate(CALLS, 3):
        params = {"name": name, "arguments": arguments}
        said.append({"id": id, "method": "tools/call", "params": params})
    return [{"jsonrpc": "2.0", **one} for one in said]


def record() -> int:
    """Record it with the embedded model; the exit code of the server."""
    cassette = TOP / "tests" / "cassettes" / NAME
    command = [sys.executable, "-m", "aish", "serve", f"pipelines/{NAME}", "--stdio"]
    command += ["--record", str(cassette)]
    with subprocess.Popen(
        command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages():
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            while "id" in message:
                if json.loads(process.stdout.readline()).get("id") == message["id"]:
                    break
        process.stdin.close()
        code = process.wait()
    cassette.chmod(0o644)
    return code


if __name__ == "__main__":
    sys.exit(record())
