"""The vendors' own libraries doing the same on each `api`: what the wires are measured against.

python benchmarks/vendor_sdks.py API text URL
python benchmarks/vendor_sdks.py API tools URL MCP_URL

Streams are read as events, which costs less than the helpers that also put the answer together.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from floor import PROMPT, TOOLS, tools_at

Turn = Callable[[list[Any]], Awaitable[tuple[str, list[Any]]]]
"""Asks with a history, adds the answer to it; the text, and calls as id, name and arguments."""

FUNCTION: Any = TOOLS[0]["function"]


def chat(url: str) -> Turn:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="none", base_url=url)

    async def turn(history: list[Any]) -> tuple[str, list[Any]]:
        text, calls = [], []
        asked: Any = {"model": "mock", "messages": history, "tools": TOOLS}
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                text.append(choice.delta.content or "")
                calls += [one.model_dump() for one in choice.delta.tool_calls or ()]
        history.append({"role": "assistant", "content": "".join(text), "tool_calls": calls})
        named = [
            (one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls
        ]
        return "".join(text), named

    return turn


def messages(url: str) -> Turn:
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(api_key="none", base_url=url.removesuffix("/v1"))
    schema = {"input_schema": FUNCTION["parameters"]}
    tools = [{"name": FUNCTION["name"], "description": FUNCTION["description"], **schema}]

    async def turn(history: list[Any]) -> tuple[str, list[Any]]:
        text: list[str] = []
        content: list[Any] = []
        asked: Any = {"model": "mock", "max_tokens": 4096, "messages": history, "tools": tools}
        async for event in await client.messages.create(**asked, stream=True):
            if event.type == "content_block_start":
                content.append({**event.content_block.model_dump(exclude_none=True), "input": ""})
            elif event.type == "content_block_delta":
                if event.delta.type == "text_delta":
                    text.append(event.delta.text)
                elif event.delta.type == "input_json_delta":
                    content[-1]["input"] += event.delta.partial_json
        for block in content:
            if block["type"] == "text":
                del block["input"]
                block["text"] = "".join(text)
            else:
                block["input"] = json.loads(block["input"])
        history.append({"role": "assistant", "content": content})
        asked_for = [block for block in content if block["type"] == "tool_use"]
        named = [(block["id"], block["name"], json.dumps(block["input"])) for block in asked_for]
        return "".join(text), named

    return turn


def responses(url: str) -> Turn:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="none", base_url=url)
    tools = [{"type": "function", "strict": False, **FUNCTION}]

    async def turn(history: list[Any]) -> tuple[str, list[Any]]:
        text: list[str] = []
        calls: list[Any] = []
        asked: Any = {"model": "mock", "input": history, "tools": tools, "store": False}
        async for event in await client.responses.create(**asked, stream=True):
            if event.type == "response.output_text.delta":
                text.append(event.delta)
            elif event.type == "response.output_item.done":
                history.append(event.item.model_dump(exclude_none=True))
                if event.item.type == "function_call":
                    item = event.item
                    calls.append((item.call_id, item.name, item.arguments))
        return "".join(text), calls

    return turn


def add_result(api: str, history: list[Any], id: str, content: str) -> None:
    if api == "chat":
        history.append({"role": "tool", "tool_call_id": id, "content": content})
    elif api == "messages":
        block = {"type": "tool_result", "tool_use_id": id, "content": content}
        history.append({"role": "user", "content": [block]})
    else:
        history.append({"type": "function_call_output", "call_id": id, "output": content})


async def converse(api: str, url: str, mcp: str) -> None:
    import httpx

    turn, history = APIS[api](url), [PROMPT]
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        call = await tools_at(mcp, client)
        while True:
            text, calls = await turn(history)
            if not calls:
                print(text)
                return
            for id, name, given in calls:
                add_result(api, history, id, await call(name, json.loads(given)))


async def say(api: str, url: str) -> None:
    text, _ = await APIS[api](url)([PROMPT])
    print(text)


APIS: dict[str, Callable[[str], Turn]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
}

if __name__ == "__main__":
    api, kind, *rest = sys.argv[1:]
    asyncio.run(say(api, *rest) if kind == "text" else converse(api, *rest))
