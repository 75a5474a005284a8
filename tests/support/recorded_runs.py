"""Recorded runs as the tests of `aish cassette` need them, built exchange by exchange."""

import json
from collections.abc import Sequence
from pathlib import Path

from cassette_exchanges import CHAT, HEAD, answer, delta, streamed

from aish.cassettes.format.interaction import Interaction, RecordingMetadata, Request, Response
from aish.cassettes.format.layout import whole

FILES = "mcp+stdio://files"
TOOLS = [{"type": "function", "function": {"name": "files__read", "parameters": {}}}]
ASKED = {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Read a.txt"}


def event(choice: dict[str, object], **more: object) -> bytes:
    """One event of a model's stream."""
    data = {"choices": [{"index": 0, "finish_reason": None, **choice}], **more}
    return f"data: {json.dumps(data)}\n\n".encode()


def ended(reason: str, tokens: tuple[int, int] = (20, 5)) -> list[bytes]:
    """The last events of a stream."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    last = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
    return [event({"delta": {}, "finish_reason": reason}), last]


def says(*pieces: str) -> Response:
    """A model that answers in text."""
    return streamed([*map(delta, pieces), *ended("stop")])


def calls(id: str, name: str, *pieces: str) -> Response:
    """A model that asks for a tool, its arguments in pieces."""
    parts = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    first = {"index": 0, "id": id, "function": {"name": name, "arguments": ""}}
    events = [event({"delta": {"tool_calls": [part]}}) for part in (first, *parts)]
    return streamed([*events, *ended("tool_calls")])


def asks(*messages: object, model: str = "small") -> Request:
    """A request to a model."""
    body = {"model": model, "stream": True, "tools": TOOLS, "messages": list(messages)}
    return Request("POST", CHAT, (), json.dumps(body).encode())


def called(id: str, name: str, arguments: str) -> dict[str, object]:
    """A model's call, as it stands in the next request."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def rpc(method: str, result: object = None, *, uri: str = FILES, **params: object) -> Interaction:
    """A request to a tool server, and its result; a notification where there is none."""
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    if result is None:
        return Interaction(_post(uri, message), Response())
    reply = {"jsonrpc": "2.0", "id": 1, "result": result}
    return Interaction(_post(uri, {**message, "id": 1}), answer(json.dumps(reply) + "\n"))


def read(path: str, text: str, *, uri: str = FILES, failed: bool = False) -> Interaction:
    """A call of the tool `read`."""
    result = {"content": [{"type": "text", "text": text}], "isError": failed}
    return rpc("tools/call", result, uri=uri, name="read", arguments={"path": path})


def session(uri: str = FILES) -> list[Interaction]:
    """How a session with a server begins."""
    server = {"name": "everything", "version": "1.0"}
    hello = {"protocolVersion": "2025-06-18", "serverInfo": server, "capabilities": {}}
    return [
        rpc("initialize", hello, uri=uri),
        rpc("notifications/initialized", uri=uri),
        rpc("tools/list", {"tools": [{"name": "read"}, {"name": "write"}]}, uri=uri),
    ]


def command(step: str, argv: Sequence[str], stdout: str = "", code: int = 0) -> Interaction:
    """A local command."""
    result = {"exit_code": code, "stdout": stdout, "stderr": ""}
    body = json.dumps({"argv": list(argv)}).encode()
    return Interaction(Request("EXEC", f"exec://{step}", body=body), answer(json.dumps(result)))


def run_of(
    *,
    prompt: str = "Read a.txt",
    path: str = "a.txt",
    text: str = "one\ntwo",
    reply: str = "It says one and two",
    model: str = "small",
) -> list[Interaction]:
    """A run with one prompt, one call of a tool and an answer."""
    arguments = json.dumps({"path": path})
    asked = (ASKED[0], {"role": "user", "content": prompt})
    again = (*asked, called("c1", "files__read", arguments), _replied("c1", text))
    first, second = reply[:2], reply[2:]
    return [
        *session(),
        Interaction(
            asks(*asked, model=model), calls("c1", "files__read", arguments[:4], arguments[4:])
        ),
        read(path, text),
        Interaction(asks(*again, model=model), says(first, second)),
    ]


def write(path: Path, interactions: Sequence[Interaction], head: RecordingMetadata = HEAD) -> Path:
    """The cassette as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(whole(head, interactions), encoding="utf-8")
    return path


def _post(uri: str, message: object) -> Request:
    return Request("POST", uri, body=json.dumps(message).encode())


def _replied(id: str, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": id, "content": text}
