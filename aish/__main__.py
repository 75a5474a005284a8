"""The entry point: `aish` and `python -m aish`."""

import gc
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from types import FunctionType

from aish import __version__

_STACK_SIZE = 9_000
"""Of 8 bytes each, in a chunk of 128 KiB."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    # CPython keeps the frames of calls in chunks of 16 KiB, and unmaps one as soon as it is empty:
    # a loop whose calls cross a border maps memory anew for each, which was a tenth of a short run.
    # A frame that needs a large chunk leaves the rest of it to the calls below.
    code = _run.__code__.replace(co_stacksize=_STACK_SIZE)
    FunctionType(code, globals())()


def _run() -> None:
    # Nothing that importing makes is garbage; looking for some costs a twentieth of a short run.
    # Commands that live long switch it on again (`cli.commands.run`).
    gc.disable()
    if sys.platform == "win32":
        from aish.system.platform.forms import NOT_ON_WINDOWS

        sys.stderr.write(f"aish: {NOT_ON_WINDOWS}\n")
        sys.exit(5)
    _leave_out_command_lines()
    _fill_streams()
    if sys.argv[1:] in (["--version"], ["-V"]):
        # Asked by scripts all the time, so it does not pay for the parser's import, except where
        # the output is closed or full.
        try:
            os.write(sys.stdout.fileno(), f"aish {__version__}\n".encode())
        except OSError:
            pass
        else:
            return
    try:
        from aish.cli.main import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:
        # Ctrl-C while the program was still being loaded, or was already leaving.
        code = 130
    # What is left at the end is not searched for garbage either.
    gc.freeze()
    sys.exit(code)


def _leave_out_command_lines() -> None:
    """Let httpx do without a command line of its own, as where click is not installed.

    For that it imports click, pygments and a part of rich, which doubles what its import costs, and
    the extra `serve` installs click. Only this program does so: who imports `aish.api` has all of
    httpx.
    """
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # so Python writes "absent"


def _fill_streams() -> None:
    """The null device for each standard stream that is closed (`>&-`).

    Otherwise the next file that is opened takes its number, and gets what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # ruff: ignore[open-file-with-context-handler] - for as long as we run
            assert isinstance(stream, TextIOWrapper)
            setattr(sys, name, stream)


if __name__ == "__main__":
    main()
