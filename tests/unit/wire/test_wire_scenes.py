"""One table of streams for all wires: what comes of each, however it is cut and framed.

Each scene is said once, and spelled by the wires of `tests/support/wire_scenes.py`.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from samples import each_case
from wire_scenes import WIRES, Turn, Wire, call, refusal, text, thought, turn_of
from wire_streams import DONE, LINE_ENDS, PLACE, cuts
from wire_vendors import VENDORS

from aish.wire.calls import make_call_id
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    LimitError,
    MalformedToolCallError,
    StreamError,
    TruncatedToolCallError,
    UnfinishedStreamError,
    UnreadableStreamError,
)


@dataclass(frozen=True)
class Fault:
    """An answer that is an error, with these words in it."""

    kind: type[StreamError]
    words: str
    retryable: bool = True


@dataclass(frozen=True)
class Scene:
    """A stream and what comes of it; `but` says on which wires something else does."""

    raw: Callable[[Wire], bytes]
    expected: Turn | Fault
    but: Mapping[str, Turn | Fault] = field(default_factory=dict)
    is_cut: bool = True

    def on(self, wire: Wire) -> Turn | Fault:
        return self.but.get(wire.name, self.expected)


HELLO = text("Hel", "lo")
SAID = Turn("Hello")
READ = call("c1", '{"x"', ": 1}")
CALL = ("c1", "repo__read", '{"x": 1}')
CALLS = Turn(calls=(CALL,), reason="tool_calls")
MADE = [make_call_id(PLACE, index, ()) for index in range(2)]


def before(part: bytes) -> Callable[[Wire], bytes]:
    return lambda w: part + w.answer(HELLO)


def inside(part: bytes) -> Callable[[Wire], bytes]:
    """A stream with something before its end."""
    return lambda w: w.open(HELLO) + part + b"".join(w.events(HELLO)[-w.closing :])


def behind(part: bytes) -> Callable[[Wire], bytes]:
    return lambda w: w.answer(HELLO) + part


def counted(counts: Any) -> Callable[[Wire], bytes]:
    return lambda w: w.answer(HELLO, counts=counts)


def with_error(code: Any, *, whole: bool = False) -> Callable[[Wire], bytes]:
    """An error in the form that gateways have for all wires, as an event or as the body."""
    body = json.dumps({"error": {"message": "so sorry", "code": code}}).encode()
    return lambda w: body if whole else w.open(HELLO) + b"data: " + body + b"\n\n"


def ping_event(data: bytes) -> bytes:
    return b"event: ping\ndata: " + data + b"\n\n"


UNKNOWN = b'event: weather\ndata: {"type": "weather", "sky": "blue"}\n\n'
UNCOUNTED = replace(SAID, counts=(None, None))

ANSWERS: dict[str, Scene] = {
    "text": Scene(lambda w: w.answer(HELLO), SAID),
    "text beyond ASCII": Scene(
        lambda w: w.answer(text("Grü", "ße\u2028\u2029\x85\x0b🙂 你")),
        Turn("Grüße\u2028\u2029\x85\x0b🙂 你")),
    "empty pieces of text": Scene(lambda w: w.answer(text("", "Hello", "")), SAID),
    "nothing to say": Scene(lambda w: w.answer(), Turn()),
    "a call in pieces": Scene(lambda w: w.answer(READ, end="tool_calls"), CALLS),
    "text, then a call": Scene(
        lambda w: w.answer(HELLO, READ, end="tool_calls"), replace(CALLS, text="Hello")),
    "two calls": Scene(
        lambda w: w.answer(READ, call("c2", '{"y":', "[2]}", name="repo__list"), end="tool_calls"),
        replace(CALLS, calls=(CALL, ("c2", "repo__list", '{"y": [2]}')))),
    "two calls of one tool": Scene(
        lambda w: w.answer(READ, call("c2", '{"x": 2}'), end="tool_calls"),
        replace(CALLS, calls=(CALL, ("c2", "repo__read", '{"x": 2}')))),
    "a call without arguments": Scene(
        lambda w: w.answer(call("c1", ""), end="tool_calls"),
        replace(CALLS, calls=(("c1", "repo__read", ""),)),
        {"messages": replace(CALLS, calls=(("c1", "repo__read", "{}"),))}),
    "broken arguments are the loop's to refuse": Scene(
        lambda w: w.answer(call("c1", '{"x"', ": "), end="tool_calls"),
        replace(CALLS, calls=(("c1", "repo__read", '{"x": '),))),
    "calls without ids": Scene(
        lambda w: w.answer(call("", '{"x": 1}'), call("", '{"x": 2}'), end="tool_calls"),
        replace(CALLS, calls=tuple(
            (id, "repo__read", f'{{"x": {at}}}') for at, id in enumerate(MADE, 1)))),
    "two calls with one id": Scene(
        lambda w: w.answer(READ, call("c1", '{"x": 2}'), end="tool_calls"),
        replace(CALLS, calls=(CALL, (MADE[1], "repo__read", '{"x": 2}'))),
        # Their results could not be told apart there: the loop refuses such arguments.
        {"responses": replace(CALLS, calls=(("c1", "repo__read", '{"x": 1}{"x": 2}'),),
                              notices=("repeated_call",))}),
    "thinking, text and a call": Scene(
        lambda w: w.answer(thought("h", "m"), HELLO, READ, end="tool_calls"),
        replace(CALLS, text="Hello", thought="hm")),
    "thinking in tags": Scene(
        lambda w: w.answer(text("<thi", "nk>hm</think>Hel", "lo")), replace(SAID, thought="hm")),
    "a call as text": Scene(
        lambda w: w.answer(text("<tool_call>x")), Turn("<tool_call>x", notices=("leaked_call",))),
    "the limit": Scene(lambda w: w.answer(HELLO, end="length"), replace(SAID, reason="length")),
    "the limit after a call": Scene(lambda w: w.answer(READ, end="length"), CALLS),
    "a refusal": Scene(
        lambda w: w.answer(refusal("I ", "won't")), Turn(reason="refusal", refusal="I won't")),
    "a filter": Scene(lambda w: w.answer(HELLO, end="refusal"), replace(SAID, reason="refusal")),
    "calls of a refused answer": Scene(
        lambda w: w.answer(READ, refusal("No.")),
        Turn(reason="refusal", refusal="No.", notices=("calls_despite_refusal",))),
    "no counts": Scene(counted(None), UNCOUNTED),
    "0 and 0 are no counts": Scene(counted((0, 0)), UNCOUNTED),
    "counts that are text": Scene(counted(("10", "5")), SAID),
    "counts that cannot be": Scene(counted((-1, True)), UNCOUNTED),
    "counts with a fraction": Scene(counted((10.0, 5.0)), SAID),
    "comments": Scene(before(b": busy\n\n:\n\n"), SAID),
    "comments inside": Scene(inside(b": busy\n\n"), SAID),
    "a ping first": Scene(before(ping_event(b'{"type": "ping"}')), SAID),
    "pings of any form": Scene(inside(ping_event(b"{}") + ping_event(b"pong")), SAID),
    "pings as data": Scene(
        inside(b"data: ping\n\ndata: null\n\n"), replace(SAID, notices=("ping_as_data",))),
    "a byte order mark": Scene(before(b"\xef\xbb\xbf"), SAID),
    "blank lines first": Scene(before(b"\n\n"), SAID),
    "unknown fields of events": Scene(before(b"id: 7\nretry: 10\nfoo: bar\n"), SAID),
    "no space behind the colon": Scene(
        lambda w: w.answer(HELLO).replace(b": {", b":{"), SAID),
    "no names of events": Scene(
        lambda w: b"\n".join(
            line for line in w.answer(HELLO).split(b"\n") if not line.startswith(b"event:")), SAID),
    "no blank line at the end": Scene(lambda w: w.answer(HELLO).rstrip(b"\n"), SAID),
    "an unknown event": Scene(
        before(UNKNOWN * 2), replace(SAID, notices=("unknown_event",)), {"chat": SAID}),
    "a marker at the end": Scene(behind(DONE), SAID),
    "comments and pings after the end": Scene(
        behind(b": bye\n\n" + ping_event(b'{"type": "ping"}')), SAID),
    "text after the end": Scene(
        behind(b"bye\n\n"), replace(SAID, notices=("unframed_text",)), {"chat": SAID}),
    "in one piece": Scene(lambda w: w.whole(HELLO), SAID),
    "a call in one piece": Scene(lambda w: b" \n " + w.whole(HELLO, READ, end="tool_calls"),
                                 replace(CALLS, text="Hello")),
    "a refusal in one piece": Scene(
        lambda w: w.whole(refusal("No.")), Turn(reason="refusal", refusal="No.")),
    "in one piece with a marker": Scene(lambda w: w.whole(HELLO) + b"\ndata: [DONE]\n\n", SAID),
    "in one piece as an event": Scene(lambda w: b"data: " + w.whole(HELLO) + b"\n\n", SAID),
}  # fmt: skip

CUT = Fault(IncompleteStreamError, "the stream ended before")
HALF = Fault(IncompleteStreamError, "inside an event")
UNFINISHED = Fault(UnfinishedStreamError, "the answer ended without a ")
PAGE = b"<!DOCTYPE html>\n<html><title>Log in</title></html>\n"
DEEP = b'{"a":' * 100_000

FAULTS: dict[str, Scene] = {
    "nothing": Scene(lambda _: b"", Fault(EmptyStreamError, "the answer is empty")),
    "blank lines": Scene(lambda _: b"\n\n\n", Fault(EmptyStreamError, "the answer is empty")),
    "comments alone": Scene(
        lambda _: b": busy\n\n: busy\n\n", Fault(EmptyStreamError, "the answer is empty")),
    "pings alone": Scene(
        lambda _: ping_event(b"{}") * 2, Fault(EmptyStreamError, "the answer is empty")),
    "a page": Scene(lambda _: PAGE, Fault(UnreadableStreamError, "Log in", retryable=False)),
    "a text": Scene(
        lambda _: b"data centre on fire", Fault(UnreadableStreamError, "on fire", retryable=False)),
    "some other JSON": Scene(
        lambda _: b'{"ok": true}', Fault(UnreadableStreamError, '{"ok": true}', retryable=False)),
    "no end": Scene(lambda w: w.open(HELLO), CUT),
    "no end after a call": Scene(lambda w: w.open(READ), CUT),
    "no end after thinking": Scene(lambda w: w.open(thought("hm")), CUT),
    "no end of a call": Scene(lambda w: b"".join(w.events(READ)[: -w.closing - 2]), CUT),
    "nothing but a beginning": Scene(lambda w: w.events(HELLO)[0], CUT),
    "a marker in place of the end": Scene(
        lambda w: w.open(HELLO) + DONE, CUT, {"chat": UNFINISHED}),
    "an end that says nothing": Scene(
        lambda w: w.answer(HELLO, end=None), UNFINISHED, {"responses": CUT}),
    "cut inside an event": Scene(lambda w: w.open(HELLO)[:-20], HALF),
    "cut inside the first event": Scene(lambda w: w.open(HELLO)[:40], HALF),
    "cut inside a name": Scene(lambda w: w.open(HELLO) + b"dat", CUT),
    "half of an answer in one piece": Scene(
        lambda w: w.whole(HELLO)[:-9], Fault(IncompleteStreamError, "inside its JSON")),
    "an answer in one piece without its end": Scene(
        lambda w: w.whole(HELLO, end=None), UNFINISHED,
        {"responses": Fault(IncompleteStreamError, "`in_progress`")}),
    "two answers in one stream": Scene(
        lambda w: w.open(HELLO) + w.answer(HELLO).replace(b"resp_1", b"resp_2"),
        Fault(IncompleteStreamError, "another answer begins"),
        {"messages": Fault(UnreadableStreamError, "a second `message_start`"),
         # Chunks of chat do not say which answer they belong to.
         "chat": Turn("HelloHello")}),
    "an overload": Scene(
        lambda w: w.error(w.overloaded, "so busy"), Fault(InBandError, "so busy")),
    "an overload inside": Scene(
        lambda w: w.open(HELLO) + w.error(w.overloaded, "so busy"), Fault(InBandError, "so busy")),
    "an error after the end": Scene(
        lambda w: b"".join(w.events(HELLO)[:-1]) + w.error(w.overloaded, "late"),
        Fault(InBandError, "late")),
    "an error behind everything": Scene(
        lambda w: w.answer(HELLO) + w.error(w.overloaded, "late"), Fault(InBandError, "late"),
        {"chat": SAID}),
    "a spent account": Scene(
        lambda w: w.error(w.spent, "pay"), Fault(InBandError, "pay", retryable=False)),
    "a bad request inside": Scene(
        lambda w: w.open() + w.error("invalid_request_error", "bad"),
        Fault(InBandError, "bad", retryable=False)),
    "a bad key inside": Scene(
        lambda w: w.open() + w.error("authentication_error", "who?"),
        Fault(InBandError, "who?", retryable=False)),
    "a full window": Scene(
        lambda w: w.open() + w.error("context_length_exceeded", "too long"),
        Fault(InBandError, "too long", retryable=False)),
    "an error with a number": Scene(with_error(502), Fault(InBandError, "HTTP 502: so sorry")),
    "an error with a number as text": Scene(
        with_error("429"), Fault(InBandError, "HTTP 429: so sorry")),
    "an error that is final": Scene(
        with_error(404), Fault(InBandError, "HTTP 404: so sorry", retryable=False)),
    "an error as the body": Scene(
        with_error(529, whole=True), Fault(InBandError, "HTTP 529: so sorry")),
    "an error in a list": Scene(
        lambda w: b"[" + with_error(503, whole=True)(w) + b"]",
        Fault(InBandError, "HTTP 503: so sorry")),
    "an error without a code": Scene(with_error(None), Fault(InBandError, "so sorry")),
    "an error that is text": Scene(
        lambda w: w.open(HELLO) + b'data: {"error": "the model crashed"}\n\n',
        Fault(InBandError, "the model crashed")),
    "a message alone": Scene(
        lambda _: b'data: {"message": "upstream failed"}\n\n', Fault(InBandError, "upstream")),
    "words in an event of errors": Scene(
        lambda w: w.open(HELLO) + b"event: error\ndata: went away\n\n",
        Fault(InBandError, "went away")),
    "an error without a frame": Scene(
        inside(b'{\n"error": {"message": "down", "code": 503}\n}\n'),
        Fault(InBandError, "HTTP 503: down")),
    "text between events": Scene(
        inside(b"upstream went away\n\n"), Fault(UnreadableStreamError, "upstream went away")),
    "text as data": Scene(
        inside(b"data: upstream died\n\n"), Fault(UnreadableStreamError, "upstream died")),
    "a number as an event": Scene(
        inside(b"data: 7\n\n"), Fault(UnreadableStreamError, "an event is no object: 7")),
    "text in quotes as an event": Scene(
        inside(b'data: "hello"\n\n'), Fault(UnreadableStreamError, "an event is no object")),
    "JSON that breaks off in an event": Scene(
        inside(b'data: {"type": \n\n'), Fault(UnreadableStreamError, "an event is no JSON")),
    "too many levels": Scene(
        lambda _: b"data: " + DEEP + b"\n\n", Fault(UnreadableStreamError, "levels"), is_cut=False),
    "a line without end": Scene(
        lambda _: b"data: " + b"x" * (1 << 21), Fault(LimitError, "a line", retryable=False),
        is_cut=False),
    "the limit inside arguments": Scene(
        lambda w: w.answer(call("c1", '{"x"', ": "), end="length"),
        Fault(TruncatedToolCallError, "the token limit", retryable=False)),
    "the limit before a name": Scene(
        lambda w: w.answer(call("c1", "", name=""), end="length"),
        Fault(TruncatedToolCallError, "the token limit", retryable=False)),
    "a call without a name": Scene(
        lambda w: w.answer(call("c1", "{}", name=""), end="tool_calls"),
        Fault(MalformedToolCallError, "its name was never sent")),
    "a call without a name in one piece": Scene(
        lambda w: w.whole(call("c1", "{}", name=""), end="tool_calls"),
        Fault(MalformedToolCallError, "its name was never sent")),
    "calls that never came": Scene(
        lambda w: w.answer(HELLO, end="tool_calls"),
        Fault(MalformedToolCallError, "without a call"),
        # Its end does not say whether there are calls.
        {"responses": SAID}),
    "nothing said and nothing counted": Scene(
        lambda w: w.answer(counts=None), Fault(EmptyStreamError, "without an answer"),
        # A word says there that the model was done.
        dict.fromkeys(("chat", "messages"), Turn(counts=(None, None)))),
}  # fmt: skip


SCENES = ANSWERS | FAULTS


def outcome(wire: Wire, chunks: list[bytes]) -> Turn | StreamError:
    told = wire.decode(chunks, ("repo__read", "repo__list"))
    return told if isinstance(told, StreamError) else turn_of(told)


def check(told: Turn | StreamError, expected: Turn | Fault) -> None:
    if isinstance(expected, Turn):
        assert told == expected
    else:
        assert isinstance(told, StreamError), told
        assert type(told) is expected.kind, told
        assert expected.words in told.message
        assert told.retryable is expected.retryable, told


@pytest.mark.requirement(
    "W8", "L4", "L6", "Q1", "Q3", "Q4", "Q6", "Q7", "Q9", "Q15", "Q17", "Q22", "Q34", "Q38", "Q40",
    "Q54",
)  # fmt: skip
@pytest.mark.parametrize("name", SCENES)
def test_a_stream_comes_to_the_same_on_each_wire_however_it_is_framed_and_cut(name: str) -> None:
    scene = SCENES[name]
    for wire in WIRES.values():
        raw = scene.raw(wire)
        if not scene.is_cut:
            check(outcome(wire, [raw]), scene.on(wire))
            continue
        for line_end in LINE_ENDS.values():
            for chunks in some(cuts(raw.replace(b"\n", line_end))):
                check(outcome(wire, chunks), scene.on(wire))


def some(cuts: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """The whole, single bytes, and so many other cuts as the profile of Hypothesis has examples."""
    yield from itertools.islice(cuts, 2)
    others = list(cuts)
    yield from others[:: 1 + len(others) // settings().max_examples]


def test_each_wire_has_forty_faults_and_more() -> None:
    for wire in WIRES.values():
        assert sum(isinstance(scene.on(wire), Fault) for scene in SCENES.values()) >= 40


@each_case("wire, name", itertools.product(WIRES.values(), ANSWERS))
def test_no_beginning_of_an_answer_is_a_success(wire: Wire, name: str) -> None:
    raw = ANSWERS[name].raw(wire)
    end = wire.end_of(raw)
    for at in range(0, end, max(1, end // 40)):
        assert isinstance(outcome(wire, [raw[:at]]), StreamError), raw[:at]


# What the vendors' libraries read in another way, for the reasons in
# `docs/architecture/vendor-libraries.md`.
OURS = {
    "calls without ids", "two calls with one id", "thinking in tags", "0 and 0 are no counts",
    "counts that cannot be", "in one piece as an event",
}  # fmt: skip
READ_OTHERWISE = {
    "chat": {*OURS, "pings of any form", "pings as data"},
    "messages": {*OURS, "broken arguments are the loop's to refuse", "no counts",
                 "counts that are text", "counts with a fraction", "a byte order mark",
                 "no names of events"},
    "responses": {*OURS, "pings of any form", "pings as data", "a ping first", "an unknown event",
                  "no blank line at the end"},
}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.requirement("W8")
def test_the_vendors_libraries_read_the_same_turns(wire: Wire) -> None:
    """They judge text, calls, order and counts; what ends an answer is ours to say."""
    read = VENDORS[wire.name]()
    otherwise = set()
    for name, scene in ANSWERS.items():
        expected, raw = scene.on(wire), scene.raw(wire)
        if raw.lstrip().startswith(b"{"):
            continue  # no stream
        assert isinstance(expected, Turn)
        try:
            told = read(raw)
        except Exception:
            told = None
        if told != replace(expected, notices=()):
            otherwise.add(name)

    assert otherwise == READ_OTHERWISE[wire.name]
