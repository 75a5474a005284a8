"""The torn tail of a journal, cut off before anything is appended to it (B2).

Appending after a torn record would lose the next record too. What is cut off is kept beside.
"""

import os
from pathlib import Path

from aish.sinks.journal_record import is_unwritten
from aish.system.files import open_append, open_own

_BLOCK = 1 << 16


def cut_torn_tail(path: Path) -> int:
    """Move what stands after the last whole record of `path` beside it; how many bytes it is.

    That is half a record, NUL bytes where a crash of the machine left blocks unwritten, or both.

    Raises:
        UsageError: something else stands in the place of one of the two files.
    """
    reading = open_own(path)
    try:
        size = os.fstat(reading).st_size
        begin = _after_last_record(reading, size)
        if begin == size:
            return 0
        _keep(reading, begin, size, path)
    finally:
        os.close(reading)
    cutting = open_append(path)
    try:
        os.ftruncate(cutting, begin)
        os.fsync(cutting)
    finally:
        os.close(cutting)
    return size - begin


def _after_last_record(descriptor: int, size: int) -> int:
    """Where the last line ends that was written whole."""
    end = _after_last_line_end(descriptor, size)
    while end:
        begin = _after_last_line_end(descriptor, end - 1)
        if not is_unwritten(_read(descriptor, begin, end)):
            break
        end = begin
    return end


def _read(descriptor: int, begin: int, end: int) -> bytes:
    blocks = []
    while begin < end and (block := os.pread(descriptor, end - begin, begin)):
        blocks.append(block)
        begin += len(block)
    return b"".join(blocks)


def _after_last_line_end(descriptor: int, size: int) -> int:
    end = size
    while end:
        begin = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _keep(descriptor: int, begin: int, size: int, path: Path) -> None:
    """Copy the tail, and let it reach the disk before it is cut off."""
    kept = open_append(path.with_name(f"{path.name}.torn"))
    try:
        while begin < size and (block := os.pread(descriptor, min(_BLOCK, size - begin), begin)):
            begin += os.write(kept, block)
        os.write(kept, b"\n")
        os.fsync(kept)
    finally:
        os.close(kept)
