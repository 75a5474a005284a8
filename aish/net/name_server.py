"""A name server that knows a fixed list of names and asks nobody: DNS of a sandbox (RFC 1035)."""

import struct
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from aish.core.frozen import frozen

_HEAD: Final = struct.Struct("!HHHHHH")
_QUESTION: Final = struct.Struct("!HH")
_ANSWER: Final = struct.Struct("!HHHIH")
_ANSWER_FLAGS: Final = 0x8480
"""A response, with authority, recursion available: without that flag some look further."""
_IS_RESPONSE, _OPCODE, _RECURSION_WISH = 0x8000, 0x7800, 0x0100
_FORMAT_ERROR, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 1, 3, 4
_INTERNET, _ANY = 1, 255
_TYPES: Final = {4: 1, 6: 28}
_NAME_OF_QUESTION: Final = 0xC000 | _HEAD.size
_SECONDS_VALID: Final = 60
_LONGEST_LABEL, _LONGEST_NAME = 63, 255


@frozen
class NameReply:
    """The answer to a query, empty for what deserves none, and the name that it refuses."""

    data: bytes
    refused: str = ""


def reply_to(query: bytes, addresses: Mapping[str, str]) -> NameReply:
    """Answer a query: the address of a listed name, and of each other one that it does not exist.

    Names are in lower case and without a final dot.
    """
    if len(query) < _HEAD.size:
        return NameReply(b"")
    number, flags, questions, *_ = _HEAD.unpack_from(query)
    if flags & _IS_RESPONSE:
        return NameReply(b"")
    flags = _ANSWER_FLAGS | flags & (_OPCODE | _RECURSION_WISH)
    labels, end = _labels(query)
    question = query[_HEAD.size : end + _QUESTION.size]
    refused, answer = "", b""
    if flags & _OPCODE:
        flags, question = flags | _NOT_IMPLEMENTED, b""
    elif questions != 1 or labels is None or len(query) < end + _QUESTION.size:
        flags, question = flags | _FORMAT_ERROR, b""
    else:
        name = b".".join(labels).lower().decode("ascii", "backslashreplace")
        if name in addresses:
            answer = _answer(addresses[name], *_QUESTION.unpack_from(query, end))
        else:
            flags |= _NO_SUCH_NAME
            # A reverse look-up asks what an address is called, and leads nowhere.
            refused = "" if name.endswith(".arpa") else name
    head = _HEAD.pack(number, flags, bool(question), bool(answer), 0, 0)
    return NameReply(head + question + answer, refused)


def _answer(listed: str, kind: int, group: int) -> bytes:
    """The record of a listed name, empty if it has none of this kind."""
    address = ip_address(listed)
    own_kind = _TYPES[address.version]
    if group not in {_INTERNET, _ANY} or kind not in {own_kind, _ANY}:
        return b""
    packed = address.packed
    record = _ANSWER.pack(_NAME_OF_QUESTION, own_kind, _INTERNET, _SECONDS_VALID, len(packed))
    return record + packed


def _labels(query: bytes) -> tuple[list[bytes] | None, int]:
    """The labels of the first name, `None` if it is not valid, and where it ends."""
    labels: list[bytes] = []
    at = _HEAD.size
    while at < len(query) and at - _HEAD.size < _LONGEST_NAME:
        size = query[at]
        at += 1
        if not size:
            return labels, at
        label = query[at : at + size]
        if size > _LONGEST_LABEL or len(label) < size:
            break
        # A dot within a label is not one between two.
        labels.append(label.replace(b".", b"\\."))
        at += size
    return None, at
