"""Builders of exchanges, as the tests of cassettes need them."""

import json
from collections.abc import Iterable

from aish.cassettes.format.interaction import (
    Chunk,
    Headers,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
)

CHAT = "http://127.0.0.1:8080/v1/chat/completions"
HEAD = RecordingMetadata(
    complete=True, run="run-1", clock="2026-11-21T10:00:00Z", env={"LANG": "C"}
)


def chat(*prompts: str, uri: str = CHAT, **params: object) -> Request:
    """A request to a model, with one message per prompt: system first, then user."""
    roles = ("system", *["user"] * len(prompts))
    messages = [{"role": role, "content": text} for role, text in zip(roles, prompts, strict=False)]
    body = json.dumps({"model": "m", "messages": messages, **params})
    return Request("POST", uri, (("content-type", "application/json"),), body.encode())


def message(number: object, method: str = "tools/call", token: object = None) -> Request:
    """A request to an MCP server."""
    params: dict[str, object] = {"name": "read", "arguments": {"path": "a.txt"}}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    return Request("POST", "mcp+stdio://files", body=body.encode())


def answer(text: str | bytes, *, headers: Headers = (), reason: str = "OK") -> Response:
    """An answer that came in one piece."""
    body = text.encode() if isinstance(text, str) else text
    return Response(body=body, headers=headers, reason=reason)


def streamed(pieces: Iterable[bytes]) -> Response:
    """An answer that came in pieces, a hundredth of a second after each other."""
    parts = list(pieces)
    chunks = tuple(Chunk(len(part), (n + 1) / 100) for n, part in enumerate(parts))
    return Response(body=b"".join(parts), chunks=chunks)


def delta(text: str) -> bytes:
    """One event of a streamed answer."""
    return (
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()
    )


def exchange(prompt: str = "Hello", reply: str = "Hi") -> Interaction:
    """A short conversation with a model."""
    return Interaction(chat("Be brief", prompt), answer(reply))
