"""The streams of a mock endpoint, in the form of each `api`: events with one delta each.

`words` is what is said, `calls` are ids, names and arguments of what is asked for.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

Call = tuple[str, str, str]

RESULT = {
    "chat": b'"tool_calls"',
    "messages": b'"tool_result"',
    "responses": b'"function_call_output"',
}
"""What is in a request once for each round of calls that is over."""


def chat(words: Iterable[str], calls: Sequence[Call], tokens: int) -> Iterator[bytes]:
    def event(delta: object, finish: str | None = None) -> bytes:
        return _data(
            id="chatcmpl-1", object="chat.completion.chunk", created=1795246517, model="mock",
            choices=[{"index": 0, "delta": delta, "finish_reason": finish}],
        )  # fmt: skip

    yield from (event({"content": word}) for word in words)
    if calls:
        asked = [
            {
                "index": at,
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": given},
            }
            for at, (id, name, given) in enumerate(calls)
        ]
        yield event({"tool_calls": asked})
    yield event({}, "tool_calls" if calls else "stop")
    usage = {"prompt_tokens": tokens, "completion_tokens": 9}
    yield _data(choices=[], usage=usage) + b"data: [DONE]\n\n"


def messages(words: Iterable[str], calls: Sequence[Call], tokens: int) -> Iterator[bytes]:
    usage = {"input_tokens": tokens, "output_tokens": 1}
    begun: dict[str, object] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "mock", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield _event("message_start", message=begun)
    blocks: list[tuple[object, Iterable[object]]] = []
    if not calls:
        pieces = ({"type": "text_delta", "text": word} for word in words)
        blocks.append(({"type": "text", "text": ""}, pieces))
    for id, name, given in calls:
        asked = {"type": "tool_use", "id": id, "name": name, "input": {}}
        blocks.append((asked, [{"type": "input_json_delta", "partial_json": given}]))
    for index, (block, deltas) in enumerate(blocks):
        yield _event("content_block_start", index=index, content_block=block)
        yield from (_event("content_block_delta", index=index, delta=delta) for delta in deltas)
        yield _event("content_block_stop", index=index)
    ends = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=ends, usage={"output_tokens": 9}) + _event("message_stop")


def responses(words: Iterable[str], calls: Sequence[Call], tokens: int) -> Iterator[bytes]:
    begun: dict[str, object] = {
        "id": "resp_1", "object": "response", "created_at": 1795246517, "model": "mock",
        "status": "in_progress", "output": [], "parallel_tool_calls": True, "tools": [],
        "tool_choice": "auto", "error": None, "incomplete_details": None, "usage": None,
        "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1,
    }  # fmt: skip
    yield _event("response.created", sequence_number=0, response=begun)
    output = [
        {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": given,
         "status": "completed"}
        for id, name, given in calls
    ]  # fmt: skip
    for at, item in enumerate(output):
        yield _event("response.output_item.added", output_index=at, sequence_number=1,
                     item={**item, "arguments": "", "status": "in_progress"})  # fmt: skip
        yield _event("response.output_item.done", output_index=at, sequence_number=2, item=item)
    if not calls:
        place = {"output_index": 0, "sequence_number": 3, "item_id": "msg_1", "content_index": 0}
        message: dict[str, object] = {"type": "message", "id": "msg_1", "role": "assistant"}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield _event("response.output_item.added", output_index=0, sequence_number=1,
                     item={**message, "status": "in_progress", "content": []})  # fmt: skip
        yield _event("response.content_part.added", **place, part=part)
        said = []
        for word in words:
            said.append(word)
            yield _event("response.output_text.delta", **place, delta=word, logprobs=[])
        part = {**part, "text": "".join(said)}
        yield _event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield _event("response.content_part.done", **place, part=part)
        output.append({**message, "status": "completed", "content": [part]})  # type: ignore[dict-item]  # of another kind
        yield _event("response.output_item.done", output_index=0, sequence_number=4, item=output[0])
    usage = {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 0},
             "total_tokens": tokens + 9}  # fmt: skip
    ended = {**begun, "status": "completed", "output": output, "usage": usage}
    yield _event("response.completed", sequence_number=5, response=ended)


def _data(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + _data(type=kind, **fields)


ANSWERS: dict[str, Callable[[Iterable[str], Sequence[Call], int], Iterator[bytes]]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
}
