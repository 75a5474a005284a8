"""Streams of `/responses` for tests, as the vendor sends them, and what a decoder makes of them."""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import wire_streams
from model_endpoint import Reply, stream_reply

from aish.wire.responses.decode import ResponsesDecoder

Item = dict[str, Any]
decoded = functools.partial(wire_streams.decoded, kind=ResponsesDecoder)
COUNTS: Mapping[str, Any] = {
    "input_tokens": 40,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 52,
}


def event(kind: str, **fields: Any) -> bytes:
    """One event, with its name twice, as the vendor sends it."""
    body = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {body}\n\n".encode()


def message(text: str, id: str = "msg_1", **more: Any) -> Item:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    whole = {"id": id, "type": "message", "role": "assistant", "status": "completed"}
    return {**whole, "content": [part], **more}


def refusal(text: str, id: str = "msg_1") -> Item:
    return message("", id, content=[{"type": "refusal", "refusal": text}])


def call(call_id: str, name: str, arguments: str, **more: Any) -> Item:
    whole = {"id": f"fc_{call_id}", "type": "function_call", "status": "completed"}
    return {**whole, "call_id": call_id, "name": name, "arguments": arguments, **more}


def reasoning(*summary: str, id: str = "rs_1", **more: Any) -> Item:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    whole = {"id": id, "type": "reasoning", "summary": parts}
    return {**whole, "encrypted_content": f"gAAAA-{id}-secret", **more}


def response(*output: Item, status: str = "completed", **more: Any) -> Item:
    whole = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1790000000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "gpt-6",
        "output": list(output),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "max_output_tokens": None,
        "store": False,
        "usage": dict(COUNTS),
    }
    return {**whole, **more}


def stream(*output: Item, end: str = "completed", **more: Any) -> bytes:
    """An answer with these items, as a stream of all its events."""
    return b"".join(events(*output, end=end, **more))


def events(*output: Item, end: str = "completed", **more: Any) -> list[bytes]:
    begun = response(status="in_progress", usage=None)
    bodies: list[Item] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for at, item in enumerate(output):
        bodies += _item_events(item, at)
    last = response(*output, **{"status": end, **more})
    bodies.append({"type": f"response.{end}", "response": last})
    return [event(body.pop("type"), sequence_number=at, **body) for at, body in enumerate(bodies)]


def _item_events(item: Item, at: int) -> Iterator[Item]:
    place = {"item_id": item.get("id"), "output_index": at}
    empty: Item = {name: [] for name in ("content", "summary") if name in item}
    opening = {**item, **empty}
    if "arguments" in item:
        opening["arguments"] = ""
    if "status" in item:
        opening["status"] = "in_progress"
    yield {"type": "response.output_item.added", "output_index": at, "item": opening}
    for index, part in enumerate(item.get("content", [])):
        yield from _part_events(part, {**place, "content_index": index})
    for index, part in enumerate(item.get("summary", [])):
        yield from _summary_events(part, {**place, "summary_index": index})
    if item["type"] == "function_call":
        kind = "response.function_call_arguments"
        for piece in _pieces(item["arguments"]):
            yield {"type": f"{kind}.delta", **place, "delta": piece}
        whole = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": f"{kind}.done", **place, **whole}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


def _part_events(part: Item, place: Item) -> Iterator[Item]:
    name = "refusal" if part["type"] == "refusal" else "text"
    kinds = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}
    kind = f"response.{kinds[part['type']]}"
    more: Item = {"logprobs": []} if kind == "response.output_text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, name: ""}}
    for piece in _pieces(part[name]):
        yield {"type": f"{kind}.delta", **place, **more, "delta": piece}
    yield {"type": f"{kind}.done", **place, **more, name: part[name]}
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(part: Item, place: Item) -> Iterator[Item]:
    kind = "response.reasoning_summary"
    yield {"type": f"{kind}_part.added", **place, "part": {**part, "text": ""}}
    for piece in _pieces(part["text"]):
        yield {"type": f"{kind}_text.delta", **place, "delta": piece}
    yield {"type": f"{kind}_text.done", **place, "text": part["text"]}
    yield {"type": f"{kind}_part.done", **place, "part": part}


def _pieces(text: str) -> list[str]:
    return [text[at : at + 6] for at in range(0, len(text), 6)]


def reply(*output: Item, **more: Any) -> Reply:
    """An answer of an endpoint, one event in each piece."""
    return stream_reply(*events(*output, **more))
