"""Runs a Python program where the kernel seems to have no Landlock.

    python without_landlock.py -m aish ...

A filter of system calls answers that Landlock's are not there, to it and to all that it starts.
"""

import ctypes
import errno
import os
import struct
import sys

FIRST, LAST = 444, 446  # the same numbers on every machine


def main() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    steps = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x35, 0, 2, FIRST),  # from the first number on
        (0x25, 1, 0, LAST),  # but not behind the last one
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    nothing = (ctypes.c_ulong(0),) * 3
    assert library.prctl(38, ctypes.c_ulong(1), *nothing) == 0
    assert library.prctl(22, ctypes.c_ulong(2), program, *nothing[:2]) == 0
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # ruff: ignore[start-process-with-no-shell] - that is the purpose


if __name__ == "__main__":
    main()
