"""The process that parses for packs, found from outside by whose child it is."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from patience import is_ready, rounds
from stray_processes import children_of

PATIENCE = 60.0


def workers_below(pid: int) -> list[int]:
    """The parsing processes that a process or a child of its has started."""
    found = []
    for child in sorted(children_of(pid)):
        with suppress(FileNotFoundError, ProcessLookupError):  # another child, which has ended
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found += [child] if b"parse_worker_child" in command else workers_below(child)
    return found


@contextmanager
def stopped(pid: int) -> Generator[int]:
    """The process stands still, and does not read what it is sent; yields its input.

    One that waits for input when it is signalled, and is not scheduled before the input is there,
    would read it and stop only then.
    """
    os.kill(pid, signal.SIGSTOP)
    for _ in rounds("the process has not stopped"):
        if Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "T":
            break
    descriptor = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_asked(descriptor: int) -> None:
    """Block until a request is in the input of a stopped process."""
    assert is_ready(descriptor, PATIENCE), "nothing was asked"
