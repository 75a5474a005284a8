"""The event reader against a reader that is too simple to be wrong, and its caps."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import work_of

from aish.wire.errors import LimitError
from aish.wire.sse import (
    MAX_EVENT,
    MAX_LINE,
    MAX_RESPONSE,
    UNFRAMED,
    SseEvent,
    SseReader,
)

WORDS = [
    b"data: x", b"data:y", b"data", b"data:", b"data: \xc3\xa9\xff", b"event: e", b"event:",
    b"id: 3", b"retry: 9", b":", b": c", b"z", b"z: 1", b" data: w",
    b"\n", b"\n", b"\r", b"\r\n", b"\n\n",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\x0b", b"\x00",
]  # fmt: skip

bodies_without_ids = st.lists(
    st.sampled_from([word for word in WORDS if not word.startswith((b"id", b"retry"))]), max_size=12
).map(b"".join)
bodies = st.lists(st.sampled_from(WORDS), max_size=12).map(b"".join) | st.binary(max_size=40)


def simple(body: bytes) -> list[SseEvent]:
    """The standard's algorithm over the whole body, with the last event kept (quirk 12)."""
    events: list[SseEvent] = []
    data: list[bytes] = []
    name = number = b""
    pause: int | None = None
    for line in [*re.split(rb"\r\n|\n|\r", body.removeprefix(b"\xef\xbb\xbf")), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data or number or pause is not None:
                text = b"\n".join(data).decode("utf-8", "replace")
                kind, id = (one.decode("utf-8", "replace") or None for one in (name, number))
                events.append(SseEvent(text, kind, id, pause))
            data, name, number, pause = [], b"", b"", None
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"id":
            number = value
        elif field == b"retry":
            pause = int(value) if re.fullmatch(rb"[0-9]{1,9}", value) else None
    return events


def framed(*chunks: bytes) -> list[tuple[bytes, bytes | None]]:
    """The same by the way of models: events with data only, and their bytes."""
    reader = SseReader()
    found = [frame for chunk in chunks for frame in reader.frames(chunk)]
    found += [*reader.flush_frames(), *reader.last_frames()]
    return [(data, name) for data, name in found if name is not UNFRAMED]


def read(*chunks: bytes) -> list[SseEvent]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@settings(deadline=None)
@given(bodies)
def test_events_are_those_of_the_simple_reader_for_every_cut(body: bytes) -> None:
    expected = simple(body)
    assert read(body) == expected
    assert read(*[body[at : at + 1] for at in range(len(body))]) == expected
    for at in range(len(body)):
        assert read(body[:at], body[at:]) == expected


@settings(deadline=None)
@given(bodies_without_ids)
def test_the_way_of_models_gives_the_same_events(body: bytes) -> None:
    expected = [(event.data, event.event) for event in simple(body)]
    for at in range(len(body) + 1):
        found = framed(body[:at], body[at:])
        shown = [(d.decode("utf-8", "replace"), n) for d, n in found]
        assert [(d, n.decode("utf-8", "replace") if n else None) for d, n in shown] == expected


@settings(deadline=None)
@given(bodies, st.lists(st.integers(0, 60), max_size=6))
def test_events_are_those_of_the_simple_reader_for_many_cuts(
    body: bytes, places: list[int]
) -> None:
    bounds = [0, *sorted(min(place, len(body)) for place in places), len(body)]
    chunks = [body[start:end] for start, end in pairwise(bounds)]
    assert read(*chunks) == simple(body)


@pytest.mark.requirement("Q5")
def test_a_carriage_return_at_the_end_of_a_read_waits_for_its_line_feed() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\r\ndata: b\r") == []
    assert reader.feed(b"\n\r") == []
    assert reader.feed(b"\n") == [SseEvent("a\nb")]
    assert reader.close() == []


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n\ndata: b\n") == [SseEvent("a")]
    assert reader.feed(b"\n") == [SseEvent("b")]


@pytest.mark.parametrize("size", [MAX_LINE + 1, MAX_LINE // 3, 100_000, 7_919])
def test_a_line_over_the_cap_is_an_error(size: int) -> None:
    line = b"data: " + b"x" * (MAX_LINE - 6)
    assert len(read_in(line + b"\n\n", size)) == 1
    with pytest.raises(LimitError, match="a line of the stream is over 1 MiB"):
        read_in(line + b"x\n\n", size)


@pytest.mark.parametrize("size", [MAX_EVENT * 2, MAX_LINE // 3])
def test_an_event_over_the_cap_is_an_error(size: int) -> None:
    lines = (b"data: " + b"x" * (MAX_LINE // 2 - 6) + b"\n") * 8
    assert len(read_in(lines + b"\n", size)) == 1
    with pytest.raises(LimitError, match="an event of the stream is over 4 MiB"):
        read_in(lines + b"data: x\n\n", size)


def test_a_line_that_never_ends_is_an_error_before_it_is_much_over_the_cap() -> None:
    with pytest.raises(LimitError):
        read(*[b"x" * 10_000] * 200)


def test_a_response_over_the_cap_is_an_error() -> None:
    reader = SseReader()
    chunk = b"data: " + b"x" * (MAX_LINE - 8) + b"\n\n"
    for _ in range(MAX_RESPONSE // len(chunk)):
        assert len(reader.feed(chunk)) == 1
    with pytest.raises(LimitError, match="the response is over 64 MiB"):
        reader.feed(b":")


def test_comments_without_end_are_no_event_that_grows() -> None:
    reader = SseReader()
    comments = b": ping\n" * 10_000
    for _ in range(MAX_EVENT * 2 // len(comments)):
        assert reader.feed(comments) == []
    assert reader.feed(b"data: a\n\n") == [SseEvent("a")]


class Searched(bytearray):
    """Counts the bytes that are searched in it."""

    bytes_seen = 0

    def find(self, *arguments: Any) -> int:
        self.bytes_seen += len(self) - (arguments[1] if len(arguments) > 1 else 0)
        return super().find(*arguments)


def test_a_long_event_in_tiny_pieces_costs_no_square_of_its_length() -> None:
    def feed(length: int) -> int:
        reader = SseReader()
        reader._waiting = waiting = Searched()
        for _ in range(length):
            reader.feed(b"x")
        assert bytes(waiting) == b"x" * length
        return waiting.bytes_seen

    short, long = work_of(lambda: feed(2_000)), work_of(lambda: feed(20_000))
    assert long.steps < 15 * short.steps
    assert 20_000 <= feed(20_000) < 3 * 20_000


def read_in(body: bytes, size: int) -> list[SseEvent]:
    return read(*[body[at : at + size] for at in range(0, len(body), size)])
