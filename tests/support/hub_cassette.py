"""The exchanges of clients in a cassette of `aish serve`, and asking a server the same again."""

import json
from pathlib import Path
from typing import Any

from served_hub import LineClient, Message

from aish.cassettes.format.file import load

_SCHEME = "mcp+serve://"


def client_exchanges(cassette: Path) -> list[tuple[Message, Message]]:
    """Each request of a client with its answer, in the order of the recording."""
    found = []
    for one in load(cassette).interactions:
        if one.request.uri.startswith(_SCHEME):
            message = json.loads(one.request.body)
            lines = one.response.body.splitlines()
            if "id" in message and lines:
                found.append((message, json.loads(lines[-1])))
    return found


def asked_again(client: LineClient, cassette: Path) -> list[Any]:
    """What the client is answered now to all that clients sent when it was recorded."""
    answers = []
    for one in load(cassette).interactions:
        if one.request.uri.startswith(_SCHEME):
            message = json.loads(one.request.body)
            client.send(message)
            if "id" in message and "method" in message:
                answers.append(client.answer(message["id"]))
    return answers
