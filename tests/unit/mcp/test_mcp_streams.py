import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.mcp.protocol.messages import LineBuffer
from aish.mcp.transports.streamable import CAPS
from aish.wire.errors import LimitError
from aish.wire.sse import SseEvent, SseReader

STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\nid: 1\nretry: 500\ndata: \n\n"
    b'event: message\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    b"data:x\n\nevent: y\n\nretry: soon\n\nid: 2\n\ndata: end"
)
EVENTS = [
    SseEvent("", None, "1", 500),
    SseEvent('{"a":\n1}', "message"),
    SseEvent("x"),
    SseEvent("", None, "2"),
    SseEvent("end"),
]


def read(pieces: list[bytes]) -> list[SseEvent]:
    reader = SseReader(CAPS)
    found = [event for piece in pieces for event in reader.feed(piece)]
    return found + reader.close()


def test_events_are_read_with_their_ids_and_pauses() -> None:
    assert read([STREAM]) == EVENTS


def test_events_are_the_same_for_every_cut() -> None:
    for cut in range(3, len(STREAM)):
        assert read([STREAM[:cut], STREAM[cut:]]) == EVENTS


@given(st.lists(st.binary(max_size=20), max_size=12))
def test_lines_do_not_depend_on_how_they_are_cut(pieces: list[bytes]) -> None:
    whole, cut = LineBuffer(), LineBuffer()
    found = [line for piece in pieces for line in cut.feed(piece)]
    assert found == whole.feed(b"".join(pieces))


def test_a_line_over_the_cap_is_dropped_and_the_next_is_read() -> None:
    lines = LineBuffer(limit=8)
    found = [
        line for piece in (b"12345", b"6789", b"0\nshort", b"\n") for line in lines.feed(piece)
    ]
    assert (found, lines.dropped) == ([b"short"], 1)


def test_a_stream_without_line_ends_does_not_grow() -> None:
    lines = LineBuffer(limit=1000)
    for _ in range(100):
        lines.feed(b"x" * 900)
    assert sum(map(len, lines._parts)) <= 1000


def test_an_event_over_the_cap_is_an_overrun() -> None:
    reader = SseReader(CAPS)
    with pytest.raises(LimitError):
        reader.feed(b"data: " + b"x" * (33 * 1024 * 1024) + b"\n")
