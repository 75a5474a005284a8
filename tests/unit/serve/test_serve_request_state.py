"""`requestState` of stateless clients: for whom it is, for what, and how long (H8)."""

from pathlib import Path
from typing import Any

import pytest

from aish.core.json import JsonObject
from aish.mcp.protocol.messages import RpcError
from aish.serve.calls.request_state import STATE_SECONDS, RequestSeal
from aish.serve.state import ServeState

SUBJECT: Any = ["tools/call", "s__tool", {"a": 1, "b": [True, None]}]
CONTENT: JsonObject = {"server": "own state of the server \u2028", "call": "x"}


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def seal_of(
    watch: Watch, client: str = "one", subject: Any = SUBJECT, key: bytes = b"k"
) -> RequestSeal:
    return RequestSeal(ServeState(Path("state"), "hub", key), watch, client, subject)


def test_a_state_is_opened_for_the_same_client_and_request_in_any_process() -> None:
    watch = Watch()
    text = seal_of(watch).seal(CONTENT)
    same = ["tools/call", "s__tool", {"b": [True, None], "a": 1}]

    assert seal_of(watch, subject=same).open(text) == CONTENT
    others = [
        seal_of(watch, client="another"),
        seal_of(watch, key=b"another"),
        seal_of(watch, subject=["tools/call", "s__other", SUBJECT[2]]),
        seal_of(watch, subject=["tools/call", "s__tool", {"a": 2, "b": [True, None]}]),
        seal_of(watch, subject=["prompts/get", *SUBJECT[1:]]),
    ]
    for other in others:
        with pytest.raises(RpcError, match="does not belong to this request"):
            other.open(text)


def test_a_state_holds_for_ten_minutes() -> None:
    watch = Watch()
    text = seal_of(watch).seal(CONTENT)

    watch.seconds += STATE_SECONDS - 1
    assert STATE_SECONDS == 600
    assert seal_of(watch).open(text) == CONTENT
    watch.seconds += 1
    with pytest.raises(RpcError, match="is too old") as caught:
        seal_of(watch).open(text)
    assert caught.value.code == -32602


def test_no_part_of_a_state_can_be_altered() -> None:
    watch = Watch()
    text = seal_of(watch).seal(CONTENT)

    for at in range(len(text)):
        other = "A" if text[at] != "A" else "B"
        with pytest.raises(RpcError):
            seal_of(watch).open(f"{text[:at]}{other}{text[at + 1 :]}")
    cut: list[Any] = [text[1:], text[:-1], f"{text}a", f" {text}", text.upper()]
    cut += ["", ".", "é.é", None, []]
    for odd in cut:
        with pytest.raises(RpcError):
            seal_of(watch).open(odd)
