"""Raw chat-completions streams for tests, and what decoders make of streams however cut."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings

from aish.core.events import Place
from aish.core.messages import (
    Delta,
    Finish,
    FinishReason,
    ReasoningPiece,
    TextPiece,
    Usage,
    Withdrawn,
)
from aish.wire.chat.decode import ChatDecoder
from aish.wire.errors import StreamError
from aish.wire.messages.decode import MessagesDecoder
from aish.wire.responses.decode import ResponsesDecoder

PLACE = Place(step="ask", turn=1)
DONE = b"data: [DONE]\n\n"
LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: Any, finish: Any = None, **more: Any) -> bytes:
    """An event with one choice."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def other(delta: Any, finish: Any = None, index: Any = 1) -> bytes:
    """An event with another choice than the first."""
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


def completion(*messages: Any, finish: Any = "tool_calls") -> bytes:
    """A whole answer with a choice for each message, numbered where the message has an index."""
    choices = []
    for message in messages:
        at = {"index": message["index"]} if "index" in message else {}
        fields = {key: value for key, value in message.items() if key != "index"}
        choices.append({**at, "message": fields, "finish_reason": finish})
    return json.dumps({"choices": choices}).encode()


def said(text: str) -> bytes:
    """An event with a piece of text."""
    return chunk({"content": text})


def keyless(text: str) -> bytes:
    """An event with a piece of text, from an endpoint that sends no finish reasons."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def keyless_calls(*items: Any) -> bytes:
    """An event with fragments of tool calls, from such an endpoint."""
    return event({"choices": [{"index": 0, "delta": {"tool_calls": list(items)}}]})


def ends(reason: Any = "stop", **more: Any) -> bytes:
    """An event with the finish reason."""
    return chunk({}, reason, **more)


def calls(*items: Any, finish: Any = None) -> bytes:
    """An event with fragments of tool calls."""
    return chunk({"tool_calls": list(items)}, finish)


def call(name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """One fragment of a tool call; `index=...` and `id=...` where they are to be there."""
    function = {"name": name, "arguments": arguments}
    return {
        **more,
        "function": {key: value for key, value in function.items() if value is not None},
    }


def finished(reason: FinishReason = "stop", raw: str | None = None, **more: Any) -> Finish:
    """The last delta of an answer."""
    return Finish(reason, more.pop("usage", Usage()), raw=reason if raw is None else raw, **more)


@dataclass(frozen=True)
class Broken:
    """An answer that is expected to be an error."""

    kind: type[StreamError]
    words: str
    retryable: bool
    code: str | int | None = None


@dataclass(frozen=True)
class Row:
    """A raw stream and what is to come of it."""

    raw: bytes
    expected: tuple[Delta, ...] | Broken
    tools: Collection[str] = ()
    required: Mapping[str, bool] = field(default_factory=dict)
    framings: tuple[str, ...] = ("lf", "crlf", "cr")


def row(
    number: str, name: str, raw: bytes, *expected: Delta | Broken, **more: Any
) -> Any:  # pytest does not export the type of a parameter set
    """A parameter for a table of streams; `number` is the requirement that it shows."""
    broken = [delta for delta in expected if isinstance(delta, Broken)]
    deltas = tuple(delta for delta in expected if not isinstance(delta, Broken))
    mark = pytest.mark.requirement(number)
    stream = Row(raw, broken[0] if broken else deltas, **more)
    return pytest.param(stream, id=f"{number}-{name}", marks=mark)


def check(row: Row) -> None:
    """The stream comes to the same for every cut of its bytes and every framing."""
    for framing in row.framings:
        raw = row.raw.replace(b"\n", LINE_ENDS[framing])
        for chunks in cuts(raw):
            told = decoded(chunks, row.tools, row.required)
            if isinstance(row.expected, Broken):
                _check_error(told, row.expected, chunks)
            else:
                assert told == list(row.expected), chunks


def cuts(raw: bytes) -> Iterator[list[bytes]]:
    """Whole, byte by byte, and cut once: at the ends of lines, within characters, and elsewhere.

    Elsewhere is every eighth place by default and every place of a short stream in CI, where the
    profile of Hypothesis has many examples.
    """
    yield [raw]
    yield [raw[at : at + 1] for at in range(len(raw))]
    step = max(200 // settings().max_examples, 1 + len(raw) // 2000)
    near = {at + near for at, byte in enumerate(raw) if _is_special(byte) for near in range(-1, 3)}
    for at in sorted(near.union(range(1, len(raw), step)) & set(range(1, len(raw)))):
        yield [raw[:at], raw[at:]]


def _is_special(byte: int) -> bool:
    return byte in b"\r\n" or byte > 127


def decoded(
    chunks: Iterable[bytes],
    tools: Collection[str] = (),
    required: Mapping[str, bool] | None = None,
    *,
    kind: type[ChatDecoder | MessagesDecoder | ResponsesDecoder] = ChatDecoder,
    limit: int | None = None,
    finish_optional: bool = False,
) -> list[Delta] | StreamError:
    """All deltas of an answer, neighbouring pieces joined, or its error.

    The endpoint's own names for it are left out.
    """
    decoder = kind(
        place=PLACE, known_tools=tools, required=required, finish_optional=finish_optional
    )
    decoder.limit = limit
    deltas: list[Delta] = []
    try:
        for part in chunks:
            deltas += decoder.feed(part)
        deltas += decoder.close()
    except StreamError as error:
        return error
    if deltas and isinstance(deltas[-1], Finish):
        deltas[-1] = replace(deltas[-1], served=None)
    return joined(deltas)


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Deltas without withdrawn ones, neighbouring pieces of the same kind made one."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, TextPiece) and isinstance(last, TextPiece):
            result[-1] = TextPiece(last.text + delta.text)
        elif isinstance(delta, Withdrawn):
            result = [one for one in result if not isinstance(one, TextPiece | ReasoningPiece)]
        elif isinstance(delta, ReasoningPiece) and isinstance(last, ReasoningPiece):
            result[-1] = ReasoningPiece(last.text + delta.text)
        else:
            result.append(delta)
    return result


def _check_error(told: list[Delta] | StreamError, expected: Broken, chunks: list[bytes]) -> None:
    assert isinstance(told, StreamError), (told, chunks)
    assert type(told) is expected.kind, (told, chunks)
    assert expected.words in told.message, chunks
    assert told.retryable is expected.retryable, chunks
    if expected.code is not None:
        assert told.code == expected.code, chunks
