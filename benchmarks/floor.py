"""The smallest httpx programs that do the same exchanges: what aish is measured against.

python benchmarks/floor.py text URL [API]
python benchmarks/floor.py http URL MCP_URL TURNS
python benchmarks/floor.py stdio URL TURNS COMMAND...
python benchmarks/floor.py batch URL ITEMS.jsonl RESULTS.jsonl CONCURRENCY
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

# The command line of httpx, which it has where another package brings click, doubles what it costs.
sys.modules["httpx._main"] = None  # type: ignore[assignment]  # so Python writes "absent"

import httpx  # ruff: ignore[module-import-not-at-top-of-file] - after that

PROMPT = {"role": "user", "content": "go"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "mock__echo",
            "description": "Echo",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
]


async def turn(
    client: httpx.AsyncClient, url: str, messages: list[Any], tools: list[Any] | None = None
) -> tuple[str, list[Any]]:
    body: dict[str, Any] = {"model": "mock", "stream": True, "messages": messages}
    if tools:
        body["tools"] = tools
    text: list[str] = []
    calls: list[Any] = []
    async with client.stream("POST", url + "/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    text.append(delta["content"])
                calls += delta.get("tool_calls") or []
    return "".join(text), calls


Call = Callable[[str, Any], Awaitable[str]]


async def loop(client: httpx.AsyncClient, url: str, turns: int, call: Call) -> None:
    messages: list[Any] = [PROMPT]
    for _ in range(turns + 1):
        text, calls = await turn(client, url, messages, TOOLS)
        if not calls:
            print(text)
            return
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        for asked in calls:
            wanted = asked["function"]
            result = await call(wanted["name"], json.loads(wanted["arguments"]))
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": result})


def request(number: int, method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "floor", "version": "0"},
}


async def tools_at(mcp: str, client: httpx.AsyncClient) -> Call:
    numbers = iter(range(1, 10**9))
    headers = {"accept": "application/json, text/event-stream"}

    async def rpc(method: str, params: Any) -> Any:
        body = request(next(numbers), method, params)
        return (await client.post(mcp, json=body, headers=headers)).json()["result"]

    async def call(name: str, arguments: Any) -> str:
        name = name.partition("__")[2]
        result = await rpc("tools/call", {"name": name, "arguments": arguments})
        return str(result["content"][0]["text"])

    await rpc("initialize", INITIALIZE)
    await rpc("tools/list", {})
    return call


async def over_http(url: str, mcp: str, turns: int) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        await loop(client, url, turns, await tools_at(mcp, client))


async def over_stdio(url: str, turns: int, command: list[str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    to_child, from_child = child.stdin, child.stdout
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        numbers = iter(range(1, 10**9))

        async def rpc(method: str, params: Any) -> Any:
            body = request(next(numbers), method, params)
            to_child.write(json.dumps(body).encode() + b"\n")
            return json.loads(await from_child.readline())["result"]

        async def call(name: str, arguments: Any) -> str:
            name = name.partition("__")[2]
            result = await rpc("tools/call", {"name": name, "arguments": arguments})
            return str(result["content"][0]["text"])

        await rpc("initialize", INITIALIZE)
        await rpc("tools/list", {})
        await loop(client, url, turns, call)
    to_child.close()
    await child.wait()


async def text(url: str, api: str = "chat") -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        if api == "chat":
            print((await turn(client, url, [PROMPT]))[0])
        else:
            print(await say(client, url, api))


async def say(client: httpx.AsyncClient, url: str, api: str) -> str:
    """A turn of text on another wire."""
    more = {"max_tokens": 4096} if api == "messages" else {"store": False}
    key = "messages" if api == "messages" else "input"
    body = {"model": "mock", "stream": True, key: [PROMPT], **more}
    text: list[str] = []
    async with client.stream("POST", f"{url}/{api}", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if event["type"] == "content_block_delta":
                    text.append(event["delta"]["text"])
                elif event["type"] == "response.output_text.delta":
                    text.append(event["delta"])
    return "".join(text)


async def batch(url: str, lines: TextIO, out: TextIO, concurrency: int) -> None:
    """The prompts of a file, some at a time; each answer is one line of another file."""
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:

        async def worker() -> None:
            for line in lines:
                item = json.loads(line)
                prompt = {"role": "user", "content": f"Say {item['text']}"}
                answer, _ = await turn(client, url, [prompt])
                out.write(json.dumps({"id": item["id"], "text": answer}) + "\n")

        await asyncio.gather(*(worker() for _ in range(concurrency)))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "text":
        asyncio.run(text(*rest))
    elif kind == "http":
        asyncio.run(over_http(rest[0], rest[1], int(rest[2])))
    elif kind == "batch":
        given, results = Path(rest[1]), Path(rest[2])
        with given.open(encoding="utf-8") as lines, results.open("w", encoding="utf-8") as out:
            asyncio.run(batch(rest[0], lines, out, int(rest[3])))
    else:
        asyncio.run(over_stdio(rest[0], int(rest[1]), rest[2:]))
