import random

from hypothesis import given
from hypothesis import strategies as st

from aish.system.process.output_ring import LIMIT, OutputRing
from aish.system.secrets.secrets import Secrets


def filled(*pieces: tuple[str, bytes], limit: int = LIMIT) -> OutputRing:
    ring = OutputRing(limit)
    for stream, data in pieces:
        ring.add("stderr" if stream == "err" else "stdout", data)
    return ring


def test_output_is_read_on_from_where_the_last_reading_ended() -> None:
    ring = filled(("out", b"one\n"))
    first = ring.text(0, 100)
    ring.add("stdout", b"two\n")
    second = ring.text(first.next, 100)
    assert (first.text, first.next, second.text, second.next) == ("one\n", 4, "two\n", 8)
    assert not ring.text(8, 100).text
    assert not ring.text(99, 100).text
    assert ring.text(99, 100).next == 8


def test_streams_are_marked_where_they_change() -> None:
    ring = filled(("err", b"a"), ("out", b"b\n"), ("out", b"c"), ("err", b"d\n"))
    assert ring.text(0, 100).text == "[stderr]\na\n[stdout]\nb\nc\n[stderr]\nd\n"
    assert ring.text(1, 100).text == "b\nc\n[stderr]\nd\n"


def test_what_does_not_fit_follows_in_the_next_reading() -> None:
    ring = filled(("out", "aä€😀".encode() * 10))
    place, parts = 0, []
    while place < ring.total:
        found = ring.text(place, 7)
        assert found.next > place
        parts.append(found.text)
        place = found.next
    assert "".join(parts) == "aä€😀" * 10


def test_a_character_that_comes_in_two_pieces_is_whole_also_across_streams() -> None:
    euro = "€".encode()
    ring = filled(("out", euro[:1]), ("err", b"!"), ("out", euro[1:]))
    assert ring.text(0, 100).text == "[stderr]\n!\n[stdout]\n€"
    assert ring.total == 4


def test_a_character_that_never_ends_is_shown_at_the_end() -> None:
    ring = filled(("out", b"a\xe2\x82"))
    assert ring.text(0, 100).text == "a"
    ring.end("stdout")
    assert ring.text(0, 100).text == "a\ufffd"


def test_the_oldest_output_goes_first_and_is_counted() -> None:
    ring = OutputRing(1000)
    for number in range(1000):
        ring.add("stdout", b"%07d\n" % number)
    found = ring.text(0, 10_000)
    assert ring.total == found.next == 8000
    assert found.text.endswith("0000999\n")
    assert 500 < len(found.text) <= 1000
    assert found.dropped == 8000 - len(found.text)
    assert ring.text(7996, 100).dropped == 0


def test_what_is_left_out_begins_and_ends_with_a_line() -> None:
    ring = OutputRing(1000)
    for number in range(1000):
        ring.add("stdout", b"secret-%07d\n" % number)
    first = ring.text(0, 100)
    assert first.text.startswith("secret-")
    assert first.text.endswith("\n")
    assert len(first.text) <= 100
    assert first.next == first.dropped + len(first.text)
    second = ring.text(first.next, 100)
    assert second.text.startswith("secret-")
    assert (second.dropped, second.next) == (0, first.next + len(second.text))


def test_the_ring_is_cut_between_characters() -> None:
    ring = OutputRing(1000)
    for _ in range(999):
        ring.add("stdout", "😀".encode())
        assert set(ring.text(0, 2000).text) == {"😀"}


def test_one_byte_pieces_of_two_streams_do_not_fill_the_memory() -> None:
    ring = OutputRing(10_000)
    for _ in range(5000):
        ring.add("stdout", b"o")
        ring.add("stderr", b"e")
    found = ring.text(0, 10_000)
    assert ring.total == 10_000
    assert found.dropped > 9_000


def test_last_lines_are_counted_from_the_end() -> None:
    ring = filled(("out", b"a\nb\n"), ("err", b"c\n"), ("out", b"d"))
    assert ring.text(ring.line_start(1, 0), 100).text == "d"
    assert ring.text(ring.line_start(2, 0), 100).text == "[stderr]\nc\n[stdout]\nd"
    assert ring.text(ring.line_start(9, 0), 100).next == 7
    assert ring.line_start(9, 4) == 4
    ring.add("stdout", b"\n")
    assert ring.text(ring.line_start(1, 0), 100).text == "d\n"
    assert ring.line_start(0, 0) == ring.total


def test_a_text_is_found_from_an_offset_on_in_either_stream() -> None:
    ring = filled(("out", b"rea"), ("err", b"noise"), ("out", b"dy\n"))
    assert ring.has(b"ready", 0)
    assert ring.has(b"noise", 3)
    assert not ring.has(b"noise", 4)
    assert not ring.has(b"ready", 1)


# Hypothesis draws texts of our own source too: without a bracket none is taken for a mark.
PRINTED = st.text(st.characters(codec="utf-8", exclude_characters="["), max_size=40)


@given(st.lists(st.tuples(st.sampled_from(["out", "err"]), PRINTED), max_size=60))
def test_whatever_is_printed_is_read_whole(pieces: list[tuple[str, str]]) -> None:
    rand = random.Random(1)
    ring = OutputRing()
    for stream, text in pieces:
        data = text.encode("utf-8", "replace")
        cut = rand.randint(0, len(data))
        for part in (data[:cut], data[cut:]):
            ring.add("stderr" if stream == "err" else "stdout", part)
    seen, place = "", 0
    while place < ring.total:
        found = ring.text(place, rand.randint(1, 20))
        assert found.next > place
        place = found.next
        seen += found.text.replace("[stderr]\n", "").replace("[stdout]\n", "")
    expected = "".join(text.encode("utf-8", "replace").decode() for _, text in pieces)
    assert sorted(seen.replace("\n", "")) == sorted(expected.replace("\n", ""))


def test_secrets_are_masked_in_each_stream_for_itself_before_anything_is_cut() -> None:
    secrets = Secrets()
    secrets.add("KEY", "0123456789abcdef")
    ring = OutputRing(LIMIT, secrets)
    ring.add("stdout", b"\xff 01234567")
    ring.add("stderr", b"between\n")
    ring.add("stdout", b"89abcdef\xff and 012")
    text = "\ufffd \n[stderr]\nbetween\n[stdout]\n<secret:KEY>\ufffd and 012"
    assert ring.text(0, 100).text == text
    ring.add("stdout", b"3")
    assert ring.text(0, 100).text.endswith(" and 012")
    ring.end("stdout")
    assert ring.text(0, 100).text.endswith(" and 0123")
