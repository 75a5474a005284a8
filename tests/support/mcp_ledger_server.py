"""A small MCP server over stdio that leaves traces: each call of `write` adds a line to a file.

    python tests/support/mcp_ledger_server.py [--describe TEXT]

`write {text}` adds a line to `ledger.txt` in the working directory; `hang {text}` does too and
never answers; `wait {text}` answers once somebody wrote into the FIFO `gate`; `die {text}` ends the
process after it; `fail` answers that it failed, unless there is a file `mended`. `--describe` is
what `write` says of itself, until `change {text}` makes it say something else.
"""

from __future__ import annotations

import os
import sys

import mcp_tools
import quick_json as json

LEDGER = "ledger.txt"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def tools(description: str) -> list[mcp_tools.Message]:
    told = {
        "write": description,
        "hang": "Write, and stop",
        "wait": "Write, and wait",
        "die": "Write, and die",
        "fail": "Fail",
        "change": "Change",
    }
    return [{"name": n, "description": d, "inputSchema": TEXT} for n, d in told.items()]


def write(text: str) -> None:
    with open(LEDGER, "a", encoding="utf-8") as ledger:
        ledger.write(f"{json.dumps(text)}\n")


def called(name: str, text: str) -> mcp_tools.Message:
    if name == "fail":
        mended = os.path.exists("mended")
        return {**mcp_tools.text_result("mended" if mended else "no luck"), "isError": not mended}
    write(text)
    if name == "die":
        os._exit(4)
    if name == "hang":
        os.read(os.pipe()[0], 1)
    if name == "wait":
        with open("gate", encoding="utf-8") as gate:
            gate.read()
    return mcp_tools.text_result(f"wrote {text}")


def main() -> None:
    description = sys.argv[2] if sys.argv[1:2] == ["--describe"] else "Write a line"
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        params = message.get("params") or {}
        version = mcp_tools.version_of(message)
        extra = {"resultType": "complete"} if version else {}
        if message["method"] == "tools/list":
            result = {**extra, "tools": tools(description)}
        elif message["method"] == "tools/call" and params["name"] == "change":
            description = params["arguments"]["text"]
            changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            print(json.dumps(changed), flush=True)
            result = {**extra, **mcp_tools.text_result("changed")}
        elif message["method"] == "tools/call":
            result = {**extra, **called(params["name"], params["arguments"]["text"])}
        else:
            print(json.dumps(mcp_tools.answer(message, "legacy")), flush=True)
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
