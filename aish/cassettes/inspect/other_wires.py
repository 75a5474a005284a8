"""Recorded requests of other wires, in the form of chat completions, for people to read."""

import json
from collections.abc import Iterator, Mapping

from aish.cassettes.format.json_body import at, items, word
from aish.core.json import JsonObject, JsonValue


def messages_as_chat(body: JsonObject) -> JsonObject:
    """A request to `/v1/messages`: system prompt first, calls and results as chat has them."""
    system = body.get("system")
    messages: list[JsonValue] = [{"role": "system", "content": system}] if system else []
    for message in items(body.get("messages")):
        messages.extend(_chat_messages(message))
    tools = [_chat_tool(tool) for tool in items(body.get("tools"))]
    return {**body, "messages": messages, **({"tools": tools} if tools else {})}


def _chat_messages(message: JsonValue) -> Iterator[JsonValue]:
    content = at(message, "content")
    calls: list[JsonValue] = []
    rest: list[JsonValue] = []
    for block in items(content):
        match at(block, "type"):
            case "tool_result":
                yield {
                    "role": "tool",
                    "tool_call_id": at(block, "tool_use_id"),
                    "content": at(block, "content"),
                }
            case "tool_use":
                calls.append(_chat_call(block))
            case "thinking" | "redacted_thinking":
                pass
            case _:
                rest.append(block)
    if isinstance(content, str) or rest or calls:
        shown = content if isinstance(content, str) else rest
        told: dict[str, JsonValue] = {"role": at(message, "role"), "content": shown}
        yield {**told, "tool_calls": calls} if calls else told


def _chat_call(block: JsonValue) -> JsonValue:
    arguments = json.dumps(at(block, "input"), ensure_ascii=False)
    function: JsonValue = {"name": word(at(block, "name")), "arguments": arguments}
    return {"id": at(block, "id"), "type": "function", "function": function}


def _chat_tool(tool: JsonValue) -> JsonValue:
    if not isinstance(tool, Mapping) or "input_schema" not in tool:
        return tool
    function = {key: value for key, value in tool.items() if key in {"name", "description"}}
    function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def responses_as_chat(body: JsonObject) -> JsonObject:
    """A request to `/responses`: instructions first, calls and results as chat has them."""
    system = body.get("instructions")
    messages: list[JsonValue] = [{"role": "system", "content": system}] if system else []
    calls: list[JsonValue] = []
    for item in items(body.get("input")):
        match at(item, "type"):
            case "function_call":
                if not calls:
                    messages.append({"role": "assistant", "content": None, "tool_calls": calls})
                function = {"name": at(item, "name"), "arguments": at(item, "arguments")}
                calls.append({"id": at(item, "call_id"), "function": function})
            case "function_call_output":
                result = {"tool_call_id": at(item, "call_id"), "content": at(item, "output")}
                messages.append({"role": "tool", **result})
                calls = []
            case "reasoning":
                pass
            case _:
                messages.append({"role": at(item, "role"), "content": at(item, "content")})
                calls = []
    tools = [{"function": tool} for tool in items(body.get("tools"))]
    return {**body, "messages": messages, **({"tools": tools} if tools else {})}
