"""A server over stdio that lists and answers exactly what a file says.

    python tests/support/mcp_canned_server.py FILE

FILE is JSON: `tools` is what is listed, `results` maps names of tools to results (or to an `error`
in their place), `calls` is a file that gets the parameters of each call, `hello` is more of what is
said to `initialize`. With `answers`, results by
method (or errors), in turn where it is a list of them, it declares resources and prompts too.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    script = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    answers = script.get("answers", {})
    offered = {"resources": {"subscribe": True}, "prompts": {}, "completions": {}}
    declared = {"tools": {}, **(offered if answers else {})}
    for line in sys.stdin.buffer:
        message: dict[str, Any] = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if method == "initialize":
            version = params["protocolVersion"]
            info = {"name": "canned", "version": "1"}
            told = {"protocolVersion": version, "capabilities": declared, "serverInfo": info}
            reply["result"] = told | script.get("hello", {})
        elif method in answers:
            with Path(script["calls"]).open("a", encoding="utf-8") as calls:
                calls.write(json.dumps(params) + "\n")
            found = answers[method]
            said = found.pop(0) if isinstance(found, list) else found
            is_error = isinstance(said, dict) and said.keys() >= {"code", "message"}
            reply["error" if is_error else "result"] = said
        elif method == "tools/list":
            reply["result"] = {"tools": script["tools"]}
        elif method == "tools/call":
            with Path(script["calls"]).open("a", encoding="utf-8") as calls:
                calls.write(json.dumps(params) + "\n")
            reply |= script["results"][params["name"]]
        else:
            reply["error"] = {"code": -32601, "message": f"method not found: {method}"}
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
