"""Locks of files: `flock` everywhere; who holds one, only `/proc` says."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aish.system.platform.forms import is_portable

_OWNER = 5


def lock_holder(descriptor: int) -> int | None:
    """The process that holds the lock of an open file; `None` if unknown; portable: always."""
    if is_portable():
        return None
    status = os.fstat(descriptor)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Processes come and go, and those of other users are not readable.
            with suppress(OSError):
                for owner in _owners(entry, status):
                    return int(owner)
    return None


def _owners(process: Path, status: os.stat_result) -> Iterator[str]:
    """The processes that hold the lock, among those with an open descriptor of the file."""
    for opened in (process / "fd").iterdir():
        with suppress(OSError):
            if not os.path.samestat(opened.stat(), status):
                continue
            text = (process / "fdinfo" / opened.name).read_text(encoding="ascii")
            for line in text.splitlines():
                words = line.split()
                if words[:1] == ["lock:"] and "FLOCK" in words and "WRITE" in words:
                    yield words[_OWNER]
