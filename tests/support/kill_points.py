"""A process that kills itself at its n-th step to the outside, for tests of what survives that.

A step is a call that another process or the disk could notice, before it and after it: a write, a
sync, a rename, a request, what is read of an answer, a start of a process. Between two of them
nothing changes but memory. `ForkServer` arms a child whose environment asks for it.
"""

import atexit
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

KILL_AT = "AISH_TEST_KILL_AT"
"""The number of the step at which a child of the fork server kills itself."""
KILL_WITH = "AISH_TEST_KILL_WITH"
"""The name of the signal, if it is another one than `SIGKILL`; then it comes once."""
COUNT_INTO = "AISH_TEST_COUNT_INTO"
"""The file into which it writes how many there were."""

_CALLS = frozenset({"c_call", "c_return"})
_STEPS = frozenset(
    {
        *("write", "writev", "fsync", "fdatasync", "ftruncate", "flock", "open", "mkdir", "unlink"),
        *("rename", "replace", "link", "chmod", "fork_exec", "bind", "listen"),
        *("connect", "accept", "_accept", "send", "sendmsg", "sendall", "recv", "recv_into"),
    }
)


def arm(environ: MutableMapping[str, str]) -> None:
    """Kill this process as its environment says; the program does not get to see that."""
    at, into = environ.pop(KILL_AT, None), environ.pop(COUNT_INTO, None)
    end = signal.Signals[environ.pop(KILL_WITH, "SIGKILL")]
    if at is None and into is None:
        return
    last = sys.maxsize if at is None else int(at)
    count = 0

    def seen(frame: FrameType, event: str, called: Any) -> None:
        nonlocal count
        del frame
        if event in _CALLS and called.__name__ in _STEPS:
            count += 1
            if count == last:
                os.kill(os.getpid(), end)

    if into is not None:
        atexit.register(lambda: Path(into).write_text(str(count), encoding="ascii"))
    sys.setprofile(seen)
