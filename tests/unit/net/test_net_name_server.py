"""The name server of a sandbox: queries as programs write them, and as they do not."""

import random
import struct

import pytest

from aish.net.name_server import reply_to

A, AAAA, TXT, PTR, ANY = 1, 28, 16, 12, 255
ADDRESSES = {"api.example": "93.184.216.34", "six.example": "2606:2800:220:1::1"}
OK, FORMAT_ERROR, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 1, 3, 4


def encoded(name: str) -> bytes:
    labels = [label.encode() for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def query(name: str, kind: int = A, *, flags: int = 0x0100, more: bytes = b"") -> bytes:
    head = struct.pack("!HHHHHH", 0xBEEF, flags, 1, 0, 0, 1 if more else 0)
    return head + encoded(name) + struct.pack("!HH", kind, 1) + more


def code(data: bytes) -> int:
    number, flags = struct.unpack_from("!HH", data)
    assert number == 0xBEEF
    assert flags & 0x8000
    return int(flags & 15)


@pytest.mark.parametrize(
    ("name", "kind", "packed"),
    [
        ("api.example", A, bytes([93, 184, 216, 34])),
        ("API.exAMple.", ANY, bytes([93, 184, 216, 34])),
        ("six.example", AAAA, bytes.fromhex("2606280002200001") + bytes(7) + b"\1"),
    ],
)
def test_a_listed_name_has_its_address(name: str, kind: int, packed: bytes) -> None:
    asked = query(name, kind, more=b"\0\0\x29\x10\0\0\0\0\0\0\0")  # EDNS, as most ask

    reply = reply_to(asked, ADDRESSES)

    end = len(query(name, kind))
    assert code(reply.data) == OK
    assert struct.unpack_from("!HHHH", reply.data, 4) == (1, 1, 0, 0)
    assert reply.data[12:end] == asked[12:end]  # in the very letters of the question
    assert reply.data[end : end + 2] == b"\xc0\x0c"
    assert reply.data[-len(packed) :] == packed
    assert not reply.refused


def test_a_listed_name_without_such_a_record_exists_and_any_other_name_does_not() -> None:
    nothing = reply_to(query("api.example", AAAA), ADDRESSES)
    absent = reply_to(query("evil.example", TXT), ADDRESSES)
    below = reply_to(query("x.api.example"), ADDRESSES)
    reverse = reply_to(query("1.0.0.127.in-addr.arpa", PTR), ADDRESSES)

    assert (code(nothing.data), nothing.data[6:8], nothing.refused) == (OK, b"\0\0", "")
    assert (code(absent.data), absent.refused) == (NO_SUCH_NAME, "evil.example")
    assert (code(below.data), below.refused) == (NO_SUCH_NAME, "x.api.example")
    assert (code(reverse.data), reverse.refused) == (NO_SUCH_NAME, "")


def test_a_label_with_a_dot_is_not_two_and_bytes_are_escaped() -> None:
    head = struct.pack("!HHHHHH", 0xBEEF, 0x0100, 1, 0, 0, 0)
    dotted = reply_to(head + b"\x0bapi.example\0\0\1\0\1", ADDRESSES)
    raw = reply_to(head + b"\x02\xff\x1b\0\0\1\0\1", ADDRESSES)

    assert (code(dotted.data), dotted.refused) == (NO_SUCH_NAME, "api\\.example")
    assert (code(raw.data), raw.refused) == (NO_SUCH_NAME, "\\xff\x1b")


def test_what_is_no_query_gets_an_error_or_nothing() -> None:
    head = struct.pack("!HHHHHH", 0xBEEF, 0x0100, 1, 0, 0, 0)

    assert code(reply_to(query("a.example", flags=0x2800), ADDRESSES).data) == NOT_IMPLEMENTED
    assert code(reply_to(head, ADDRESSES).data) == FORMAT_ERROR
    assert code(reply_to(head + b"\xc0\x0c\0\1\0\1", ADDRESSES).data) == FORMAT_ERROR
    assert code(reply_to(head + (b"\x3f" + b"a" * 63) * 5, ADDRESSES).data) == FORMAT_ERROR
    assert reply_to(query("api.example", flags=0x8100), ADDRESSES).data == b""
    assert reply_to(b"\xbe\xef", ADDRESSES).data == b""


def test_no_bytes_make_it_fail_and_no_answer_is_longer_than_a_datagram() -> None:
    dice = random.Random(30)
    for _ in range(20_000):
        data = bytearray(
            query(dice.choice(["api.example", "a.b.c", "x" * 63]), dice.choice([1, 28]))
        )
        for _ in range(dice.randrange(6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        del data[dice.randrange(len(data)) if dice.random() < 0.3 else len(data) :]
        reply = reply_to(bytes(data), ADDRESSES)
        assert len(reply.data) <= 512
    for _ in range(20_000):
        assert len(reply_to(dice.randbytes(dice.randrange(600)), ADDRESSES).data) <= 512
