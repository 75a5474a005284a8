"""A record of the journal: a line of the event stream with a checksum as its last key (B2).

`crc` is the CRC-32 (as of zlib, PNG, gzip) of the line without it: of the UTF-8 bytes from the
first `{` to the last `}`, where `,"crc":"xxxxxxxx"` was taken out and the line end is not part of
it. Eight lower-case hexadecimal digits, so that it stands at the same place in every line.
"""

import re
from zlib import crc32

from aish.core.errors import UsageError

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_LENGTH = len(b',"crc":"00000000"}')


class JournalError(UsageError):
    """A journal that cannot be read; `where` is file and line."""

    code = "journal"


def sealed(line: bytes) -> bytes:
    """A line of the event stream, line end included, with its checksum."""
    body = line[:-1]
    return b'%b,"crc":"%08x"}\n' % (body[:-1], crc32(body))


def is_unwritten(line: bytes) -> bool:
    """Whether a part of a line never reached the disk: there are NUL bytes, and no record after.

    A record has none: JSON spells them out.
    """
    return b"\0" in line and opened(line.rpartition(b"\0")[2].rstrip(b"\n")) is None


def opened(record: bytes) -> bytes | None:
    """The line in a record (without its end), or `None` where the checksum is not right."""
    seal = _SEAL.match(record, len(record) - _LENGTH) if len(record) > _LENGTH else None
    if seal is None:
        return None
    body = record[:-_LENGTH] + b"}"
    return body if crc32(body) == int(seal[1], 16) else None
