"""What only answers of `/responses` have; `test_wire_scenes` has what all wires have."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from responses_streams import COUNTS, call, decoded, event, message, reasoning, stream
from wire_streams import LINE_ENDS, cuts

from aish.core.messages import (
    Delta,
    Extras,
    Finish,
    FinishReason,
    ReasoningPiece,
    StreamNotice,
    TextPiece,
    Usage,
)
from aish.core.tools import ToolCall
from aish.wire.errors import StreamError

USED = Usage(40, 12, 8, 5, 4)
TOOLS = ("repo__read", "repo__list")
ARGUMENTS = '{"path": "Müller 😀.md"}'


def finish(reason: FinishReason = "stop", raw: str = "completed", **more: Any) -> Finish:
    return Finish(reason, more.pop("usage", USED), raw=raw, **more)


def call_place(call_id: str, **more: Any) -> dict[str, Any]:
    """What is kept of a call beside the call."""
    return {"id": f"fc_{call_id}", "type": "function_call", "status": "completed", **more}


@dataclass(frozen=True)
class Answer:
    raw: bytes
    deltas: tuple[Delta, ...]


THOUGHT = reasoning("First this.", "Then that.")
OPEN_THOUGHT = reasoning(
    encrypted_content=None, content=[{"type": "reasoning_text", "text": "Hm, 咖啡."}]
)
SAID = message("Let me look. 😀", phase="commentary")
ASKED = call("c1", "repo__read", ARGUMENTS, namespace="repo", caller={"type": "direct"})
SEARCH: dict[str, Any] = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "aish", "sources": []},
}
CITED = message("It is.")
CITED["content"][0]["annotations"] = [
    {"type": "url_citation", "start_index": 0, "end_index": 2, "url": "https://a.example",
     "title": "A"}
]  # fmt: skip
OTHER = StreamNotice("other_item", "an item `web_search_call` was kept for its endpoint")

ANSWERS = {
    "reasoning and a call": Answer(
        stream(THOUGHT, SAID, ASKED),
        (
            ReasoningPiece("First this.\n\nThen that."),
            TextPiece("Let me look. 😀"),
            ToolCall("c1", "repo__read", ARGUMENTS),
            Extras(
                {
                    "output": [
                        THOUGHT,
                        SAID,
                        call_place("c1", namespace="repo", caller={"type": "direct"}),
                    ]
                }
            ),
            finish("tool_calls"),
        ),
    ),
    "open thoughts": Answer(
        stream(OPEN_THOUGHT, message("Coffee.")),
        (
            ReasoningPiece("Hm, 咖啡."),
            TextPiece("Coffee."),
            Extras({"output": [OPEN_THOUGHT, message("Coffee.")]}),
            finish(),
        ),
    ),
    "two messages": Answer(
        stream(message("One."), message("Two.", "msg_2")), (TextPiece("One.\n\nTwo."), finish())
    ),
    "commentary before the answer": Answer(
        stream(SAID, SEARCH, message("42", "msg_2", phase="final_answer")),
        (
            OTHER,
            ReasoningPiece("Let me look. 😀"),
            TextPiece("42"),
            Extras({"output": [SAID, SEARCH, message("42", "msg_2", phase="final_answer")]}),
            finish(),
        ),
    ),
    "a hosted tool": Answer(
        stream(SEARCH, CITED),
        (TextPiece("It is."), OTHER, Extras({"output": [SEARCH, CITED]}), finish()),
    ),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("framing", LINE_ENDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_for_many_cuts_and_framings(name: str, framing: str) -> None:
    answer = ANSWERS[name]
    raw = answer.raw.replace(b"\n", LINE_ENDS[framing])
    for chunks in some_cuts(raw):
        assert decoded(chunks, TOOLS) == list(answer.deltas)


def some_cuts(raw: bytes) -> Iterator[list[bytes]]:
    yield [raw]
    yield [raw[at : at + 1] for at in range(len(raw))]
    for number, chunks in enumerate(cuts(raw)):
        if number % 24 == 0:
            yield chunks


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_in_one_piece_is_the_same_turn(name: str) -> None:
    raw = ANSWERS[name].raw
    last = json.loads(raw[raw.rindex(b"data: ") + 6 :])["response"]
    whole = decoded([json.dumps(last).encode()], TOOLS)
    assert turn_of(whole) == turn_of(decoded([raw], TOOLS))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_without_its_pieces_is_the_same_turn(name: str) -> None:
    kept = [part + b"\n\n" for part in ANSWERS[name].raw.split(b"\n\n") if b"delta" not in part]
    assert turn_of(decoded(kept, TOOLS)) == turn_of(decoded([ANSWERS[name].raw], TOOLS))


def turn_of(deltas: list[Delta] | StreamError) -> dict[str, Any]:
    """What counts of an answer, whatever order it came in."""
    assert not isinstance(deltas, StreamError), deltas
    return {
        "text": "".join(one.text for one in deltas if isinstance(one, TextPiece)),
        "thought": "".join(one.text for one in deltas if isinstance(one, ReasoningPiece)),
        "calls": [one for one in deltas if isinstance(one, ToolCall)],
        "extras": [one for one in deltas if isinstance(one, Extras)],
        "finish": [replace_raw(one) for one in deltas if isinstance(one, Finish)],
    }


def replace_raw(finish: Finish) -> tuple[Any, ...]:
    return (finish.reason, finish.refusal, finish.usage)


def test_the_counts_of_the_vendor_are_all_there() -> None:
    assert set(COUNTS) >= {"input_tokens_details", "output_tokens_details"}
    told = decoded([stream(message("x"))])
    assert isinstance(told, list)
    assert isinstance(told[-1], Finish)
    assert told[-1].usage == USED
    assert told[-1].long_written is None


def test_events_may_have_no_name_or_no_type() -> None:
    raw = stream(message("Hello."))
    unnamed = b"\n".join(line for line in raw.split(b"\n") if not line.startswith(b"event:"))
    assert decoded([unnamed]) == decoded([raw])
    first = event("response.created", response={"id": "resp_1"})
    untyped = raw.replace(b'"type": "response.', b'"kind": "response.')
    assert decoded([first + untyped]) == decoded([raw])
