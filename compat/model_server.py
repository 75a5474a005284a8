"""A scripted model at a port of 127.0.0.1, for the gateways before it.

    python compat/model_server.py PORT

It offers chat completions, as JSON and as a stream. If a request has tools and no result yet, the
answer is a call of the first tool with `{"path": "note.md"}`, else the text of the last message.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = [{"id": "small", "object": "model", "created": 0, "owned_by": "here"}]
        self.answer("application/json", json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.path.endswith("/chat/completions"):
            self.answer("application/json", '{"error": {"message": "not here"}}', 404)
            return
        asked = json.loads(body)
        message = message_for(asked)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        head = {"id": "chatcmpl-1", "created": 0, "model": asked.get("model", "small")}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            whole = head | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
            self.answer("application/json", json.dumps(whole))
            return
        events = [
            head | {"object": "chat.completion.chunk"} | one for one in parts(message, finish)
        ]
        lines = [f"data: {json.dumps(one)}\n\n" for one in events]
        self.answer("text/event-stream", "".join(lines) + "data: [DONE]\n\n")

    def answer(self, kind: str, text: str, status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Write nothing."""


def message_for(asked: Mapping[str, Any]) -> dict[str, Any]:
    last = asked["messages"][-1]
    if asked.get("tools") and not any(one["role"] == "tool" for one in asked["messages"]):
        function = {
            "name": asked["tools"][0]["function"]["name"],
            "arguments": '{"path": "note.md"}',
        }
        call = {"id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    content = last["content"]
    text = content if isinstance(content, str) else "".join(one.get("text", "") for one in content)
    return {"role": "assistant", "content": f"heard: {text}"}


def parts(message: Mapping[str, Any], finish: str) -> Iterator[dict[str, Any]]:
    """The chunks of a stream: the text in two pieces, or the call, then the end and the usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if calls := message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": 0, **calls[0]}]})
    else:
        text = message["content"]
        deltas += [{"content": text[:7]}, {"content": text[7:]}]
    for delta in deltas:
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    yield {"choices": [], "usage": USAGE}


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
