"""The torn tail of a journal, cut off before anything is appended to it (B2).

Appending after a torn record would lose the next record too. What is cut off is kept beside.
"""

import os
from pathlib import Path

from aish.sinks.journal_record import JournalError
from aish.system.files import open_append, open_own

_BLOCK = 1 << 16


def cut_torn_tail(path: Path) -> int:
    """Move what stands after the last line end of `path` to `events.jsonl.torn`; how much it is.

    Raises:
        JournalError: the tail is filled with NUL bytes: that is no write that was cut short.
        UsageError: something else stands in the place of one of the two files.
    """
    reading = open_own(path)
    try:
        size = os.fstat(reading).st_size
        begin = _after_last_line_end(reading, size)
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
    begun = begin
    kept = open_append(path.with_name(f"{path.name}.torn"))
    try:
        while begin < size:
            block = os.pread(descriptor, _BLOCK, begin)
            if b"\0" in block:
                at = begin + block.index(b"\0")
                said = f"there are NUL bytes at byte {at}, as after a crash of the machine"
                hint = f"`truncate -s {begun} {path}` keeps the whole records before them"
                raise JournalError(said, where=str(path), hint=hint)
            begin += os.write(kept, block)
        os.write(kept, b"\n")
        os.fsync(kept)
    finally:
        os.close(kept)
