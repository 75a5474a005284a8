"""The names of the model that has answered, as each wire has them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import messages_streams as m
import responses_streams as r
import wire_streams as c
from samples import each_case

from aish.core.events import NOWHERE
from aish.core.messages import Delta, Finish, StreamNotice
from aish.core.wires import WIRES
from aish.wire.dialect import load_decoder

RECORDED = Path(__file__).parents[2] / "data" / "wire" / "llamacpp" / "qwen05-01-text.sse"
Names = tuple[str | None, str | None] | None
CHANGED = "the answer names two models: first `a`, then `b`"


def decoded(api: str, body: bytes) -> list[Delta]:
    decoder = load_decoder(WIRES[api])(place=NOWHERE)
    return [*decoder.feed(body), *decoder.close()]


def of_chat(*heads: dict[str, Any]) -> list[Delta]:
    """A stream with a head for each of its chunks; the last one ends it."""
    *first, last = heads
    chunks = [c.chunk({"content": "Hi."}, **head) for head in first]
    return decoded("chat", b"".join([*chunks, c.chunk({}, "stop", **last), c.DONE]))


def of_messages(*, whole: bool = False, **fields: Any) -> list[Delta]:
    if whole:
        message = {"type": "message", "role": "assistant", "stop_reason": "end_turn"}
        content = [{"type": "text", "text": "Hi."}]
        return decoded("messages", json.dumps({**message, "content": content, **fields}).encode())
    end = m.event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    return decoded("messages", b"".join([m.start(**fields), m.text("Hi."), end, m.STOP]))


def of_responses(begun: str | None, ended: str | None) -> list[Delta]:
    whole = r.response(r.message("Hi."), model=ended)
    created = r.event("response.created", response={**whole, "model": begun, "output": []})
    return decoded("responses", created + r.event("response.completed", response=whole))


WHOLE = {"choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}]}
ANSWERS: Sequence[tuple[str, list[Delta], Names, list[str]]] = [
    ("recorded", decoded("chat", RECORDED.read_bytes()), ("qwen2.5-coder-0.5b", "b0-unknown"), []),
    ("in each chunk", of_chat(*[{"model": "a", "system_fingerprint": "f"}] * 3), ("a", "f"), []),
    (
        "a first chunk with blanks",
        of_chat({"model": "", "id": ""}, {"model": "a"}),
        ("a", None),
        [],
    ),
    ("only in the last", of_chat({"id": "1"}, {}, {"model": "a"}), ("a", None), []),
    ("a fingerprint later", of_chat({"model": "a"}, {"system_fingerprint": "f"}), ("a", "f"), []),
    ("another model", of_chat({"model": "a"}, {"model": "b"}), ("b", None), [CHANGED]),
    ("then none", of_chat({"model": "a"}, {"model": None}, {}), ("a", None), []),
    ("not a name", of_chat({"model": 7}, {"model": ["a"]}), None, []),
    ("nothing", of_chat({}, {}), None, []),
    ("too long", of_chat({"model": "a" * 5000}), ("a" * 200, None), []),
    ("whole", decoded("chat", json.dumps({**WHOLE, "model": "a"}).encode()), ("a", None), []),
    ("whole, nothing", decoded("chat", json.dumps(WHOLE).encode()), None, []),
    ("messages", of_messages(model="a"), ("a", None), []),
    ("messages, nothing", of_messages(model=None), (None, None), []),
    ("messages, whole", of_messages(whole=True, model="a"), ("a", None), []),
    ("responses", of_responses("a", "a"), ("a", None), []),
    ("responses, at the end", of_responses(None, "a"), ("a", None), []),
    ("responses, at the beginning", of_responses("a", None), ("a", None), []),
    ("responses, another model", of_responses("a", "b"), ("b", None), [CHANGED]),
]


@each_case("name, told, names, notices", ANSWERS)
def test_the_last_name_in_an_answer_counts(
    name: str, told: list[Delta], names: Names, notices: list[str]
) -> None:
    finish = told[-1]
    assert isinstance(finish, Finish), name
    served = finish.served
    assert (served and (served.model, served.fingerprint)) == names
    assert [one.text for one in told if isinstance(one, StreamNotice)] == notices
