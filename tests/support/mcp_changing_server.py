"""A small MCP server over stdio whose tools stand in a file, so that they can change.

    python tests/support/mcp_changing_server.py [--announce] [--end-after-call]

The file is `tools.json` in its folder: the tools, or, with `--announce` or `--end-after-call`, a
list of such lists: one more is used after each call. `--announce` says so; `--end-after-call` ends
the process instead, and begins with the list that a file `begun` counts; `pid` has its number.
Every tool says its name.
"""

from __future__ import annotations

import os
import sys

import mcp_tools
import quick_json as json

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any

TOOLS = "tools.json"
BEGUN = "begun"


def send(*messages: mcp_tools.Message) -> None:
    """In one write: who reads the first of them has the others too."""
    sys.stdout.write("".join(json.dumps(message) + "\n" for message in messages))
    sys.stdout.flush()


def answer(message: mcp_tools.Message, tools: Any) -> mcp_tools.Message:
    number = message["id"]
    if message["method"] == "tools/list":
        version = mcp_tools.version_of(message)
        result = {**({"resultType": "complete"} if version else {}), "tools": tools}
    elif message["method"] == "tools/call":
        result = mcp_tools.text_result(f"{message['params']['name']} was called")
    else:
        return mcp_tools.answer(message, "legacy") or {}
    return {"jsonrpc": "2.0", "id": number, "result": result}


def main() -> None:
    changes = "--announce" in sys.argv or "--end-after-call" in sys.argv
    with open(TOOLS, encoding="utf-8") as file:
        lists = json.loads(file.read())
    number = 0
    if "--end-after-call" in sys.argv:
        with open(BEGUN, "a", encoding="utf-8") as count:
            number = count.tell()
            count.write(".")
        with open("pid", "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answers = [answer(message, lists[min(number, len(lists) - 1)] if changes else lists)]
        if message["method"] == "tools/call" and "--announce" in sys.argv:
            number += 1
            # Announced later, the change could come after the client's next call.
            answers.append({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        send(*answers)
        if message["method"] == "tools/call" and "--end-after-call" in sys.argv:
            os._exit(0)


if __name__ == "__main__":
    main()
